"""The delivery of events to one listener, without a supervisor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tpux import Job, hookimpl
from tpux.clock import SystemClock
from tpux.config.resolved import Resolved
from tpux.errors import TpuxError
from tpux.lifecycle.open import OpenedJob
from tpux.model.events import Created, Event
from tpux.plugin import local_files
from tpux.plugin.manager import Plugins
from tpux.plugin.observer import Observer
from tpux.store import Store
from tpux.store.record import Record
from tpux.supervisor.delivery import Delivery
from tpux.supervisor.files import Files
from tpux.supervisor.listeners import Listeners


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


@pytest.mark.system
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


BLOCKS = """
from threading import gate
from tpux import hookimpl

@hookimpl
def on_event(job, event):
    gate.wait()
"""


def test_a_file_that_blocks_disables_no_file_of_the_same_name_of_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, reports = threading.Event(), list[str]()
    monkeypatch.setattr(threading, "gate", gate, raising=False)
    store, log = Store(tmp_path, "me"), tmp_path / "log"
    clock = SystemClock(1000)
    listeners = Listeners(Plugins({}), clock, Files(store.supervisor), lambda _: Observer())
    listeners._deliver.keywords["report"] = lambda report: reports.append(report.message)

    def follow(code: str) -> Record:
        record = store.create(lambda job: ({}, Created(id=job, user="me", name="n", plugins=("alert",))), at=0)
        record.refresh()
        (directory := tmp_path / f"plugins-{record.id}").mkdir()
        (directory / "alert.py").write_text(code)
        plugins = Plugins({}).with_files(local_files.stored(directory, record.id), directory)
        job = Job(record.id, "me", "store", tmp_path, {})
        listeners.follow(record, lambda: opened(job, plugins), plugins)
        return record

    def check(what: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not what():
            assert time.monotonic() < deadline
            listeners.check()
            time.sleep(0.01)

    first = follow(BLOCKS)
    check(lambda: any("calls have not returned" in report for report in reports))
    second = follow(f"from tpux import hookimpl\n@hookimpl\ndef on_event(event): open({str(log)!r}, 'w').close()\n")
    check(log.exists)
    gate.set()
    for record in (first, second):
        listeners.drop_job(record.id)
    listeners.check()
    assert not listeners._listeners
