"""The delivery of events to one listener, without a supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tpux import Job, hookimpl
from tpux.clock import SystemClock
from tpux.config.resolved import Resolved
from tpux.errors import TpuxError
from tpux.lifecycle.open import OpenedJob
from tpux.model.events import Created, Event
from tpux.plugin.manager import Plugins
from tpux.plugin.observer import Observer
from tpux.store import Store
from tpux.supervisor.delivery import Delivery


class Listener:
    def __init__(self) -> None:
        self.received: list[str] = []

    @hookimpl
    def on_event(self, event: Event) -> None:
        self.received.append(event.type)


def opened(job: Job, plugins: Plugins) -> OpenedJob:
    return OpenedJob(job, Resolved({}, (), None, "local"), {}, plugins)


def until(what: Callable[[], object], delivery: Delivery) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        delivery.check(deliver=True)
        time.sleep(0.01)


def test_an_event_is_delivered_only_when_it_is_known_to_be_on_the_disk(tmp_path: Path) -> None:
    """One whose sync fails is cut off again, and has not happened."""
    store = Store(tmp_path, "me")
    record = store.create(lambda job: ({}, Created(id=job, user="me", name="n", plugins=("note",))), at=0)
    record.refresh()
    with record.events_path.open("a") as file:
        file.write('{"type": "waiting", "at": 1, "why": "it is being written"}\n')
    plugins, listener = Plugins({}), Listener()
    plugins.add("note", listener)
    delivery = Delivery("note", plugins, SystemClock(1), print, lambda _: Observer())
    job = Job(record.id, "me", "store", tmp_path, {})
    delivery.backlog.follow(record, lambda: opened(job, plugins), done=False)
    until(lambda: not delivery.backlog.behind(), delivery)
    assert listener.received == ["created"]
    delivery.backlog.notify(record.id, record.events_path.stat().st_size)
    until(lambda: not delivery.backlog.behind(), delivery)
    assert listener.received == ["created", "waiting"]


def test_a_job_that_cannot_be_opened_is_no_failure_of_the_listener(tmp_path: Path) -> None:
    """Such as a job whose plugin was uninstalled; the events follow when it is back."""
    store = Store(tmp_path, "me")
    record = store.create(lambda job: ({}, Created(id=job, user="me", name="n", plugins=("note",))), at=0)
    record.refresh()
    job = Job(record.id, "me", "store", tmp_path, {})
    tries, reports, listener = [], [], Listener()

    def open_job() -> OpenedJob:
        tries.append(job.id)
        if len(tries) < 6:
            raise TpuxError("the plugin mount is broken")
        return opened(job, plugins)

    plugins = Plugins({})
    plugins.add("note", listener)
    delivery = Delivery("note", plugins, SystemClock(10), reports.append, lambda _: Observer())
    delivery.backlog.follow(record, open_job, done=False)
    until(lambda: not delivery.backlog.behind(), delivery)
    assert listener.received == ["created"]
    assert [report.message for report in reports] == [
        "it waits for events of job 1, which cannot be opened: the plugin mount is broken"
    ]
    assert len(tries) >= 6, "more with a tick, of which one may be due"
