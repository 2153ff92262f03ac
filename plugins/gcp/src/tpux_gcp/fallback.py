"""What was asked for is not to be had: it ends here, or the search goes on once nothing of it is left."""

from __future__ import annotations

from dataclasses import replace

from tpux import Denied, Waiting
from tpux_gcp import labels
from tpux_gcp.errors import Problem, mistake
from tpux_gcp.request import Answer, Errand, denied
from tpux_gcp.resource import Thing

# Seconds: the first pause after all combinations were tried, and the longest.
REST, LONGEST_REST = 30.0, 300.0


def failed(errand: Errand, problem: Problem, *, gone: bool = False) -> Answer:
    """What was asked for was not given: quota, auth and mistakes end the search, a stockout goes on with it.

    Args:
        errand: what was asked for.
        problem: why it was not given.
        gone: the API has just said that nothing is left of it.
    """
    if problem.kind in {"quota", "auth", "config"}:
        return denied(problem)
    memo = errand.memo.note("no capacity" if "capacity" in problem.message else problem.message)
    errand = errand.with_memo(replace(memo, phase="giving-up", after="next"))
    return go_on(errand) if gone else errand.wait(f"{memo.candidate}: {problem.message}", 0)


def give_up(errand: Errand, why: str) -> Waiting:
    """Give up the combination at hand: once nothing is left of it the next one has its turn."""
    memo = replace(errand.memo.note(why), phase="giving-up", after="next")
    return errand.with_memo(memo).wait(f"{memo.candidate}: {why}", 0)


def again(errand: Errand, why: str) -> Waiting:
    """Ask for the same combination again, once nothing is left of what was had."""
    memo = replace(errand.memo.note(why), phase="giving-up", after="again")
    return errand.with_memo(memo).wait(f"{memo.candidate}: {why}", 0)


def beyond_recovery(errand: Errand, thing: Thing) -> Answer:
    """What has the name is lost: it is deleted and asked for again, unless somebody else made it."""
    left = labels.owner(thing.labels, errand.request) == "left"
    if left or not errand.memo.borrowed or errand.tpu.release == "always":
        return again(errand, thing.state)
    hint = f"tpux tpu delete {errand.name} --zone {errand.memo.zone}, or set tpu.release: always"
    return Denied(mistake(f"{thing.state}, and tpux did not make it", hint).failure)


def go_on(errand: Errand) -> Waiting:
    """Nothing is left of what was asked for: the next combination, the same one again, or a rest before either."""
    memo, now = errand.memo, errand.now
    if memo.after == "again":
        pause = 0.0 if memo.again == 0 else _rest(memo.again - 1)
        memo = replace(memo.turn(memo.at, memo.candidate, now), again=memo.again + 1)
    elif memo.at + 1 < len(errand.combinations):
        memo = memo.turn(memo.at + 1, errand.combinations[memo.at + 1], now)
        return errand.with_memo(memo).search(f"asking for {memo.candidate}", 0)
    else:
        pause = _rest(memo.round)
        memo = replace(memo.turn(0, errand.combinations[0], now), round=memo.round + 1)
    if not pause:
        return errand.with_memo(memo).search(f"asking again for {memo.candidate}", 0)
    errand = errand.with_memo(replace(memo, phase="resting", rest_until=now + pause))
    return errand.search(f"asking again for {memo.candidate} in {pause:.0f} s", pause)


def _rest(times: int) -> float:
    return min(REST * 2.0 ** min(times, 8), LONGEST_REST)
