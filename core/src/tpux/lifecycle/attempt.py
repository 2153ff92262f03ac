"""One attempt at running the command: what it runs, its environment, and its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tpux import config, env
from tpux.errors import TpuxError
from tpux.lifecycle.context import JobContext
from tpux.lifecycle.job import attempt_variables
from tpux.lifecycle.storage import is_url
from tpux.model.events import AttemptStarted
from tpux.model.job import Command
from tpux.model.machines import Worker
from tpux.plugin import spec
from tpux.plugin.selected import selected_plugins
from tpux.remote import process
from tpux.remote.process import RemoteProcess

COMMAND = "command"
"""The name of the command's run in each attempt."""


# --- what an attempt runs -----------------------------------------------------------------------


def new_attempt(context: JobContext, home: str, previous: str | None) -> AttemptStarted:
    """Return the event of the next attempt, which is written before it is started.

    Args:
        context: the job.
        home: the home directory on the workers.
        previous: the output directory to resume from; None if there is nothing to resume from.
    """
    state = context.state
    number = state.attempt + 1
    base = context.job.job.output_dir or context.allocation.storage or f"~/.tpux/output/{context.job.key}"
    base = home + base[1:] if base.startswith("~/") else base
    if previous and not previous.startswith("/") and not is_url(previous):
        previous = f"{home}/{previous}"  # of a job that an earlier version of tpux has started
    resume = not state.from_scratch and bool(previous)
    return AttemptStarted(
        attempt=number,
        stage=state.stage + 1 if resume else 0,
        resume=resume,
        workers=tuple(worker.index for worker in command_workers(context)),
        output_dir=f"{base}/attempt-{number}",
        previous_output_dir=previous if resume and previous else "",
    )


def command(context: JobContext, worker: Worker, home: str = "") -> Command:
    """Return what one worker runs, as the selected plugins prepare it and the job's environment wraps it.

    Args:
        context: the job.
        worker: which worker.
        home: the physical path of its home directory; not needed where the command is not started. The variables
            that mark the processes of the run depend on it, and are in the command's environment for an
            environment that clears all others.

    Raises:
        TpuxError: a plugin's hook failed.
    """
    run, job = command_process(context, worker.index), context.job
    # Absolute where it is started: the program may start in another directory.
    path, markers = f"{home}/{run.script}" if home else run.script, {env.RUN_ID: run.id, env.RUN_HOME: home}
    made = Command(argv=("bash", path), script=path, env={**_variables(context, worker), **markers})

    def call_one(name: str, hook: Callable[..., Command | None], command: Command) -> Command:
        config = job.sections.get(name)
        answer = context.plugins.call_one(name, hook, job=job, command=command, config=config, worker=worker)
        return command if answer is None else replace(answer, env={**command.env, **answer.env, **markers})

    for name in selected_plugins(job):
        made = call_one(name, spec.prepare_command, made)
    if job.environment:
        made = call_one(job.environment, spec.run, made)
    return made


def command_process(context: JobContext, worker: int) -> RemoteProcess:
    """Return where the command of the current attempt runs on a worker."""
    return RemoteProcess(process.worker_key(context.job.key, worker), context.state.attempt, COMMAND)


def attempt_script(context: JobContext) -> str:
    """Return the text of the config that the attempt runs, with its arguments and references substituted."""
    section, state = context.job.command, context.state
    resumed = state.run.resume
    text = section.resume_cmd if resumed and section.resume_cmd else section.cmd
    if (arguments := _arguments(context)) and not config.places_arguments(text):
        text = f"{text.rstrip()} {arguments}"
    return config.substitute(text, _words(context))


def _arguments(context: JobContext) -> str:
    """Return the arguments of a resumed attempt, with references."""
    section, state = context.job.command, context.state
    given = [section.resume_args if state.run.resume else None, section.stage_args if state.stage else None]
    return " ".join(arguments.strip() for arguments in given if arguments)


def _words(context: JobContext) -> dict[str, str]:
    """Return what the references stand for that are known only now."""
    state = context.state
    return {
        "tpu.name": context.allocation.name,
        "job.attempt": str(state.attempt),
        "job.stage": str(state.stage),
        "job.output_dir": state.run.output_dir,
        "job.previous_output_dir": state.run.previous_output_dir,
    }


def _variables(context: JobContext, worker: Worker) -> dict[str, str]:
    """Return the program's environment variables; docs/program-environment.md documents them."""
    state, allocation = context.state, context.allocation
    numbers = state.run.workers
    secrets = {f"{env.SECRET_PREFIX}{name}": value for name, value in context.opened.secrets.items()}
    variables = {
        "PYTHONUNBUFFERED": "1",  # output appears at once, and is not lost with the machine
        "PYTHONFAULTHANDLER": "1",  # the stack is written when a signal ends the program
        **_configured_variables(context),
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
    words = {**_words(context), **secrets}  # no shell reads the values of command.env
    variables[env.RESUME_ARGS] = config.substitute(_arguments(context), words)
    given = {name: config.substitute(value, words) for name, value in context.job.command.env.items()}
    return variables | secrets | given


def _configured_variables(context: JobContext) -> dict[str, str]:
    """Return the variables of the config's `job.environment`."""
    given, words = context.job.job.environment, _words(context)
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    return {name: config.substitute(text, words) for name, text in texts.items()}


# --- its workers --------------------------------------------------------------------------------


def command_workers(context: JobContext) -> list[Worker]:
    """Return the workers that are to run the command.

    Raises:
        TpuxError: `command.workers` names a worker that the machines do not have.
    """
    workers = context.allocation.workers
    wanted = context.job.command.workers
    numbers = list(range(len(workers))) if wanted == "all" else [wanted] if isinstance(wanted, int) else wanted
    if missing := [number for number in numbers if number >= len(workers)]:
        raise TpuxError(f"there is no worker {missing[0]}: the machines have {len(workers)}")
    return [workers[number] for number in numbers]


def workers(context: JobContext, *, without: Iterable[int] = ()) -> dict[int, Worker]:
    """Return the workers that run the command in the current attempt, except those in `without`."""
    skipped = set(without)
    every = context.allocation.workers
    return {index: every[index] for index in context.state.run.workers if index not in skipped}


def open_workers(context: JobContext, *, without: Iterable[int] = ()) -> dict[int, Worker]:
    """Return those of them on which the command has not ended."""
    return workers(context, without=[*context.state.endings, *without])
