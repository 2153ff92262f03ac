"""A sample of `python -m tests.faults.real`: points at which a supervisor that dies knows too little."""

from __future__ import annotations

import pytest

from tests.faults import real
from tests.faults.real import Case, Fault

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
STARTED = Fault("before event attempt-running in running", "kill")
CASES = [
    Case("preempted", (Fault("after allocator provision in provisioning", "kill"), STARTED)),
    Case("preempted", (STARTED, Fault("after worker read in running", "error", 3))),
    Case("preempted", (Fault("before write command_worker_N.log in running", "stop"),)),
    Case("stopped", (Fault("before event attempt-ended in stopping", "kill"),)),
    Case("stopped", (Fault("after event state-changed in stopped to pending", "kill"),)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_a_life_with_faults(case: Case) -> None:
    _, fired = real.live(case)
    assert len(fired) == len(case.faults), fired
