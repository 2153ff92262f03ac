"""One attempt at running the command: what it runs, on which workers, its start on one of them, and its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tpux import config, env
from tpux.config.arguments import argument_text, file_lines
from tpux.errors import TpuxError
from tpux.lifecycle import policy
from tpux.lifecycle.open import attempt_variables
from tpux.lifecycle.programs import command_process, command_workers
from tpux.lifecycle.progress import final_progress
from tpux.lifecycle.turn import Turn
from tpux.model.events import AttemptEnded, AttemptStarted
from tpux.model.failures import Failure
from tpux.model.host import OpenHost
from tpux.model.job import Command, is_url
from tpux.model.machines import Worker
from tpux.plugin import spec
from tpux.plugin.selected import selected_plugins
from tpux.remote import job_runs, process
from tpux.remote.hung import describe_hung, hung_processes
from tpux.remote.output import Program, fetch_or_probe
from tpux.remote.process import NoticePoller, Status
from tpux.store import output

KEEP_MARGIN = 15.0
"""Seconds for which a worker waits for a notice beyond `watch.verdict_grace`, which is observed time."""


# --- what an attempt runs -----------------------------------------------------------------------


def new_attempt(turn: Turn, home: str, previous: str | None) -> AttemptStarted:
    """Return the event of the next attempt, which is written before it is started.

    Args:
        turn: the step.
        home: the home directory on the workers.
        previous: the output directory to resume from; None if there is nothing to resume from.
    """
    state = turn.state
    number = state.attempt + 1
    base = turn.job.job.output_dir or turn.machines.storage or f"~/.tpux/output/{turn.job.key}"
    base = home + base[1:] if base.startswith("~/") else base
    if previous and not previous.startswith("/") and not is_url(previous):
        previous = f"{home}/{previous}"  # of a job that an earlier version of tpux has started
    resume = not state.from_scratch and bool(previous)
    return AttemptStarted(
        attempt=number,
        stage=state.stage + 1 if resume else 0,
        resume=resume,
        workers=tuple(worker.index for worker in command_workers(turn)),
        output_dir=f"{base}/attempt-{number}",
        previous_output_dir=previous if resume and previous else "",
    )


def command(turn: Turn, worker: Worker, home: str = "") -> Command:
    """Return what one worker runs, as the selected plugins prepare it and the job's environment wraps it.

    Args:
        turn: the step.
        worker: which worker.
        home: the physical path of its home directory; not needed where the command is not started. The variables
            that mark the processes of the run depend on it, and are in the command's environment for an
            environment that clears all others.

    Raises:
        TpuxError: a plugin's hook failed.
    """
    run, job = command_process(turn, worker.index), turn.job
    # Absolute where it is started: the program may start in another directory.
    path, markers = f"{home}/{run.script}" if home else run.script, {env.RUN_ID: run.id, env.RUN_HOME: home}
    made = Command(argv=("bash", path), script=path, env={**_variables(turn, worker), **markers})

    def call_one(name: str, hook: Callable[..., Command | None], command: Command) -> Command:
        config = job.sections.get(name)
        answer = turn.plugins.call_one(name, hook, job=job, command=command, config=config, worker=worker)
        return command if answer is None else replace(answer, env={**command.env, **answer.env, **markers})

    for name in selected_plugins(job):
        made = call_one(name, spec.prepare_command, made)
    if job.environment:
        made = call_one(job.environment, spec.run, made)
    return made


def _script(turn: Turn) -> str:
    """Return the text of the config that the attempt runs, with its arguments and references substituted."""
    section, references = turn.job.command, _references(turn)

    def known(text: str) -> str:
        return config.substitute(text, references)

    text = section.resume_cmd if turn.state.run.resume and section.resume_cmd else section.cmd
    args = {"args": argument_text(section, known)} if {"args", "argv"} & section.model_fields_set else {}
    resumed = {name: known(given) for name, given in _arguments(turn).items()}
    script = config.insert_arguments(known(text), {**args, **resumed})
    return file_lines(section, known, env.ARGS_FILE) + script


def _arguments(turn: Turn) -> dict[str, str]:
    """Return the arguments that the config has for a resume, with references; "" if this attempt does without."""
    section, state = turn.job.command, turn.state
    given = {"resume_args": (section.resume_args, state.run.resume), "stage_args": (section.stage_args, state.stage)}
    return {name: text.strip() if used else "" for name, (text, used) in given.items() if text}


def _references(turn: Turn) -> dict[str, str]:
    """Return what the references stand for that are known only now."""
    state = turn.state
    return {
        "tpu.name": turn.machines.name,
        "job.attempt": str(state.attempt),
        "job.stage": str(state.stage),
        "job.output_dir": state.run.output_dir,
        "job.previous_output_dir": state.run.previous_output_dir,
    }


def _variables(turn: Turn, worker: Worker) -> dict[str, str]:
    """Return the program's environment variables; docs/program-environment.md documents them."""
    state, allocation = turn.state, turn.machines
    numbers = state.run.workers
    secrets = {f"{env.SECRET_PREFIX}{name}": value for name, value in turn.opened.secrets.items()}
    variables = {
        "PYTHONUNBUFFERED": "1",  # output appears at once, and is not lost with the machine
        "PYTHONFAULTHANDLER": "1",  # the stack is written when a signal ends the program
        **_configured_variables(turn),
        **attempt_variables(state, worker),
        env.RANK: str(numbers.index(worker.index)),
        env.NUM_WORKERS: str(len(numbers)),
        env.SLICE: str(worker.slice),
        env.NUM_SLICES: str(allocation.slices),
        env.COORDINATOR_ADDRESS: f"{allocation.workers[numbers[0]].internal_ip}:{allocation.coordinator_port}",
    }
    if allocation.slices > 1:
        variables |= {
            "MEGASCALE_COORDINATOR_ADDRESS": allocation.workers[0].internal_ip,
            "MEGASCALE_NUM_SLICES": str(allocation.slices),
            "MEGASCALE_SLICE_ID": str(worker.slice),
        }
    references = {**_references(turn), **secrets}  # no shell reads the values of command.env
    variables[env.RESUME_ARGS] = config.substitute(" ".join(filter(None, _arguments(turn).values())), references)
    given = {name: config.substitute(value, references) for name, value in turn.job.command.env.items()}
    return variables | secrets | given


