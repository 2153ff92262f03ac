"""One attempt at running the command: what it is told, what it runs, where it writes."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from tpux import config, env
from tpux.errors import TpuxError
from tpux.lifecycle.context import JobContext
from tpux.plugin import spec
from tpux.plugin.job import Command
from tpux.plugin.machines import JsonValue, Worker
from tpux.remote import process
from tpux.store.state import State

COORDINATOR_PORT = 8476
"""Where jax.distributed's coordinator listens unless a program chooses another port (jax's own default)."""


def workers(state: State) -> list[int]:
    """The workers that run the command in the attempt at hand."""
    return cast("list[int]", state.run["workers"])


def command_run(context: JobContext) -> process.RemoteProcess:
    """The command's run in the attempt at hand."""
    return process.RemoteProcess(context.job.key, context.state.attempt, "command")


def script(context: JobContext) -> str:
    """The user's script in the attempt at hand."""
    command, state = context.job.command, context.state
    resumed = bool(state.run["resume"])
    text = command.resume_cmd if resumed and command.resume_cmd else command.cmd
    extra = [command.resume_args if resumed else None, command.stage_args if state.stage else None]
    text = " ".join([text.rstrip("\n"), *(arg.strip() for arg in extra if arg)]) if any(extra) else text
    return config.substitute(text, words(state))


def words(state: State) -> dict[str, str]:
    """What `${job.attempt}` and its like stand for in the attempt at hand."""
    return {
        "job.attempt": str(state.attempt),
        "job.stage": str(state.stage),
        "job.output_dir": str(state.run["output_dir"]),
        "job.previous_output_dir": str(state.run["previous_output_dir"]),
    }


def command(context: JobContext, worker: Worker) -> Command:
    """What one worker runs, wrapped by the job's environment.

    Raises:
        TpuxError: the environment cannot say.
    """
    path = f"{command_run(context).directory}/script"
    plain = Command(argv=("bash", path), script=path, env=environment(context, worker))
    if (word := context.plan.environment) is None:
        return plain
    section = context.job.sections.get(word)
    wrapped = context.plugins.call_one(word, spec.run, job=context.job, command=plain, config=section, worker=worker)
    if not isinstance(wrapped, Command):
        raise TpuxError(f"the environment {word} gave no command", where=f"plugin {word}")
    return replace(wrapped, env={**plain.env, **wrapped.env})


def environment(context: JobContext, worker: Worker) -> dict[str, str]:
    """What a program on this worker finds set; docs/program-environment.md says what for."""
    state, allocation = context.state, context.allocation
    chosen = workers(state)
    told = {
        env.JOB_ID: state.id,
        env.ATTEMPT: str(state.attempt),
        env.STAGE: str(state.stage),
        env.RESUME: "1" if state.run["resume"] else "0",
        env.WORKER: str(worker.index),
        env.NUM_WORKERS: str(len(chosen)),
        env.SLICE: str(worker.slice),
        env.NUM_SLICES: str(allocation.slices),
        env.COORDINATOR_ADDRESS: f"{allocation.workers[chosen[0]].internal_ip}:{COORDINATOR_PORT}",
        env.OUTPUT_DIR: str(state.run["output_dir"]),
        env.PREVIOUS_OUTPUT_DIR: str(state.run["previous_output_dir"]),
    }
    if allocation.slices > 1:
        told |= {
            "MEGASCALE_COORDINATOR_ADDRESS": allocation.workers[0].internal_ip,
            "MEGASCALE_NUM_SLICES": str(allocation.slices),
            "MEGASCALE_SLICE_ID": str(worker.slice),
        }
    return told | {f"{env.SECRET_PREFIX}{name}": value for name, value in context.secrets.items()}


def next_facts(context: JobContext, home: str, previous: str | None) -> dict[str, JsonValue]:
    """What is written down before the next attempt is started.

    Args:
        context: the job.
        home: the home directory on the workers, below which outputs go where nothing else is named.
        previous: the output directory of the attempt to go on from; None where there is none.
    """
    state = context.state
    resume = not state.from_scratch and previous is not None
    return {
        "attempt": state.attempt + 1,
        "stage": state.stage + 1 if not state.from_scratch else 0,
        "resume": resume,
        "workers": [worker.index for worker in context.chosen()],
        "output_dir": f"{output_base(context, home)}/attempt-{state.attempt + 1}",
        "previous_output_dir": previous if resume else "",
    }


def output_base(context: JobContext, home: str) -> str:
    """Below which directory each attempt has its output directory."""
    named = context.job.job.output_dir or context.allocation.storage or f"~/.tpux/output/{context.job.key}"
    return home + named[1:] if named.startswith("~/") else named
