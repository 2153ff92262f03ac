"""Run one of the scripts of `scripts/` on a worker, and parse its reply."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tpux.errors import TpuxError
from tpux.model.host import OpenHost

Values = Mapping[str, str | int]

LONGEST_INLINE = 32_768
"""Bytes of a script that may be part of an argument: the kernel allows 131,072 with all that surrounds them."""

_REPLY = b"tpux-run "
_SCRIPTS = Path(__file__).with_name("scripts")


def call_script(
    host: OpenHost, script: str, subject: str, values: Values, *, is_secret: bool = False, wait: float = 0.0
) -> tuple[str, bytes]:
    """Run one of the scripts on the worker.

    Args:
        host: the worker.
        script: the script's name.
        subject: the id of a run, or the key of a job.
        values: the variables that the script expects to be set.
        is_secret: the values may be secret: they are no part of an argument, which others can read.
        wait: how many seconds the script itself may wait.

    Returns:
        The first line of its reply, and the bytes after that line.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: the script failed.
    """
    text, timeout = render(script, subject, values), 60.0 + wait
    # The shell runs nothing before it has read the last brace, so not a part of it where the connection ends.
    whole = f"{{\n{text}\nexit\n}}\n".encode(errors="surrogateescape")
    if is_secret or len(whole) > LONGEST_INLINE:
        result = host.run("exec sh -s", stdin=whole, timeout=timeout)
    else:
        result = host.run(text, timeout=timeout)
    # A login shell may have printed something before.
    _, marker, reply = result.output.partition(_REPLY)
    if not (marker and result.ok):
        raise bad_reply(host, result.output)
    line, _, rest = reply.partition(b"\n")
    return line.decode(errors="replace"), rest


def render(script: str, subject: str, values: Values) -> str:
    """Return the text of one of the scripts with the variables that it expects; see `call_script`."""
    given = {"id": subject, **values}
    # A variable that a login shell exports would be passed on to every process, with the value that it gets here.
    lines = [f"unset {' '.join(given)}", *(f"{name}={shlex.quote(str(value))}" for name, value in given.items()), ""]
    return "\n".join(lines) + source("common") + source(script)


def bad_reply(host: OpenHost, output: bytes) -> TpuxError:
    """Return the error for output that is no reply of a script."""
    lines = output.decode(errors="replace").strip().splitlines() or ["no output"]
    return TpuxError(
        f"a tpux script failed on the worker: {lines[-1]}",
        where=f"worker {host.worker.index}",
        hint="check that its disk is not full, and that it has sh, coreutils, grep and util-linux",
    )


@cache
def source(name: str) -> str:
    """Return the text of one of the scripts."""
    return (_SCRIPTS / f"{name}.sh").read_text()


def read_all() -> None:
    """Read all scripts now, so that an upgrade of the installation does not change what this process uses."""
    for path in _SCRIPTS.glob("*.sh"):
        source(path.stem)
