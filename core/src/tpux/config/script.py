"""The end of a shell script: whether arguments can be appended to its last command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpux.errors import Problem

if TYPE_CHECKING:
    from tpux.config.document import Document
    from tpux.model.sections import CommandSection

_RESUME_ARGS = re.compile(r"\$\{?TPUX_RESUME_ARGS\b")

_TOKEN = re.compile(
    r"""(?P<comment>(?<![^\s;&|()])\#[^\n]*)
    |(?P<redirection><<<|&>|[<>]&)
    |<<-?\s*(?P<heredoc>'[^']+'|"[^"]+"|\\?[\w.-]+)
    |(?P<operator>\|\||&&|\|&|;;|[|&;\n])""",
    re.VERBOSE,
)
_OPENING = re.compile(r"\$\(|\$\{|[('\"`]")
_CLOSING = {"$(": ")", "${": "}", "(": ")", "'": "'", '"': '"', "`": "`"}
_COMPOUND = re.compile(r"(done|fi|esac|\})(?![\w-])|(\()")
_BUILTIN = re.compile(
    r"(alias|bg|bind|break|caller|cd|compgen|complete|compopt|continue|declare|dirs|disown|enable|exit|export|fc|fg"
    r"|getopts|hash|help|history|jobs|kill|let|local|logout|mapfile|popd|pushd|pwd|read|readarray|readonly|return|set"
    r"|shift|shopt|suspend|test|times|trap|type|typeset|ulimit|umask|unalias|unset|wait)(?![^\s<>])"
)
"""Commands that would take the arguments for their own: builtins of bash, without those that run something."""
_NO_PROGRAM = re.compile(
    r"(:|echo|false|printf|true|cat|chmod|cp|date|df|du|gsutil|gzip|ls|ln|mkdir|mv|rm|rmdir|rsync|scp|sleep|sync|tar|tee"
    r"|touch)(?![^\s<>])"
)
"""Commands that have no use for arguments that a program before them needs; some fail with an unknown option."""
_RUN_COMMANDS = frozenset({"!", "time", "command", "builtin", "exec"})
"""What may stand before the name of a program, and runs it with its arguments."""
_ASSIGNMENT = re.compile(r"\w+(\[[^\]]*\])?\+?=")
_REDIRECTION = re.compile(r"(\d+|\{\w+\})?(<<<|&>>?|>>|>\||<>|[<>]&|[<>](?!\())")
_SHELL_COMMAND = re.compile(r"(?:\S*/)?(bash|dash|sh|zsh)\s+(?:-\w+\s+)*-\w*c\s(?!.*\$[@*1{])", re.DOTALL)
"""A shell with a script of its own, which reads no arguments."""
_TEST = re.compile(r"(!\s+)?\[\s|.*\s\]\]$", re.DOTALL)
"""`[` or `[[`, of which only what follows the last `&&` may be here."""
_AT_END = {
    "|": "a pipe, whose last program would get them",
    "|&": "a pipe, whose last program would get them",
    "||": "an alternative (||), which would get them",
}


class _OpenQuoteError(Exception):
    """A quote or a parenthesis is open at the end of the script."""


def check_arguments(command: CommandSection, document: Document, problems: list[Problem]) -> None:
    """Check that arguments which are appended in a later attempt reach the program, hours before they are."""
    scripts = {"cmd": command.cmd, "resume_cmd": command.resume_cmd or ""}
    resumed = "resume_cmd" if command.resume_cmd else "cmd"
    for key, arguments, appended_to in (
        ("resume_args", command.resume_args, [resumed]),
        ("stage_args", command.stage_args, [name for name, text in scripts.items() if text]),
    ):
        for name in appended_to if arguments else ():
            if not places_arguments(scripts[name]) and (problem := problem_at_end(scripts[name])):
                message = f"command.{key} would be appended to command.{name}, but {problem}"
                hint = "write $TPUX_RESUME_ARGS in the script where the arguments belong"
                problems.append(Problem(document.span("command", key).location, message, hint))


def places_arguments(script: str) -> bool:
    """Return whether a script names $TPUX_RESUME_ARGS outside of comments: then nothing is appended to it."""
    try:
        return _RESUME_ARGS.search(_without_comments(script)) is not None
    except _OpenQuoteError:
        return _RESUME_ARGS.search(script) is not None


def problem_at_end(script: str) -> str:
    """Return why arguments that are appended to a script would not reach its program, "" if they would.

    A script with an open quote has no problem here: bash reports it.
    """
    try:
        end, last = _last_command(script.rstrip())
        prefix, command = _split_prefix(last.replace("\\\n", " ").strip())
    except _OpenQuoteError:
        return ""
    if end in _AT_END:
        return f"the script ends in {_AT_END[end]}"
    if end:
        return f"the script ends in {end}"
    if not command:
        return f"the script ends in {prefix}" if prefix else ""
    if _TEST.match(command):
        return "the script ends in a test, which would get them"
    name = _BUILTIN.match(command)
    if name is None and last.strip() != script.strip():
        name = _NO_PROGRAM.match(command)
    if name is not None:
        return f"the script ends in {name[1]!r}, which would get them"
    if shell := _SHELL_COMMAND.match(command):
        return f"the script of `{shell[1]} -c` does not read them"
    compound = _COMPOUND.match(command)
    return f"the script ends in {compound[1] or ')'!r}" if compound else ""


def _without_comments(script: str) -> str:
    """Return a script without its comments, except those in substitutions and subshells."""
    text, index, heredocs = "", 0, list[str]()
    while index < len(script):
        token = _TOKEN.match(script, index)
        after = token.end() if token else _skip(script, index)
        if token and token["heredoc"]:
            heredocs.append(token["heredoc"].strip("'\"\\"))
        elif token and token[0] == "\n" and heredocs:
            after, heredocs = _skip_heredocs(script, after, heredocs), []
        if not (token and token["comment"]):
            text += script[index:after]
        index = after
    return text


def _last_command(script: str) -> tuple[str, str]:
    """Return what the script ends in if that is no command, or what would take over its arguments; and the command."""
    end = command = ""
    index, heredocs = 0, list[str]()
    while index < len(script):
        if (token := _TOKEN.match(script, index)) is None:
            after = _skip(script, index)
            command, index = command + script[index:after], after
            continue
        text, index = token[0], token.end()
        if token["comment"]:
            end = "a comment" if index == len(script) else end
        elif token["heredoc"]:
            heredocs.append(token["heredoc"].strip("'\"\\"))
        elif token["redirection"]:
            command += text
        elif text == "\n" and heredocs:
            index, heredocs = _skip_heredocs(script, index, heredocs), []
            if index == len(script):
                end, command = "a here-document", ""
            elif end not in _AT_END or command.strip():
                end = command = ""
        elif text == "\n" and end in _AT_END and not command.strip():
            continue  # after `|` and the like the command is on one of the next lines
        else:
            end = text if text in _AT_END else f"{text!r}" if index == len(script) else ""
            command = ""
    return ("a backslash" if script.endswith("\\") and not end else end), command


def _split_prefix(command: str) -> tuple[str, str]:
    """Return what a command that names no program consists of, and the command from the name of its program on.

    Assignments and redirections may stand before the name, and so may `exec` and the like.
    """
    prefix, index, skipped, option = "", 0, False, False
    while index < len(command):
        end = _end_of_word(command, index)
        word, following = command[index:end], len(command) - len(command[end:].lstrip())
        if skipped:
            skipped = False  # the file of a redirection, or the name that `exec -a` gives
        elif redirection := _REDIRECTION.match(word):
            prefix = "a redirection" if not option else prefix
            skipped = redirection.end() == len(word)
        elif option and word.startswith("-"):
            skipped = word == "-a"
            if prefix == "'command'" and word.strip("-p"):
                return prefix, ""  # it only says what it would run
        elif word in _RUN_COMMANDS:
            prefix, option = repr(word), True
        elif _ASSIGNMENT.match(word):
            prefix = "an assignment" if not option else prefix
        else:
            return prefix, command[index:]
        index = following
    return prefix, ""


def _end_of_word(text: str, index: int) -> int:
    """Return the end of the word that begins at an index."""
    while index < len(text) and not text[index].isspace():
        index = _skip(text, index)
    return index


def _skip(script: str, index: int) -> int:
    """Return the end of a character, an escaped one, a quote, or a substitution with all that is nested in it."""
    if script[index] == "\\":
        return index + 2
    if (opening := _OPENING.match(script, index)) is None:
        return index + 1
    closing, index = _CLOSING[opening[0]], opening.end()
    literal = {"'": "\\('\"`$", '"': "'(", "}": "'("}.get(closing, "")
    while index < len(script):
        if script[index] == closing:
            return index + 1
        if closing == ")" and (token := _TOKEN.match(script, index)) and token["comment"]:
            index = token.end()  # its quotes and parentheses open and close nothing
            continue
        index = index + 1 if script[index] in literal and opening[0] != "$(" else _skip(script, index)
    raise _OpenQuoteError


def _skip_heredocs(script: str, index: int, words: list[str]) -> int:
    for word in words:
        if (end := re.compile(rf"^\t*{re.escape(word)}$", re.MULTILINE).search(script, index)) is None:
            raise _OpenQuoteError
        index = end.end()
    return index
