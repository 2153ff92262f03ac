"""The end of a program's output, and the line in it that states why the program failed."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

TAIL = 32 * 1024
"""Bytes at the end of a log that are searched: a failure is stated there, and a log may have gigabytes."""
LONGEST = 300
"""Characters of a line that are quoted."""

_BLOCK = 4096
_ENTRY = re.compile(rb"(\d+(?:\.\d+)?) (\d+)")
_HEADERS = ("Traceback (most recent call last):", '  File "')
_TRACEBACK = re.compile(r'(?P<prefix>.*?)(?:Traceback \(most recent call last\):|  File "[^"]*", line \d+)')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:$|: |:$)")
# A traceback that is printed while the program ends for another reason, or by what had started the program.
_SECONDARY = re.compile(r"Exception ignored in|Exception in thread|Error in atexit|Exception occurred in atexit")
_LAUNCHER = re.compile(r"(?:[\w.]+\.)?(?:ChildFailedError|CalledProcessError|SystemExit)\b")
# A line with which a program, or a library in it, has ended itself. The others are of programs that may have gone on.
# Each alternative begins with a character, for which re looks fast.
_FATAL = (
    r"Fatal Python error: |F(?<!\wF)\d{4,8} \d\d:\d\d:\d\d|: F \S+:\d+\]|Check fail(?:ed|ure)\b|terminate called "
    r"|: Assertion `.*' failed\.|free\(\): |malloc\(\): |realloc\(\): |munmap_chunk\(\): |stack smashing detected"
    r"|double free or corruption|corrupted (?:size|double-linked list)"
    r"|Segmentation fault|Bus error|Illegal instruction|panicked at"
)
# What a line of a failed step says, the likeliest cause last; that is not said of what is known to be a consequence.
_HTTP = r"(?:40[1347]|429|50[0234])\b"
_REASONS = (
    r"(?:^|\W)(?:error|ERROR|E|fatal|Error)\b:? |(?:Error|Exception): ",
    (
        rf"\b(?:HTTP|[Ee]rror|status|code|failed|requests?)\b.{{0,60}}\b{_HTTP}"
        rf"|\b{_HTTP}.{{0,3}}\s(?:[Ee]rror|Client|Server|Unauthorized|Forbidden|Not Found|Too Many)"
    ),
    (
        r"(?:^|\W)(?:[A-Za-z_.]*(?:Error|Exception)|ERROR|[Ee]rror|E|fatal(?: error)?|[Dd]aemon|curl|toomanyrequests):"
        r" \S|: (?:command )?not found$|^╰─▶ "
    ),
)
_CONSEQUENCE = re.compile(
    r"No matching distribution|Could not find a version|EOFError|Exception:$|exited?[- ]with|exit (?:code|status)"
    r"|returned non-zero|Failed to (?:build|fetch|download)|Unable to (?:fetch some|acquire the dpkg)|Retrying \("
)
_NO_REASON = re.compile(
    r"--help|^https?://|^[\s^~|]*$|^\[(?:notice|end)|^(?:note|hint|N|For more|See|Run '|File \")\b", re.IGNORECASE
)
_WAY_OUT = re.compile(r"run the following", re.IGNORECASE)
# A line that says how far a program is, unless it says that something is wrong.
_PROGRESS = re.compile(
    r"(?:step|iter(?:ation)?|epoch|batch|update|round|loss|perplexity|ppl|acc(?:uracy)?|lr|learning_rate)s?\b['\"\])]*\s*"
    r"[:=#]?\s*[\[(]?[-+]?(?:\d|nan\b|inf\b)"
    r"|(?<![\w/.])\d+\s*/\s*(?:\d+|\?)(?![\w/.])|\b\d+ of \d+\b|\d\s?%"
    r"|\b(?:it|examples|samples|steps?|tokens|batch(?:es)?)/s|\bs/it\b|\b\d+m?s/step",
    re.IGNORECASE,
)
_WRONG = re.compile(
    r"error|fail|fatal|abort|cannot|can't|could not|unable|invalid|missing|not |no such|denied|refused|exceed|exhaust"
    r"|out of (?:memory|range|disk)|full\b|exception|assert|kill|usage:|loss is",
    re.IGNORECASE,
)
_MAYBE_FATAL = r": (command )?not found$|\bFATAL\b|\b[Ff]atal(?: error)?: |^Killed$"


def tail(log: Path, size: int = TAIL, until: float | None = None) -> str:
    """Return the end of a log, "" if there is none; a progress bar's states are lines of their own.

    Args:
        log: the log.
        size: how many bytes are read; an incomplete first line is left out.
        until: in seconds since the epoch; what was fetched later is left out, as far as that is known.
    """
    try:
        content, start = _end_of(log, size)
        if until is not None:
            with suppress(FileNotFoundError):
                for _, length in itertools.takewhile(lambda entry: entry[0] > until, newest_times(log)):
                    content = content[: max(0, length - start)]
    except FileNotFoundError:
        return ""
    return content.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def read_times(log: Path) -> list[tuple[float, int]]:
    """Return the entries of the file `.times` beside a log: a time, and the length that the log had then.

    Raises:
        FileNotFoundError: there is no such file.
    """
    return list(newest_times(log))[::-1]


def newest_times(log: Path) -> Iterator[tuple[float, int]]:
    """Yield the same entries from the newest on: those of a week take long to read, and the end of a log needs few.

    Raises:
        FileNotFoundError: there is no such file.
    """
    with log.with_suffix(".times").open("rb") as file:
        begin, rest = file.seek(0, 2), b""
        while begin:
            end, begin = begin, max(0, begin - _BLOCK)
            file.seek(begin)
            lines = (file.read(end - begin) + rest).split(b"\n")
            rest = lines.pop(0) if begin else b""  # it begins in the block before
            for line in reversed(lines):
                if entry := _ENTRY.fullmatch(line):
                    yield float(entry[1]), int(entry[2])


def earliest_time(log: Path, line: str) -> float | None:
    """Return the earliest time at which a line of the end of a log may have been fetched; None if that is unknown.

    Args:
        log: the log.
        line: as `find_line` returns it for the text of `tail`.
    """
    try:
        content, start = _end_of(log, TAIL)
    except FileNotFoundError:
        return None
    first = line.partition("\n")[0].rstrip()
    for piece in re.finditer(rb"[^\r\n]+", content):
        if piece[0].decode(errors="replace").strip()[:LONGEST].rstrip() == first:
            end = start + piece.end()
            with suppress(FileNotFoundError):
                return next((at for at, length in newest_times(log) if length < end), None)
    return None


def _end_of(log: Path, size: int) -> tuple[bytes, int]:
    """Return the end of a log without an incomplete first line, and the offset at which it begins.

    Raises:
        FileNotFoundError: there is no log.
    """
    with log.open("rb") as file:
        start = max(0, file.seek(0, 2) - size)
        file.seek(start)
        content = file.read(size)
    whole = re.search(rb"\r\n|[\r\n]", content) if start else None
    return (content[whole.end() :], start + whole.end()) if whole else (content, start)


def statement(text: str, code: int | None) -> str:
    """Return the line that states why a program failed: its exception, its fatal error, else its last line.

    A last line that only says how far the program came is no cause: the result is "" then.

    Args:
        text: the end of its output.
        code: its exit code. A program that was ended by a signal states that as a fatal error, any other one mostly
            as an exception.
    """
    ways = (fatal_error, exception) if code is not None and code > 128 else (exception, fatal_error)
    found = next(filter(None, (way(text) for way in ways)), "") or find_line(text, _MAYBE_FATAL)
    last = _last_line(text.split("\n"))[:LONGEST]
    return found or ("" if _PROGRESS.search(last) and not _WRONG.search(last) else last)


def exception(text: str) -> str:
    """Return the exception line of the last traceback; one that only follows from another failure counts less."""
    if not any(header in text for header in _HEADERS):  # lines are slow to match
        return ""
    lines, secondary = text.split("\n"), ""
    for number in range(len(lines) - 1, -1, -1):
        if not (header := _TRACEBACK.fullmatch(lines[number])):
            continue
        if not (found := _exception_of(lines[number + 1 :], header["prefix"])):
            continue
        if _LAUNCHER.match(found) or (number and _SECONDARY.search(lines[number - 1])):
            secondary = secondary or found
        else:
            return found[:LONGEST]
    return secondary[:LONGEST]


def fatal_error(text: str) -> str:
    """Return the first line with which a program, or a library in it, has ended itself; "" if there is none."""
    return find_line(text, _FATAL)


def find_line(text: str, pattern: str) -> str:
    """Return the first line of a text that a regular expression matches, without blanks around it; "" if none does.

    Args:
        text: what is searched, such as a program's output.
        pattern: the regular expression; `^` and `$` match at each line.
    """
    if (match := re.compile(pattern, re.MULTILINE).search(text)) is None:  # re keeps what it has compiled
        return ""
    begin, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    return text[begin : end if end >= 0 else len(text)].strip()[:LONGEST]


def step_reason(text: str) -> list[str]:
    """Return the line of a step's output that states why it failed, and the command that it names as the way out.

    Returns:
        Nothing if no line states a reason.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    rank, number = max(((_reason_rank(line), number) for number, line in enumerate(lines)), default=(0, 0))
    if not rank:
        return []
    found = [lines[number][:LONGEST]]
    ways = (line for before, line in itertools.pairwise(lines[number:]) if _WAY_OUT.search(before))
    return found + [line[:LONGEST] for line in itertools.islice(ways, 1)]


def _reason_rank(line: str) -> int:
    if _NO_REASON.search(line):
        return 0
    ranks = {rank for rank, pattern in enumerate(_REASONS, 1) if re.search(pattern, line)}
    return max(ranks - {len(_REASONS)} if _CONSEQUENCE.search(line) else ranks, default=0)


def describe_code(code: int) -> str:
    """Return an exit code in words, with the signal that it stands for: `exit code 139 (SIGSEGV)`."""
    try:
        return f"exit code {code} ({signal.Signals(code - 128).name})" if code > 128 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"


def _exception_of(lines: list[str], prefix: str) -> str:
    """Return the exception that ends a traceback.

    Args:
        lines: those after its header.
        prefix: what a launcher, such as torchrun, puts before each line.
    """
    for line in lines:
        text = line.removeprefix(prefix)
        if text.strip() and not text.startswith(" "):
            return text.strip() if _EXCEPTION.match(text) else ""
    return ""


def _last_line(lines: list[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
