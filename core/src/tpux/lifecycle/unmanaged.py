"""Access to machines that no job holds: a TPU that was created by hand, by its name."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

from tpux import config, env
from tpux.console import say
from tpux.errors import NoSuchJobError, TpuxError
from tpux.lifecycle.connection import JobConnection, connect_job
from tpux.lifecycle.job import build_request, draft_job
from tpux.plugin import spec
from tpux.plugin.job import Job, selected_plugins
from tpux.plugin.machines import Ready, Waiting
from tpux.plugin.manager import Plugins
from tpux.store import Store
from tpux.store.state import State

_NAME = re.compile("[A-Za-z][-._A-Za-z0-9]*")
TIMEOUT = 120.0
"""Seconds until the machines must accept this user's keys."""


def connect_job_or_machines(name: str) -> JobConnection:
    """Return access to the machines of a job, or else to those of this name that no job of the store created.

    Args:
        name: a job's id or name, or the name of machines that an installed allocator can find.

    Raises:
        UsageError: there is neither.
        MisplacedStoreError: the store was moved or copied, and the user has not said which.
        TpuxError: a plugin that is needed is not installed, or the cloud does not answer.
    """
    try:
        return connect_job(name)
    except NoSuchJobError as error:
        if not _NAME.fullmatch(name):
            raise
        problems: list[TpuxError] = []
        if (found := _find(name, problems)) is not None:
            return found
        why = "; ".join(problem.message for problem in problems)
        asked = f" (no TPU of that name was looked for: {why})" if why else ", and no TPU of that name"
        hint = "; ".join(filter(None, [error.hint, *(problem.hint for problem in problems)]))
        raise NoSuchJobError(f"{error.message}{asked}", hint=hint) from error


def _find(name: str, problems: list[TpuxError]) -> JobConnection | None:
    """Ask each allocator for machines of this name; errors are appended to `problems`."""
    store, plugins = Store(), Plugins()
    for allocator in plugins.names():
        try:
            if plugins.implements(allocator, spec.find_machines):
                found = _ask(store, plugins, allocator, name)
                if found is not None:
                    return found
        except TpuxError as error:
            problems.append(error)
    return None


def _ask(store: Store, plugins: Plugins, allocator: str, name: str) -> JobConnection | None:
    job = _stand_in(store, plugins, allocator, name)
    answers = [plugins.call_one(plugin, spec.public_keys, job=job) for plugin in selected_plugins(job)]
    keys = tuple(key for answer in answers for key in answer or [])
    now = time.time()
    state = State(job.id, job.user, name, now, now, now)
    deadline, said = time.monotonic() + TIMEOUT, ""
    while True:
        request = build_request(job, state, keys)
        answer = cast("Ready | Waiting | None", plugins.call_one(allocator, spec.find_machines, request=request))
        if answer is None:
            return None
        state = replace(state, saved_state=dict(answer.saved_state or {}))
        if isinstance(answer, Ready):
            return JobConnection(job, answer.allocation, plugins, state, machines=name)
        if time.monotonic() > deadline:
            raise TpuxError(f"{name} is not ready after {TIMEOUT:.0f} s: {answer.why}")
        if answer.poll_after and answer.why != said:
            say(said := answer.why)
        time.sleep(answer.poll_after)


def _stand_in(store: Store, plugins: Plugins, allocator: str, name: str) -> Job:
    """Return a job that is not in the store, with default sections, whose machines are those of this name."""
    text = f"tpu: {{allocation_mode: {allocator}, name: '{name}'}}\ncommand: 'true'\n"
    stored = config.Stored(text, {}, env.user_home())
    loaded = config.load(Path(f"{name}.yaml"), plugins=plugins, stored=stored)
    directory = store.home / "machines" / name
    (directory / "ssh").mkdir(parents=True, exist_ok=True, mode=0o700)
    return replace(draft_job(store, loaded, plugins, machines=name), directory=directory)
