"""From a config to a job on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tpux import config
from tpux.clock import Clock, SystemClock
from tpux.machines import JsonValue
from tpux.plugins import Plugins
from tpux.store import Files, Store

if TYPE_CHECKING:
    from tpux.sections import JobSection, TpuSection
    from tpux.store.jobs import Record


def create_job(
    store: Store,
    path: Path,
    overrides: Sequence[str],
    *,
    warn: Callable[[str], None],
    clock: Clock | None = None,
) -> Record:
    """Make a job of a config; nothing else is created yet.

    Args:
        store: where the job is kept.
        path: the config.
        overrides: `key=value` each.
        warn: told of what is odd but no mistake.
        clock: what time it is.

    Raises:
        ConfigError: the config has mistakes, all of them named.
        OSError: the store cannot be written.
    """
    loaded = config.load(path, overrides, plugins=Plugins())
    for warning in loaded.warnings:
        warn(f"warning: {warning}")

    def build(job: str) -> tuple[Files, Mapping[str, JsonValue]]:
        copies = {file: Path("files") / f"{number}-{file.name}" for number, file in enumerate(loaded.files)}
        directory = store.jobs / store.user / job
        resolved = loaded.resolved(
            id=job, user=store.user, files={file: directory / copy for file, copy in copies.items()}
        )
        content = {
            "config.yaml": (loaded.text.encode(), 0o600),
            "resolved.json": (json.dumps(resolved, indent=1).encode(), 0o600),
            "secrets.json": (json.dumps(dict(loaded.secrets)).encode(), 0o600),
            **{str(copy): (file.read_bytes(), 0o600) for file, copy in copies.items()},
        }
        return content, _facts(loaded, job, store.user)

    return store.create(build, at=(clock or SystemClock()).now())


def _facts(loaded: config.Loaded, job: str, user: str) -> dict[str, JsonValue]:
    job_section, tpu = cast("JobSection", loaded.sections["job"]), cast("TpuSection", loaded.sections["tpu"])
    return {
        "id": job,
        "user": user,
        "name": job_section.name,
        "accelerator": tpu.accelerator if not isinstance(tpu.accelerator, list) else tpu.accelerator[0],
        "zone": tpu.zone if not isinstance(tpu.zone, list) else tpu.zone[0],
        "allocator": loaded.allocator,
        "workers": loaded.workers or 0,
    }
