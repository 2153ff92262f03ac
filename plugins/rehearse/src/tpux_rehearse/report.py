"""What a rehearsal has shown: whether the program resumed each time, at what cost, and with which result."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tpux import JsonValue, api
from tpux.api.text import describe_failure, format_duration
from tpux_rehearse.attempts import RehearsedAttempt, is_about_a_resume

Verdict = Literal["resumed", "not-resumed", "unknown", "failed", "too-short"]
PAGE = "docs/program-environment.md#resuming"
PROGRESS_PAGE = "docs/program-environment.md#progress"
_KEYS = ("resume_args", "resume_cmd", "stage_args")
_VARIABLES = ("TPUX_RESUME", "TPUX_PREVIOUS_OUTPUT_DIR", "TPUX_STAGE", "TPUX_RESUME_ARGS")
_SHOWN_FILES = 3


@dataclass
class Interruption:
    """One preemption (or stop), and the attempt that followed.

    Attributes:
        before: the attempt that it ended.
        after: the next one; None if there was none.
        resumed: whether the program went on from where it was; None if its output does not show that.
        lost_steps: the steps that were done and not saved; None if unknown.
        down: seconds until the program ran again.
        seen: what speaks against a resume, a sentence each.
    """

    before: RehearsedAttempt
    after: RehearsedAttempt | None
    resumed: bool | None = None
    lost_steps: int | None = None
    down: float | None = None
    seen: list[str] = field(default_factory=list)

    @property
    def lost_seconds(self) -> float:
        """Seconds until the program was as far as before: without a program, and repeating steps."""
        rate = self.before.rate
        return (self.down or 0.0) + ((self.lost_steps or 0) / rate if rate else 0.0)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the interruption as JSON data."""
        before, after = self.before, self.after
        return {
            "attempt": before.number,
            "kind": "stopped" if before.stopped else "preempted",
            "last_step": before.progress.step,
            "first_step_after": after.progress.first_step if after else None,
            "resumed": self.resumed,
            "told_to_resume": after.resumes if after else None,
            "lost_steps": self.lost_steps,
            "down_seconds": None if self.down is None else round(self.down, 1),
            "lost_seconds": round(self.lost_seconds, 1),
            "checkpoint_files": [*before.files],
            "files_lost": [*before.elsewhere],
            "printed": [*after.printed] if after else [],
            "seen": [*self.seen],
        }


@dataclass(frozen=True)
class Comparison:
    """The last value that each run printed.

    Attributes:
        pattern: where the value is, as `--compare` has it.
        rehearsed: the value of the run that was disturbed; None if it printed none.
        undisturbed: that of the other.
        equal: whether they are the same.
    """

    pattern: str
    rehearsed: str | None
    undisturbed: str | None
    equal: bool

    def to_json(self) -> dict[str, JsonValue]:
        """Return the comparison as JSON data."""
        return {
            "pattern": self.pattern,
            "rehearsed": self.rehearsed,
            "undisturbed": self.undisturbed,
            "equal": self.equal,
        }


