"""What `${...}` may hold, and how it is told from what is the shell's."""

from __future__ import annotations

import re
from collections.abc import Mapping

JOB_WORDS = ("id", "user", "name", "config_dir")
"""Words of `${job.word}` that are known when a job is created."""
LATE_WORDS = ("attempt", "stage", "output_dir", "previous_output_dir")
"""Words of `${job.word}` that each attempt fills in; only the section `command` may use them."""

AT_CREATE = {f"job.{word}" for word in JOB_WORDS}
LATE = {f"job.{word}" for word in LATE_WORDS}
PATH = r"[A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*"
ENV = r"env:[A-Za-z_]\w*"
OUTSIDE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
# Outside of quotes a shell reads `\x` and `$$` as one thing each: a `${` that begins inside one is none.
IN_COMMAND = re.compile(rf"\\.|\$\$|\$\{{({ENV}|{PATH})\}}", re.DOTALL)


def fill(text: str, words: Mapping[str, str]) -> str:
    """A text of the section `command` with the late words filled in, by the same rules as at create.

    Args:
        text: the text.
        words: the value of each, such as `{"job.attempt": "2"}`; what is not in it stays as it is.
    """
    return IN_COMMAND.sub(lambda token: words.get(token[1] or "", token[0]), text)
