"""What tpux relies on, and a whole job, on this machine."""

from __future__ import annotations

import pytest
import tpux_move_on
from tpux_move_on import MoveOnSection, count_moves

from tpux import Action, Failure
from tpux_testing import job, run_job, section_contract

SECTION = {"zones": ["us-central1-a", "us-west4-a"]}


def test_the_keys() -> None:
    """Each key is documented, and its errors have a position."""
    section_contract("move-on", SECTION)


@pytest.mark.parametrize(
    ("times", "moves"),
    [([], 0), ([0, 10], 0), ([0, 10, 3600], 1), ([0, 10, 3601], 0), ([0, 1, 2, 3, 4], 1), ([0, 1, 2, 3, 4, 5], 2)],
)
def test_how_often_a_job_moves(times: list[float], moves: int) -> None:
    """Three preemptions within an hour lead to the next zone, and count only once."""
    assert count_moves(times, 3, 3600) == moves


def test_the_next_machines_are_asked_for_in_the_next_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And after as many more in the first one again."""
    for number, tpu in ((2, {}), (3, {"zone": "us-west4-a"}), (6, {"zone": "us-central1-a"})):
        times = [float(one) for one in range(number)]
        monkeypatch.setattr(tpux_move_on, "preemptions_of", lambda _, times=times: times)
        action = tpux_move_on.on_preempt(job(), MoveOnSection(zones=SECTION["zones"]), Failure("preempted"))
        assert action == Action("resume", reapply=True, tpu=tpu)


def test_a_job() -> None:
    """The local machines, which have no zone, are preempted once: the job is resumed on new ones."""
    config = {"job": {"rule": "move-on"}, "move-on": SECTION, "local": {"preempt_after": 0.2}}
    run = run_job({**config, "command": {"cmd": "[ $TPUX_ATTEMPT = 2 ] || sleep 600"}})
    assert (run.state, run.attempts) == ("succeeded", 2), run.why