def _configured_variables(turn: Turn) -> dict[str, str]:
    """Return the variables of the config's `job.environment`."""
    references = _references(turn)
    return {name: config.substitute(text, references) for name, text in turn.job.job.variables().items()}


# --- its start on a worker ----------------------------------------------------------------------


def start_or_attach(turn: Turn, host: OpenHost, program: Program) -> Status:
    """Start the command on a worker, unless it has been started; return its state.

    Args:
        turn: the step.
        host: the worker.
        program: the command there.
    """
    if turn.state.run.running:  # the start was confirmed, so it is never repeated
        return fetch_or_probe(host, program.run, program.log)
    home = _prepare_worker(turn, host)
    made, script, offset = command(turn, host.worker, home=home), _script(turn), output.next_offset(program.log)
    try:
        return process.start(host, program.run, script, made, offset=offset, wait=0.1, notice=_notice(turn))
    except ValueError as error:
        where = f"worker {host.worker.index}"
        raise TpuxError(f"the command cannot be started: {error}", where=where) from error


def _notice(turn: Turn) -> NoticePoller | None:
    """Return how a worker waits for the notice of a preemption; None if its machines announce none."""
    if not (command := turn.machines.notice):
        return None
    grace = turn.job.command.grace_period
    return NoticePoller(command, grace, keep=max(grace, turn.job.watch.verdict_grace) + KEEP_MARGIN)


def _prepare_worker(turn: Turn, host: OpenHost) -> str:
    """Create the output directory, and remove what earlier attempts left on the worker's disk; return its home.

    Raises:
        TpuxError: one of them is still running, as on a worker that was unreachable while it was terminated, and is
            being killed: the command never runs beside it. Or the directory cannot be created.
    """
    key, attempt = process.worker_key(turn.job.key, host.worker.index), turn.state.attempt
    directory = turn.state.run.output_dir
    prepared = job_runs.prepare(host, key, attempt, "" if is_url(directory) else directory)
    if prepared.running:
        raise _still_running(turn, host, key)
    if prepared.problem:
        hint = "job.output_dir, if the config has it, must be a directory where the user may write"
        where = f"worker {host.worker.index}"
        raise TpuxError(f"the output directory cannot be created: {prepared.problem}", where=where, hint=hint)
    return prepared.home


def _still_running(turn: Turn, host: OpenHost, key: str) -> TpuxError:
    """Kill what is still running of earlier attempts, and return the error that says so."""
    attempt = turn.state.attempt
    hung: list[int] = []
    for run in job_runs.unfinished(host, key):
        if run.attempt < attempt and process.stop(host, run, signal="KILL"):
            hung += hung_processes(host, run)
    message, hint = "an earlier attempt was still running here; it is being killed", ""
    if hung:
        message, job = describe_hung(hung, " of an earlier attempt"), turn.number
        hint = f"repair the mount, or take other machines: tpux stop {job} --release; then: tpux resume {job}"
    return TpuxError(message, where=f"worker {host.worker.index}", hint=hint)


# --- its end ------------------------------------------------------------------------------------


def write_end(turn: Turn, failure: Failure | None, *, stopped: bool = False, finished: str = "") -> None:
    """Write that the current attempt has ended.

    Args:
        turn: the step.
        failure: what ended it; None if it succeeded or was stopped.
        stopped: a user stopped it.
        finished: what shows that the program had finished, where a detector says so.
    """
    reset = not stopped and resets_restarts(turn)
    progress, repeated = final_progress(turn)
    turn.write(
        AttemptEnded(
            attempt=turn.state.attempt,
            failure=failure,
            stopped=stopped,
            restarts_reset=reset,
            finished=finished,
            progress=progress,
            repeated_steps=repeated,
        )
    )


def resets_restarts(turn: Turn) -> bool:
    """Return whether the current attempt has lasted long enough for the job to get all its restarts back.

    That is real time from the first call in this process on, so a clock that is set meanwhile changes nothing.
    """
    return turn.deadlines.left(turn.state.run.started_at + policy.HEALTHY_AFTER, policy.HEALTHY_AFTER) <= 0
