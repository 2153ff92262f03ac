"""Settings for all tests: of Hypothesis, how pytest-xdist distributes them, and what none of them may leave."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine any example may take longer than Hypothesis expects; fixtures give values that no example changes.
for profile, examples in (("few", 25), ("many", 500)):
    settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))

# A run that nohup or a shell's `&` has started ignores these, and so would every program that a test interrupts.
for number, default in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, default)

ON_ONE_PROCESS = ("plugins/docker/tests/", "plugins/slurm/tests/", "tests/test_shared_store.py", "tests/test_wheels.py")
"""Tests that share a fixture: a docker daemon, a Slurm cluster, accounts of the machine, wheels that are built."""


STARTS_SUPERVISORS = "tpux"
"""The fixture that ends the supervisors of a test, in its own store."""

START_PROCESSES = frozenset({STARTS_SUPERVISORS, "tpux_cli", "tpu_emulator", "tpu_emulators", "make_server", "daemon"})
"""Fixtures that start commands and supervisors, emulators, SSH servers and a docker daemon."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a fixture which starts processes."""
    for item in items:
        if START_PROCESSES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.process)


@pytest.fixture(autouse=True)
def no_supervisor_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a supervisor, which costs the tests after it time, unless a fixture ends it.

    So does a test that has started one and has neither the mark `process` nor `system`: it would be slow in a tier that
    is not.
    """
    yield
    directory = request.node.funcargs.get("tmp_path")
    if directory is None or STARTS_SUPERVISORS in request.fixturenames:
        return
    deadline = time.monotonic() + 20  # one that was stopped has given up its lock, and ends
    while (left := _supervisors_below(directory)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        pytest.fail(f"{len(left)} supervisor(s) still ran: use the fixture `{STARTS_SUPERVISORS}`, or stop them")
    marked = any(request.node.get_closest_marker(name) for name in ("process", "system"))
    if not marked and any(directory.glob("*/supervisor/*/log")):
        pytest.fail("a supervisor was started: give the test the mark `process` or `system`")


def _supervisors_below(directory: Path) -> list[Path]:
    return [process for process in Path("/proc").glob("[0-9]*") if _is_supervisor_below(directory, process)]


def _is_supervisor_below(directory: Path, process: Path) -> bool:
    """Return whether a process writes the log of a supervisor whose store is below a directory."""
    try:
        log = (process / "fd/2").readlink()
    except OSError:
        return False
    return log.name == "log" and log.is_relative_to(directory) and log.parent.parent.name == "supervisor"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep these tests together. Not with the mark `xdist_group`: xdist 3.8 has no effect on pytest 9.2's node ids."""
    from xdist.scheduler import LoadGroupScheduling

    class ByPath(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((path for path in ON_ONE_PROCESS if nodeid.startswith(path)), nodeid)

    return ByPath(config, log) if config.getvalue("dist") == "loadgroup" else None
