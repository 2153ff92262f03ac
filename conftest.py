"""Settings for all tests: of Hypothesis, and how pytest-xdist distributes them."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine any example may take longer than Hypothesis expects.
settings.register_profile("tpux", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tpux")

# A run that nohup or a shell's `&` has started ignores these, and so would every program that a test interrupts.
for number, default in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, default)

ON_ONE_PROCESS = ("plugins/docker/tests/", "tests/test_wheels.py")
"""Tests that share a fixture which is expensive: a docker daemon, wheels that are built."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep these tests together. Not with the mark `xdist_group`: xdist 3.8 has no effect on pytest 9.2's node ids."""
    from xdist.scheduler import LoadGroupScheduling

    class ByPath(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((path for path in ON_ONE_PROCESS if nodeid.startswith(path)), nodeid)

    return ByPath(config, log) if config.getvalue("dist") == "loadgroup" else None
