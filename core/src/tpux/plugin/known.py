"""The words that tpux' own plugins give to a config, so that a hint can say what to install."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

DIST_OF = {
    "local": "tpux-plugin-local",
    "tpu-vm": "tpux-plugin-gcp",
    "queued-resources": "tpux-plugin-gcp",
    "hosts": "tpux-plugin-ssh",
    "ssh": "tpux-plugin-ssh",
    "gcsfuse": "tpux-plugin-gcsfuse",
    "docker": "tpux-plugin-docker",
    "conda": "tpux-plugin-conda",
    "venv": "tpux-plugin-venv",
    "wandb": "tpux-plugin-wandb",
    "brevo_email": "tpux-plugin-brevo",
    "emulator": "tpux-plugin-emulator",
}
"""Word of a config (a section, a module, an allocator, a listener), to the dist whose plugin knows it."""

LISTENERS = frozenset({"wandb", "brevo_email"})
"""Words whose section alone puts them to work; nothing else in a config selects them."""


def closest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that `word` is most likely a misspelling of, None where none is near."""
    close = difflib.get_close_matches(word, sorted(choices), n=1)
    return close[0] if close else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`did you mean 'docker'?`, or an empty string where no choice is near."""
    close = closest(word, choices)
    return f"did you mean {close!r}?" if close else ""


def install_hint(word: str, installed: Iterable[str]) -> str:
    """The hint for a word that no installed plugin has: what to install, or what was meant."""
    if dist := DIST_OF.get(word):
        return f"pip install {dist}"
    choices = {*installed, *DIST_OF}
    close = closest(word, choices)
    install = f" (pip install {DIST_OF[close]})" if close in DIST_OF and close not in set(installed) else ""
    return f"did you mean {close!r}?{install}" if close else f"installed are {', '.join(sorted(installed)) or 'none'}"
