"""Where packages come from: the options for indexes in requirements, as pip reads them, without logins."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

# pip.pypa.io, "Requirements File Format".
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_SHORT = {"-i": "--index-url", "-f": "--find-links"}
# Each with the name that stands for it.
_LONG = {name: name for name in ("--index-url", "--extra-index-url", "--find-links", "--no-index")}
_LONG["--pypi-url"] = "--index-url"
_HOST_AND_PORT = re.compile(r"[^/@:]+:[0-9]+/")
_SCHEME = re.compile(r"[\w+.-]*://")
_ITEM = re.compile(r"-\s+")


def index_options(requirements: str) -> Iterator[str]:
    """Yield the options for indexes, each by its long name with its place.

    Args:
        requirements: the requirements, or an environment.yml, where they are in a list.
    """
    for line in _lines(requirements):
        text = _ITEM.sub("", line, count=1) if _ITEM.match(line) else line
        if text[:1] in {'"', "'"} and text.endswith(text[0]):
            text = text[1:-1]
        if text.startswith("-"):
            yield from _options(_words(text))


def place_of(url: str) -> str:
    """Return the URL of an index, or a path, without what may be a login or a token, and without a slash at its end."""
    scheme = found[0] if (found := _SCHEME.match(url)) else ""
    rest = url.removeprefix(scheme)
    before, _, after = rest.rpartition("@")
    if ":" in before and not _HOST_AND_PORT.match(rest):  # a password may contain a slash
        rest = after
    elif scheme:  # without one, an @ after the host is part of the path
        authority, slash, path = rest.partition("/")
        rest = authority.rpartition("@")[2] + slash + path
    return scheme + rest.partition("?")[0].rstrip("/")  # a token may be a parameter


def _lines(requirements: str) -> Iterator[str]:
    """Yield the lines without comments; those that end with a backslash are joined with the next one."""
    joined = ""
    for line in requirements.splitlines():
        is_comment = _COMMENT.match(line) is not None
        if line.endswith("\\") and not is_comment:
            joined += line.strip("\\")
            continue
        yield _COMMENT.sub("", f"{joined} {line}" if is_comment else joined + line).strip()
        joined = ""
    yield _COMMENT.sub("", joined).strip()


def _words(text: str) -> Iterator[str]:
    try:
        return iter(shlex.split(text))
    except ValueError:  # a quotation mark of its own
        return iter(text.split())


def _options(words: Iterator[str]) -> Iterator[str]:
    """Yield the options for indexes among the words of a line. pip accepts the beginning of a long one."""
    for word in words:
        given, _, value = word.partition("=")
        if short := _SHORT.get(word[:2]):
            yield f"{short} {place_of(word[2:] or next(words, ''))}"
        elif name := next((_LONG[each] for each in _LONG if len(given) > 2 and each.startswith(given)), ""):
            yield name if name == "--no-index" else f"{name} {place_of(value or next(words, ''))}"
