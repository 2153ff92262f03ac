"""What a program lacked on its worker is in the hint of its failure."""

from __future__ import annotations

import pytest

from tpux_testing import run_job

INSTALL = "mkdir -p ~/.local/bin; printf '#!/bin/sh\\necho ran' >~/.local/bin/trainer; chmod +x ~/.local/bin/trainer; "
PATH = "trainer is in ~/.local/bin, which is not in the program's PATH"
INPUT = "the standard input of a program is empty"


@pytest.mark.parametrize(
    ("cmd", "hint"),
    [
        (f"{INSTALL}trainer --steps 3", PATH),
        (f"{INSTALL}exec trainer", PATH),
        (f"{INSTALL}env trainer", PATH),
        ("trainer --steps 3", ""),
        (f"{INSTALL}nowhere/trainer", ""),
        (f"{INSTALL}trainer; exit 3", ""),
        ("""python3 -c 'input("continue? ")'""", INPUT),
        ("set -e\nread -r answer\necho $answer", INPUT),
        ("read answer", INPUT),
        ("set -e\nread -r answer </dev/null", ""),
        ("cat /dev/null | read answer", ""),
        ("echo 'read this'; exit 1", ""),
    ],
)
def test_a_program_that_lacks_a_command_or_an_input(cmd: str, hint: str) -> None:
    run = run_job({"command": {"cmd": cmd}, "job": {"rule": "pass"}})
    assert run.failure is not None
    assert (run.state, run.failure.kind) == ("failed", "program")
    assert run.failure.evidence.startswith("exit code ")
    assert run.failure.hint.partition(":")[0] == (hint or "tpux logs 1 --worker 0").partition(":")[0]
