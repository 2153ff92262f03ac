"""From a config to a job on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tpux import config
from tpux.clock import Clock, SystemClock
from tpux.errors import Exit, TpuxError, UsageError
from tpux.plugin import spec
from tpux.plugin.failures import Finding
from tpux.plugin.job import Job, selected_plugins
from tpux.plugin.machines import JsonValue
from tpux.plugin.manager import Plugins
from tpux.store import Files, Store, files

if TYPE_CHECKING:
    from tpux.plugin.sections import TpuSection
    from tpux.store.record import Record


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
        TpuxError: a plugin's preflight found what would make the job fail.
        OSError: the store cannot be written.
    """
    plugins = Plugins()
    loaded = config.load(path, overrides, plugins=plugins)
    for warning in loaded.warnings:
        warn(f"warning: {warning}")
    refuse(preflight(store, loaded, plugins), warn=warn)

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
        return content, {**_facts(loaded, job, store.user), "name": _name(resolved)}

    return store.create(build, at=(clock or SystemClock()).now())


def _facts(loaded: config.Loaded, job: str, user: str) -> dict[str, JsonValue]:
    tpu = cast("TpuSection", loaded.sections["tpu"])
    return {
        "id": job,
        "user": user,
        "accelerator": tpu.accelerator if not isinstance(tpu.accelerator, list) else tpu.accelerator[0],
        "zone": tpu.first_zone(),
        "allocator": loaded.allocator,
        "workers": loaded.workers or 0,
    }


def _name(resolved: Mapping[str, JsonValue]) -> JsonValue:
    """The job's name, the id in it filled in where the config asks for that."""
    sections = cast("dict[str, dict[str, JsonValue]]", resolved["config"])
    return sections["job"]["name"]


def preflight(store: Store, loaded: config.Loaded, plugins: Plugins) -> list[Finding]:
    """Return what the selected plugins find before anything is created.

    Raises:
        TpuxError: a plugin failed.
    """
    job = draft(store, loaded)
    answers = [plugins.call_one(name, spec.preflight, job=job) for name in selected_plugins(job)]
    return [finding for findings in answers for finding in findings or []]


def draft(store: Store, loaded: config.Loaded) -> Job:
    """The job that a config would make, for plugins to look at; it is nowhere on disk."""
    return Job(
        id="000000",
        user=store.user,
        store_id=store.id,
        directory=store.jobs,
        sections=loaded.sections,
        modules=loaded.modules,
        environment=loaded.environment,
    )


def refuse(findings: Sequence[Finding], *, warn: Callable[[str], None]) -> None:
    """Tell the warnings, and stop at the errors.

    Raises:
        TpuxError: there are errors, all of them named.
    """
    for finding in findings:
        if finding.level == "warning":
            warn(f"warning: {told(finding)}")
    if errors := [told(finding) for finding in findings if finding.level == "error"]:
        raise TpuxError("\n".join(errors), exit_code=Exit.USAGE)


def told(finding: Finding) -> str:
    """A finding as people read it."""
    return str(TpuxError(finding.message, where=finding.where, hint=finding.hint))


def restore_secrets(record: Record, environ: Mapping[str, str] = os.environ) -> None:
    """Bring the secrets back that went when the job ended, for it is to start again.

    Args:
        record: a job that has ended.
        environ: where their values come from.

    Raises:
        UsageError: one is not set.
    """
    path = record.directory / "secrets.json"
    names = cast("list[str]", (files.load(record.directory / "resolved.json") or {}).get("secrets", []))
    if path.exists() or not names:
        return
    if missing := [name for name in names if name not in environ]:
        raise UsageError(
            f"the secret {missing[0]} went when the job ended",
            where=f"job {record.directory.name}",
            hint=f"set {', '.join(missing)} in the environment and try again",
        )
    # Nobody else writes it: the supervisor has let go of a job without secrets.
    files.write_atomic(path, json.dumps({name: environ[name] for name in names}).encode())
