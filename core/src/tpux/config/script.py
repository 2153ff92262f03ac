"""Where the arguments of a resumed attempt go: behind one simple command, or where a script names $TPUX_RESUME_ARGS."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from tpux.errors import Problem

if TYPE_CHECKING:
    from tpux.config.document import Document
    from tpux.model.sections import CommandSection

_RESUME_ARGS = re.compile(r"\$\{?TPUX_RESUME_ARGS\b")
_COMMENT = re.compile(r"(?m)(^|(?<=\s))#.*$")
_REDIRECTIONS = frozenset({"<", ">", ">>", ">|", "<>", "<&", ">&", "&>", "&>>", "<<<"})
_SHELL_COMMAND = re.compile(r"(?:\S*/)?(bash|dash|sh|zsh)\s+(?:-\w+\s+)*-\w*c\s(?!.*\$[@*1{])", re.DOTALL)
"""A shell with a script of its own, which reads no arguments."""


def check_arguments(command: CommandSection, document: Document, problems: list[Problem]) -> None:
    """Check that arguments which are appended in a later attempt reach the program, hours before they are."""
    scripts = {"cmd": command.cmd, "resume_cmd": command.resume_cmd or ""}
    resumed = "resume_cmd" if command.resume_cmd else "cmd"
    for key, arguments, appended_to in (
        ("resume_args", command.resume_args, [resumed]),
        ("stage_args", command.stage_args, [name for name, text in scripts.items() if text]),
    ):
        for name in appended_to if arguments else ():
            if not places_arguments(scripts[name]) and not is_one_command(scripts[name]):
                message = f"command.{key} would be appended to command.{name}, which is more than one simple command"
                hint = "write $TPUX_RESUME_ARGS in the script where the arguments belong"
                problems.append(Problem(document.span("command", key).location, message, hint))


def places_arguments(script: str) -> bool:
    """Return whether a script names $TPUX_RESUME_ARGS outside of comments: then nothing is appended to it."""
    return _RESUME_ARGS.search(_COMMENT.sub("", script)) is not None


def is_one_command(script: str) -> bool:
    """Return whether a script is one simple command, so that appended arguments are its own. In doubt it is not."""
    text = script.strip().replace("\\\n", " ")
    if "\n" in text or text.endswith("\\"):
        return False
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:  # an open quote: bash reports it
        return True
    operators = {word for word in words if not word.strip("();<>|&")}
    comments = any(word.startswith("#") for word in words)
    own_script = any(_SHELL_COMMAND.match(text, at.start()) for at in re.finditer(r"(?<!\S)\S", text))
    return operators <= _REDIRECTIONS and not comments and not own_script
