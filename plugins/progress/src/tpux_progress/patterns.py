"""The patterns by which a program's output is read, and what they find in it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tpux import Progress

_STEP = r"(?:step|iter|iteration)"
_EQUALS = r"\b[\"']?[ \t]*(?:[:=#][ \t]*)?"
_NUMBER = (  # not a part of one, such as `12k`, `1e3` or `1_000`
    r"(?:[\[(][ \t]*)?(\d{1,3}(?:,\d{3}){1,5}|\d{4,18}|\d{1,3}(?!,\d{3}(?!\d)))(?![a-z\d_]|\.\d|[ \t]?%)"
)
_TOTALS = ("total", "max", "maximum", "num", "per", "every", "warmup")
_UNITS = ("s", "ms", "sec", "secs", "time", "tokens", "samples")
_NOT_A_TOTAL = "(?<!--)" + "".join(
    [rf"(?<!\b{word}[ _-])" for word in _TOTALS] + [f"(?<!(?<![a-z]){unit}/)" for unit in _UNITS]
)
"""What must not precede a step or an epoch: `max step 500`, `--steps 500`, `15ms/step 3`."""
_NOT_OF_AN_EVALUATION = "".join(
    rf"(?<!\b{word}[ _/-])" for word in ("val", "valid", "validation", "eval", "evaluation", "test")
)
PATTERNS: Mapping[str, str] = {
    # A plural that a word precedes is a total, too: `Total optimization steps = 3,750`, `eval steps: 50`.
    "step": rf"(?i)\b(?=[gtsi]){_NOT_A_TOTAL}"
    rf"(?:global[_ ]{_STEP}s?|{_NOT_OF_AN_EVALUATION}(?:(?:train_)?{_STEP}|(?<![a-z][ _-]){_STEP}s)){_EQUALS}{_NUMBER}",
    # Such as `Total optimization steps = 3,750` and `max_steps: 500`; what stands after a step counts first.
    "total": r"(?i)\b(?:total|max|maximum|num)[ _-](?:train(?:ing)?[ _-]|optimization[ _-])?"
    rf"{_STEP}s{_EQUALS}{_NUMBER}",
    "epoch": rf"(?i)\b(?=ep){_NOT_A_TOTAL}ep(?:och)?{_EQUALS}{_NUMBER}",
    "loss": rf"(?i)\b(?:train[_ /])?loss{_EQUALS}(nan|[-+]?inf|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)\b",
    # Not of what spares a compilation: JAX's `Persistent compilation cache hit for 'jit_step'`.
    "compiling": r"(?i)(?<!skipping )(?<!without )\bcompil(?:ing|ation)\b(?![ _-]cache)",
    "url": r"View run [^\n]{0,300}?(https?://[^\s\x1b]+)",  # Weights & Biases, and MLflow
}
"""The patterns that are used unless the section has others; the first group is the value."""
_COMPILED = (
    r"(?i)\b(?:finished|completed|done)[ ]+(?:compiling|(?:[\w+-]+[ ]+){0,2}compilation)\b"
    r"|\bcompilation\b[^\n.;]{0,200}?\b(?:finished|completed?|done|took)\b"
)
"""A line which says that a compilation has ended, such as JAX's `Finished XLA compilation of jit(step) in 12.5 sec`."""
LONGEST_URL = 300
_OF_STEPS = re.compile(rf"[ \t]*(?:/|of\b)[ \t]*{_NUMBER}", re.IGNORECASE)
"""What follows a step that is printed with the number of all steps: `step 310/1000`, `step 310 of 1000`."""


def read_progress(text: str, patterns: Mapping[str, str | None]) -> Progress:
    """Return what the last lines of a program's output say.

    Args:
        text: the end of the output.
        patterns: a regular expression for each quantity; None leaves it out.
    """
    found = {name: _last(pattern, text) for name, pattern in patterns.items() if pattern and name != "url"}
    compiling, loss, total = found.pop("compiling", None), found.get("loss"), found.pop("total", None)
    compiled = _last(_COMPILED, text) if compiling else None
    others = [compiled.end() if compiled else -1, *(match.start() for match in found.values() if match)]
    compiles = compiling is not None and max(others) < compiling.start()
    step, epoch, url = _number(found.get("step")), _number(found.get("epoch")), find_url(text, patterns.get("url"))
    last = found.get("step") if patterns.get("total") else None
    if last and (of := _OF_STEPS.match(text, last.end(last.re.groups and 1))):
        total = of
    return Progress(step, epoch, _value(loss) if loss else "", compiles, url=url, total=_number(total))


def find_url(text: str, pattern: str | None) -> str:
    """Return the last URL of a run in the complete lines of a program's output, "" if there is none."""
    found = _last(pattern, text[: text.rfind("\n") + 1]) if pattern else None
    return _value(found, LONGEST_URL) if found else ""


def first_step(text: str, pattern: str | None) -> int | None:
    """Return the first step that the beginning of a program's output names, None if it names none."""
    return _number(re.search(pattern, text, re.MULTILINE)) if pattern else None


def _last(pattern: str, text: str) -> re.Match[str] | None:
    found = None
    for found in re.finditer(pattern, text, re.MULTILINE):  # noqa: B007  (the last one)
        pass
    return found


def _value(match: re.Match[str], longest: int = 40) -> str:
    """Return the first group of a match, or all of it if the pattern has none, without what a terminal would act on."""
    text = match[1] if match.re.groups else match[0]
    return "".join(char for char in text or "" if char.isprintable())[:longest]


def _number(match: re.Match[str] | None) -> int | None:
    digits = _value(match).replace(",", "").strip() if match else ""
    return int(digits) if digits.isascii() and digits.isdecimal() else None


def ends_compilation(text: str) -> bool:
    """Return whether a line says that a compilation has ended."""
    return re.search(_COMPILED, text) is not None
