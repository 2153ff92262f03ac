"""Asking a worker: one of the scripts, run there."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tpux.errors import TpuxError
from tpux.plugin.host import Host

Values = Mapping[str, str | int]

_MARK = b"tpux-run "


def call_script(
    host: Host, script: str, subject: str, values: Values, *, stdin: bytes = b"", wait: float = 0.0
) -> tuple[str, bytes]:
    """Run one of the scripts on the worker; the line that it answers with, and the bytes after it.

    Args:
        host: the worker.
        script: the script's name.
        subject: the id of a run, or the key of a job.
        values: the variables that the script wants set.
        stdin: what it reads.
        wait: how many seconds it may wait of itself.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: it answered something else.
    """
    head = "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in {"id": subject, **values}.items())
    result = host.run(head + source("common") + source(script), stdin=stdin, timeout=60.0 + wait)
    # A login shell may have had its say before.
    _, mark, answer = result.output.partition(_MARK)
    if not (mark and result.ok):
        raise bad_reply(host, result.output)
    line, _, rest = answer.partition(b"\n")
    return line.decode(errors="replace"), rest


def bad_reply(host: Host, output: bytes) -> TpuxError:
    """The error for an answer that is none."""
    said = output.decode(errors="replace").strip().splitlines() or ["nothing"]
    return TpuxError(
        f"the worker could not do what it was asked: {said[-1]}",
        where=f"worker {host.worker.index}",
        hint="see that its disk is not full, and that it has sh, coreutils, grep and util-linux",
    )


@cache
def source(name: str) -> str:
    """One of the scripts."""
    return Path(__file__).with_name("scripts").joinpath(f"{name}.sh").read_text()
