"""Looking whether a job's workers are ready, while it runs or rests: without its lock, and without changing them."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tpux import hookspecs, runs
from tpux.errors import TpuxError
from tpux.held.machines import HeldMachines
from tpux.hosts import Host
from tpux.machines import JsonValue, Worker
from tpux.readiness import ended_badly, fingerprint, mark_path, objection
from tpux.steps import Steps

POLL = 0.5
"""Seconds that one look at a check waits for its end."""


@dataclass(frozen=True)
class Verdict:
    """Whether one module finds one worker ready, and if not, why."""

    worker: int
    module: str
    ready: bool
    why: str = ""

    @property
    def told(self) -> str:
        """The same in words."""
        return "ready" if self.ready else f"not ready: {self.why}"

    def to_json(self) -> dict[str, JsonValue]:
        """The same as JSON knows it."""
        return asdict(self)


def look(held: HeldMachines, workers: Sequence[Worker], modules: Sequence[str]) -> list[Verdict]:
    """Look at each module on each worker, the workers at once. One that cannot be reached is not ready.

    Args:
        held: the job's machines.
        workers: which of them.
        modules: which of the job's modules.
    """
    token = secrets.token_hex(4)
    answers = held.each(workers, lambda host: [_verdict(held, host, word, token) for word in modules])
    return [
        verdict
        for index, answer in answers.items()
        for verdict in (
            [Verdict(index, word, ready=False, why=answer.message) for word in modules]
            if isinstance(answer, TpuxError)
            else answer
        )
    ]


def _verdict(held: HeldMachines, host: Host, word: str, token: str) -> Verdict:
    worker, section = host.worker, held.job.sections.get(word)
    why = objection(host.read((mark_path(word), 0))[0], fingerprint(section))
    if not why:
        steps = held.plugins.ask(word, hookspecs.check, job=held.job, config=section, worker=worker)
        why = "" if steps is None else _walk(held, host, steps, f"check-{token}-{word}")
    return Verdict(worker.index, word, not why, why)


def _walk(held: HeldMachines, host: Host, steps: Steps, name: str) -> str:
    """Take a check's steps; how the one that failed did, nothing where all went well."""
    with tempfile.TemporaryDirectory(prefix="tpux-check-") as directory:
        log = runs.ReplayLog(Path(directory) / "log", f"== {name} ==")
        attempt = held.job.attempt + 1
        walk = runs.Walk(host, steps, lambda n, _: runs.Run(held.job.key, attempt, f"{name}-{n}"), log)
        while not walk.turn(POLL):
            pass
    return ended_badly(*walk.failed) if walk.failed else ""
