"""Create a job on disk from a config, after the plugins' preflight."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import config, env
from tpux.clock import Clock, SystemClock
from tpux.errors import UsageError
from tpux.lifecycle.new_config import config_files, preflight, report_arguments, report_findings
from tpux.lifecycle.open import draft_job
from tpux.lifecycle.transfer import open_giver, require_same_machines
from tpux.lifecycle.waits_for_jobs import require_other_jobs
from tpux.model.events import Created
from tpux.plugin.manager import Plugins
from tpux.store import Files, Store
from tpux.store.hooks import TRACE, HookObserver
from tpux.store.tags import FILE as TAGS
from tpux.store.tags import dump as dump_tags
from tpux.store.tags import load as load_tags

if TYPE_CHECKING:
    from tpux.store.record import Record


def create_job(
    store: Store,
    path: Path,
    overrides: Sequence[str],
    *,
    warn: Callable[[str], None],
    clock: Clock | None = None,
    plugins: Plugins | None = None,
    on: Record | None = None,
    once: Collection[str] = (),
) -> Record:
    """Create a job from a config; no machines are requested yet.

    Args:
        store: the store for the job.
        path: the config.
        overrides: `key=value` arguments.
        warn: receives warnings and notes.
        clock: the current time.
        plugins: by default those that are installed.
        on: the ended job whose machines the new one takes over.
        once: tags that no other job of the user may have all of.

    Raises:
        ConfigError: the config is invalid; the error lists every problem.
        UsageError: `on` has no machines that could be taken over, or the config describes other ones; another job has
            the tags of `once`.
        TpuxError: the environment contradicts the config, or a preflight found a reason why the job would fail.
        OSError: the store cannot be written.
    """
    clock = clock or SystemClock()
    observer = HookObserver(store, clock)
    plugins = (Plugins() if plugins is None else plugins).observed(observer)
    loaded = config.load(path, overrides, plugins=plugins)
    for warning in loaded.warnings:
        warn(f"warning: {warning}")
    report_arguments(loaded, overrides, warn=warn)
    giver = open_giver(store, on, plugins) if on else None
    plugins = loaded.plugins
    draft = draft_job(store, loaded, plugins, taken_over=giver.job if giver else None)
    if giver:
        require_same_machines(giver, draft)
    require_other_jobs(store, draft)
    report_findings(preflight(draft, plugins), warn=warn)

    def build(job: str) -> tuple[Files, Created]:
        for other in store.records() if once else ():  # now, since nobody else creates a job meanwhile
            if {*once} <= {*load_tags(other.directory)}:
                raise UsageError(f"job {int(other.id)} has the tags {' '.join(once)} already")
        content, facts = config_files(loaded, replace(draft, id=job), store.jobs / store.user / job)
        created = Created(
            id=job,
            user=store.user,
            name=facts.name,
            accelerator=facts.accelerator,
            zone=facts.zone,
            allocator=facts.allocator,
            workers=facts.workers,
            plugins=tuple(plugins.names()),
            token=draft.token,
            takes_over=on.id if on else "",
        )
        trace = {TRACE: (b"".join(observer.lines), 0o600)} if env.trace_hooks() else {}
        tags = {TAGS: (dump_tags(draft.job.tags), 0o600)} if draft.job.tags else {}
        return {**content, **tags, **trace}, created

    return store.create(build, at=clock.now())
