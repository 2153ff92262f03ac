"""The names that tpux' own plugins have in a config, so that a hint can say what to install."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tpux.plugin.synonyms import meant

RULES = ("pre", "resume", "reapply", "rerun", "pass")
"""The values of `job.rule` that core itself implements."""

RESERVED = frozenset({"job", "tpu", "setup", "command", "watch", "solve", "plugins", *RULES})
"""Names that no plugin may have: core's sections and rules."""

DIST_OF = {
    "local": "tpux-plugin-local",
    "tpu-vm": "tpux-plugin-gcp",
    "queued-resources": "tpux-plugin-gcp",
    "hosts": "tpux-plugin-ssh",
    "pool": "tpux-plugin-pool",
    "ssh": "tpux-plugin-ssh",
    "code": "tpux-plugin-code",
    "doctor": "tpux-plugin-doctor",
    "gcsfuse": "tpux-plugin-gcsfuse",
    "script": "tpux-plugin-script",
    "docker": "tpux-plugin-docker",
    "conda": "tpux-plugin-conda",
    "venv": "tpux-plugin-venv",
    "libtpu": "tpux-plugin-libtpu",
    "log": "tpux-plugin-log",
    "progress": "tpux-plugin-progress",
    "storage": "tpux-plugin-storage",
    "limits": "tpux-plugin-history",
    "wandb": "tpux-plugin-wandb",
    "notify": "tpux-plugin-notify",
    "brevo_email": "tpux-plugin-notify",
    "sheets": "tpux-plugin-sheets",
    "emulator": "tpux-plugin-emulator",
}
"""The name of a section, module, allocator or listener, and the dist that provides it."""

DIST_OF_COMMAND = {
    **dict.fromkeys(
        (*(f"plugins.{name}" for name in ("new", "package", "search", "show", "check", "trace")), "config.schema"),
        "tpux-plugin-testing",
    ),
    **{
        name: f"tpux-plugin-{name}"
        for name in ("emulator", "history", "info", "monitor", "notify", "rehearse", "sweep", "tasks", "web")
    },
    **dict.fromkeys(("dev", "sync"), "tpux-plugin-code"),
    "storage": "tpux-plugin-storage",
    **dict.fromkeys(("ack", "billing", "quota", "reapply", "tpu"), "tpux-plugin-gcp"),
    **dict.fromkeys(("ssh", "ssh-config", "tunnel"), "tpux-plugin-ssh"),
    **dict.fromkeys(("exec", "cp"), "tpux-plugin-shell"),
    **dict.fromkeys(("hold", "release", "find"), "tpux-plugin-pool"),
    **dict.fromkeys(("check", "diagnose", "solve"), "tpux-plugin-doctor"),
    **dict.fromkeys(("supervisor.install", "supervisor.uninstall"), "tpux-plugin-autostart"),
}
"""The commands that another dist adds to core or to its groups, and that dist."""

LISTENERS = frozenset({"libtpu", "log", "wandb", "notify", "brevo_email", "sheets"})
"""Detectors and listeners that are active as soon as their section is present; nothing else selects them."""

ALWAYS_USED = frozenset({"limits", "progress"})
"""Plugins that use their section in every job: it is an error while they are not installed."""


def closest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that `word` is most likely a misspelling of, None if none is similar."""
    close = difflib.get_close_matches(word, sorted(choices), n=1)
    return close[0] if close else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `did you mean 'docker'?`, "" if no choice is similar."""
    close = closest(word, choices)
    return f"did you mean {close!r}?" if close else ""


def install_hint(word: str, installed: Iterable[str]) -> str:
    """Return the hint for a name that no installed plugin has: what to install, or the likely correct spelling."""
    if dist := DIST_OF.get(word):
        return f"pip install {dist}"
    choices = {*installed, *DIST_OF}
    close = meant("plugins", word) or closest(word, choices)
    install = f" (pip install {DIST_OF[close]})" if close in DIST_OF and close not in set(installed) else ""
    return f"did you mean {close!r}?{install}" if close else f"installed are {', '.join(sorted(installed)) or 'none'}"
