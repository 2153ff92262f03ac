"""The arguments of an attempt in a shell script: where it has them, or after its one command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tpux.config.arguments import program_words
from tpux.config.interpolate import substitute

if TYPE_CHECKING:
    from tpux.config.resolved import Loaded
    from tpux.model.sections import CommandSection

_QUOTED_OR_COMMENT = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?<![^\s;&|()])(?P<comment>\#[^\n]*)""", re.DOTALL)
_EXPANSION = r"""\$(?:\([^()'"`\\\#\n]*\)|\{[^{}()'"`\\\n]*\})"""
_ONE_COMMAND = re.compile(
    rf"""(?:'[^']*'|"(?:\\.|{_EXPANSION}|\$(?![({{])|[^"\\`$])*"|\\[^\n]|{_EXPANSION}
    |[<>]&\d|&>|>|<(?!<)
    |\$(?![({{'"])|(?<=[^\s<>&])\#|[^\n;&|<>()'"`\\$\#])+(?<![<>])""",
    re.VERBOSE | re.DOTALL,
)
_DETACHED = re.compile(
    r"(?<![&>])&\s*$|\bdisown\b|\btmux\b.*\snew(?:-session)?\s(?:.*\s)?-\w*d|\bscreen\s+(?:-\S+\s+)*-(?:dm|d\s+-m)"
    r"|\bsetsid\s+(?:-\w*f|--fork)"
)
"""The last command of a script that does not wait for what it starts."""
_OWN_SCRIPT = re.compile(r"(?<![^\s/'\"])(?:eval\s|(?:bash|dash|ksh|sh|zsh)['\"]?\s(?:.*\s)?['\"]?-\w*c)", re.DOTALL)


def insert_arguments(script: str, arguments: Mapping[str, str]) -> str:
    """Return a script with its arguments where it has `${args}`, `${resume_args}` and `${stage_args}`, else appended.

    Args:
        script: the script.
        arguments: what the config has of the three, by name and in this order; "" in an attempt without it.
    """
    appended = [text for name, text in arguments.items() if text and not _has_arguments(script, name)]
    placed = substitute(script, arguments)
    return " ".join([placed.rstrip(), *appended]) if appended else placed


def check_arguments(loaded: Loaded, command: CommandSection) -> None:
    """Check that the arguments of a later attempt reach the program, hours before it starts."""
    scripts = {"cmd": command.cmd, "resume_cmd": command.resume_cmd or ""}
    resumed = "resume_cmd" if command.resume_cmd else "cmd"
    given, every = "args" if program_words(command) else "", [name for name, text in scripts.items() if text]
    for key, names in (given, every), ("resume_args", [resumed]), ("stage_args", every):
        for name in names if key and (key == given or getattr(command, key)) else ():
            if key == given and _is_quoted(scripts[name]):
                message = f"${{{key}}} is within quotes in command.{name}, and its words have quotes of their own"
                loaded.error(("command", name), message, "write it outside of quotes: python train.py ${args}")
            elif not _has_arguments(scripts[name], key) and not is_one_command(scripts[name]):
                message = f"command.{key} cannot be appended to command.{name}: it is not one simple command"
                hint = f"write ${{{key}}} in it where the arguments belong, as in: python train.py ${{{key}}} | tee log"
                loaded.error(("command", key), message, hint)


def warn_of_detached(loaded: Loaded, command: CommandSection) -> None:
    """Warn of a script whose last command puts the program into the background: the attempt ends with the script."""
    for name, script in (("cmd", command.cmd), ("resume_cmd", command.resume_cmd or "")):
        code = _QUOTED_OR_COMMENT.sub(lambda token: "" if token["comment"] else token[0], script)
        lines = [line.strip() for line in code.replace("\\\n", " ").splitlines() if line.strip()]
        if lines and _DETACHED.search(lines[-1]):
            message = f"the last command of command.{name} puts the program into the background: {lines[-1]}"
            loaded.warn(("command", name), message, "start it in the foreground: tpux needs neither nohup nor tmux")


def is_one_command(script: str) -> bool:
    """Return whether a script certainly is one command on one line, which gets what is appended to it.

    A line may be continued by a backslash, and have quotes, references, simple substitutions and redirections.
    """
    line = re.sub(r"(?<!\\)\\\n", " ", script.strip())
    return _ONE_COMMAND.fullmatch(line) is not None and _OWN_SCRIPT.search(line) is None


def _has_arguments(script: str, key: str) -> bool:
    """Return whether a script names `${key}` or $TPUX_RESUME_ARGS outside of comments."""
    code = _QUOTED_OR_COMMENT.sub(lambda token: "" if token["comment"] else token[0], script)
    if substitute(code, {key: ""}) != code:
        return True
    return key != "args" and re.search(r"\bTPUX_RESUME_ARGS\b", code) is not None


def _is_quoted(script: str) -> bool:
    """Return whether a script has `${args}` within quotes."""
    quoted = [token[0] for token in _QUOTED_OR_COMMENT.finditer(script) if token[0][0] in "\"'"]
    return any(substitute(text, {"args": ""}) != text for text in quoted)