@dataclass
class Report:
    """The result of a rehearsal.

    Attributes:
        verdict: `resumed`, or what else was shown.
        message: the verdict for people.
        interruptions: what happened, in order.
        comparison: None without `--compare`.
        seen: what speaks against a resume, or about it.
        page: the page that helps; "" if none is needed.
    """

    verdict: Verdict
    message: str
    interruptions: list[Interruption]
    comparison: Comparison | None = None
    seen: list[str] = field(default_factory=list)
    page: str = ""

    @property
    def passed(self) -> bool:
        """Whether the program resumed, and computed the same where that was compared."""
        return self.verdict == "resumed" and (self.comparison is None or self.comparison.equal)

    @property
    def repeated_steps(self) -> int:
        """The steps that were done again."""
        return sum(one.after.repeated_steps for one in self.interruptions if one.after)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the report as JSON data."""
        compared = self.comparison
        return {
            "passed": self.passed,
            "verdict": self.verdict,
            "message": self.message,
            "repeated_steps": self.repeated_steps,
            "lost_seconds": round(sum(one.lost_seconds for one in self.interruptions), 1),
            "interruptions": [one.to_json() for one in self.interruptions],
            "seen": [*self.seen],
            "page": self.page,
            "comparison": compared.to_json() if compared else None,
        }


def make_report(
    attempts: Sequence[RehearsedAttempt],
    ended: api.JobInfo,
    command: Mapping[str, JsonValue],
    *,
    times: int,
    restart: bool,
) -> Report:
    """Return what the attempts of a rehearsed job show.

    Args:
        attempts: all of them.
        ended: the job at its end.
        command: the section `command` of its config.
        times: how often it was to be disturbed.
        restart: it was stopped, not preempted.
    """
    found = []
    for index, before in enumerate(attempts):
        if before.lost_machines or (restart and before.stopped and index == 0):
            after = attempts[index + 1] if index + 1 < len(attempts) else None
            found.append(_interruption(before, after, attempts[0], command))
    what = "stop" if restart else "preemption"
    if ended.state == "failed":
        return _failed(attempts, ended, found, what)
    if not found:
        last = attempts[-1] if attempts else None
        seconds = last.ended_at - last.running_at if last and last.ended_at and last.running_at else 0.0
        message = f"the program ended after {format_duration(seconds)}, before the first {what}"
        return Report("too-short", message, [], seen=["take a shorter --preempt-after"])
    few = [f"only {len(found)} of {times} {what}s took place"] if len(found) < times else []
    wrong = [one for one in found if one.resumed is False]
    unknown = [one for one in found if one.resumed is None]
    if wrong:
        message = f"the program did not resume: {_how(wrong, attempts[0].progress.first_step)}"
        seen = list(dict.fromkeys(text for one in wrong for text in one.seen))
        return Report("not-resumed", message, found, seen=seen + few, page=PAGE)
    if unknown:
        seen = list(dict.fromkeys(text for one in unknown for text in one.seen))
        page = PROGRESS_PAGE if all(one.before.progress.step is None for one in unknown) else PAGE
        message = "whether the program resumed cannot be told from what it printed"
        return Report("unknown", message, found, seen=seen + few, page=page)
    count = "once" if len(found) == 1 else f"{len(found)} times"
    if few:
        message = f"the program resumed {count}, and ended before the next {what}"
        return Report("too-short", message, found, seen=[*few, "take a shorter --preempt-after, or fewer --times"])
    unsaved = not any(one.before.files for one in found)
    elsewhere = "nothing was saved in $TPUX_OUTPUT_DIR: check that its checkpoints outlive a TPU VM"
    return Report("resumed", f"the program resumed {count}", found, seen=[elsewhere] if unsaved else [])


def _how(wrong: Sequence[Interruption], start: int | None) -> str:
    """Return how a program did not resume.

    Args:
        wrong: the interruptions after which it did not.
        start: the first step of its first attempt.
    """
    steps = [(one.before.number + 1, one.after.progress.first_step) for one in wrong if one.after]
    if over := [str(number) for number, step in steps if step is not None and (start is None or step <= start)]:
        return f"it started over at attempt {', '.join(over)}"
    return wrong[0].seen[0]


def _failed(attempts: Sequence[RehearsedAttempt], ended: api.JobInfo, found: list[Interruption], what: str) -> Report:
    failed = [attempt for attempt in attempts if attempt.failure and not attempt.lost_machines]
    if not failed:
        message = f"the job failed: {ended.why}"
        return Report("failed", message, found, seen=[ended.hint] if ended.hint else [])
    last = failed[-1]
    when = f"before the first {what}" if last.number == 1 else f"after the {what} of attempt {last.number - 1}"
    reason = describe_failure(last.failure) if last.failure else ended.why
    seen = [f"it printed: {line}" for line in last.last_lines]
    return Report("failed", f"the program failed in attempt {last.number}, {when}: {reason}", found, seen=seen)


def _interruption(
    before: RehearsedAttempt,
    after: RehearsedAttempt | None,
    first: RehearsedAttempt,
    command: Mapping[str, JsonValue],
) -> Interruption:
    found = Interruption(before, after)
    if after is None:
        found.resumed = False
        found.seen.append("no attempt followed: the rule does not restart the job (job.rule)")
        return found
    if after.running_at is not None and before.ended_at is not None:
        found.down = max(0.0, after.running_at - before.ended_at)
    start, last, again = before.progress.first_step, before.progress.step, after.progress.first_step
    if start is None:
        start = first.progress.first_step
    if last is None:
        found.seen.append("its output names no step: say how to read it, such as progress.step='batch (\\d+)'")
    elif again is None:
        found.seen.append(f"attempt {after.number} printed no step: take a longer --preempt-after")
    elif start == last == again:
        found.seen.append(f"only step {last} was printed before: take a longer --preempt-after")
    else:
        found.resumed = start is None or again > start
        # A line such as `restored step 15` names what was saved, and not what was done again.
        restored = any(is_about_a_resume(line) and re.search(rf"\b{again}\b", line) for line in after.printed)
        found.lost_steps = max(0, last - again + (0 if restored else 1))
        if start == again:
            longer = "save more often, or take a longer --preempt-after"
            found.seen.append(f"nothing was saved in attempt {before.number}: {longer}")
        elif not found.resumed:
            found.seen.append(f"attempt {after.number} begins before attempt {before.number}, which began with {start}")
    if found.resumed is not True:
        found.seen += _evidence(before, after, command)
    return found


def _evidence(before: RehearsedAttempt, after: RehearsedAttempt, command: Mapping[str, JsonValue]) -> list[str]:
    """Return what speaks against a resume."""
    seen = []
    if after.progress.first_step is not None:
        seen.append(f"the first step after the resume is {after.progress.first_step}")
    if not before.files:
        seen.append(f"no file in $TPUX_OUTPUT_DIR was written before the end of attempt {before.number}")
    if before.elsewhere:
        names = ", ".join(before.elsewhere[:_SHOWN_FILES]) + (", ..." if before.elsewhere[_SHOWN_FILES:] else "")
        seen.append(f"it wrote to the home directory, which a preemption deletes: {names}")
    if not after.resumes:
        pattern = command.get("checkpoint")
        why = f": nothing matches command.checkpoint, {pattern}" if pattern else ""
        seen.append(f"attempt {after.number} was started from scratch (TPUX_RESUME=0){why}")
    script = f"{command.get('cmd') or command.get('run') or ''} {command.get('env') or ''}"
    if not any(command.get(key) for key in _KEYS) and not any(name in script for name in _VARIABLES):
        seen.append(
            "command has no resume_args, resume_cmd or stage_args, and its script names no variable of a resume"
        )
    if after.printed:
        seen.append(f"it printed: {after.printed[0]}")
    return seen


def compare(pattern: str, rehearsed: Sequence[str], undisturbed: Sequence[str], tolerance: float | None) -> Comparison:
    """Compare the last value that each run printed.

    Args:
        pattern: a text with `{value}` in it.
        rehearsed: the lines of the run that was disturbed, of all attempts.
        undisturbed: those of the other run.
        tolerance: the largest relative difference; None: the texts must be the same.
    """
    one, other = last_value(pattern, rehearsed), last_value(pattern, undisturbed)
    return Comparison(pattern, one, other, _equal(one, other, tolerance))


def last_value(pattern: str, lines: Sequence[str]) -> str | None:
    """Return the last text in the place of `{value}`, None if no line matches."""
    parts = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in pattern.split("{value}", 1)]
    found = None
    for line in lines:
        for match in re.finditer(r"([^\s,;]+)".join(parts), line):
            found = match[1]
    return found


def _equal(one: str | None, other: str | None, tolerance: float | None) -> bool:
    if one is None or other is None:
        return False
    if one == other or tolerance is None:
        return one == other
    try:
        return math.isclose(float(one), float(other), rel_tol=tolerance)
    except ValueError:
        return False
