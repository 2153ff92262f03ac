"""Attempts that end in the same way again and again: a restart does not help against what the program itself causes."""

from __future__ import annotations

import re
from dataclasses import replace

from tpux.lifecycle.progress import final_progress
from tpux.lifecycle.turn import Turn
from tpux.model.events import AttemptEnded, AttemptStarted
from tpux.model.failures import Failure

ATTEMPTS = 3
EARLY = 600.0
"""Seconds: a longer attempt may have made progress that its output does not name."""
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


def without_progress(turn: Turn, failure: Failure) -> Failure:
    """Return a symptom as the program's own failure if `ATTEMPTS` in a row have ended with it, early, and in vain.

    In vain: without a step that no attempt had reached before, and without a checkpoint (`command.checkpoint`) that the
    next one resumed from. Evidence is the same if it differs only in numbers.
    """
    if not failure.symptom:
        return failure
    now, (progress, _) = turn.clock.now(), final_progress(turn)
    this = AttemptEnded(at=now, attempt=turn.state.attempt, failure=failure, progress=progress)
    count, reached, said, started, output = 0, -1, "", 0.0, ""
    for event in (*(event for event, _ in turn.record.events()), this):
        if isinstance(event, AttemptStarted):
            saved = turn.job.command.checkpoint and output and event.previous_output_dir == output
            count = 0 if saved else count
            started, output = event.at, event.output_dir
        elif isinstance(event, AttemptEnded):
            ended = event.failure
            text = _NUMBERS.sub("", ended.evidence) if ended is not None and ended.symptom else ""
            step = -1 if event.progress is None or event.progress.step is None else event.progress.step
            in_vain = bool(text) and step <= reached and event.at - started < EARLY
            count = 0 if not in_vain else count + 1 if text == said else 1
            reached, said = max(reached, step), text
    if count < ATTEMPTS:
        return failure
    hint = f"{count} attempts in a row ended like this, without a new step or checkpoint; {failure.hint}"
    return replace(failure, kind="program", symptom=False, hint=hint)
