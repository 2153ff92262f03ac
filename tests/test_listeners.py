"""Listeners: each receives every event at least once, and none that raises, blocks or is slow affects a job."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

LISTENER = """
import os, time
from pathlib import Path
from tpux import hookimpl

HERE = Path(__file__).parent


def note(name, line):
    with (HERE / name).open("a") as file:
        file.write(line + "\\n")


def wait_for(name):
    while not (HERE / name).exists():
        time.sleep(0.02)


@hookimpl
def on_event(job, event):
    what = f"{event.type} {job.id} {job.attempt} {job.stage}"
    note("begun", what)
    body(job, event)
    note("received", what)

"""
NOTHING = "def body(job, event): pass\n"
GATED = "def body(job, event): wait_for('go')\n"
BLOCKS = "def body(job, event): time.sleep(10**6)\n"
COMMAND = "command: {cmd: 'true'}\n"
LASTING = "command: {cmd: 'until [ -e GO ]; do sleep 0.05; done'}\n"
TICKING = """
from tpux import Section, events


class NoteSection(Section):
    def ticks(self):
        return True


@hookimpl
def config_section():
    return NoteSection


def body(job, event):
    if isinstance(event, events.Tick):
        note("ticks", f"{job.id} {job.attempt}")
        raise ValueError("no")
"""
FAST = "30"
"""The clock rate with which 30 s, the longest that anything waits for a listener, are one second."""


def install(tpux, body: str) -> Path:
    """Install a listener `note`. Return its directory."""
    return tpux.plugin("tpux-note", LISTENER + body, entries="note = tpux_note").parent


def uninstall(tpux, place: Path) -> None:
    for info in place.glob("*.dist-info"):
        shutil.rmtree(info)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def types(path: Path) -> list[str]:
    return [line.split()[0] for line in lines(path)]


def written(tpux, job: str) -> list[str]:
    """Return the types of a job's events, in their order."""
    return [json.loads(line)["type"] for line in lines(tpux.directory(job) / "events.jsonl")]


def until_received(tpux, place: Path, job: str) -> None:
    tpux.until(lambda: types(place / "received") == written(tpux, job), f"for {written(tpux, job)}")


def report(tpux) -> dict[str, object]:
    """Return what `tpux supervisor status` reports of the listener `note`; {} if nothing."""
    reports = tpux.json("supervisor", "status")["listeners"]
    return next((one for one in reports if one["name"] == "note"), {})


def until_reported(tpux, *parts: str) -> dict[str, object]:
    tpux.until(lambda: all(part in str(report(tpux)) for part in parts), f"for {parts}")
    return report(tpux)


def test_a_slow_listener_receives_all_events_in_order_and_delays_no_turn(tpux):
    place = install(tpux, GATED)
    job = tpux.create(COMMAND)
    tpux("wait", job)
    assert types(place / "begun") == ["created"], "the job has ended before the first call returned"
    (place / "go").touch()
    until_received(tpux, place, job)
    assert lines(place / "begun") == lines(place / "received")
    tpux.until(lambda: tpux.supervisor() is None)


def test_a_listener_is_called_with_the_job_as_of_the_event(tpux):
    place = install(tpux, GATED)
    job = tpux.create("job: {rule: resume, max_restarts: {program: 1}}\ncommand: {cmd: 'exit 1'}\n")
    tpux("wait", job, code=100)
    assert [event["attempt"] for event in tpux.events(job, "attempt-started")] == [1, 2]
    (place / "go").touch()
    until_received(tpux, place, job)
    received = [line.split() for line in lines(place / "received")]
    seen = [(int(attempt), int(stage)) for kind, _, attempt, stage in received if kind == "attempt-started"]
    assert seen == [(event["attempt"], event["stage"]) for event in tpux.events(job, "attempt-started")]
    assert received[0] == ["created", job, "0", "0"]
    attempts = [int(attempt) for _, _, attempt, _ in received]
    assert attempts == sorted(attempts)
    assert set(attempts) == {0, 1, 2}


def test_a_listener_that_blocks_is_disabled_and_prevents_no_stop(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = FAST
    place = install(tpux, BLOCKS)
    job = tpux.create("command: {cmd: sleep 1000, grace_period: 1s}\n")
    tpux.until_state(job, "running")
    message = until_reported(tpux, "3 calls have not returned, the last one is")
    assert message["disabled"]
    assert message["skipped"] == 1
    assert "on_event for created of job 1" in str(message["message"])
    assert types(place / "begun") == ["created"] * 3
    assert (
        "(disabled until the supervisor starts again, 1 event(s) skipped): 3 calls"
        in tpux("supervisor", "status").stdout
    )
    tpux("stop", job)
    tpux("wait", job, code=103)
    tpux.until(lambda: tpux.supervisor() is None, "since only a disabled listener has events to receive")
    tpux("supervisor", "start")
    tpux.until(lambda: types(place / "begun")[3:], "for the next event, which the new supervisor delivers")
    assert types(place / "begun")[3] == written(tpux, job)[1]
    assert not report(tpux)["disabled"]
    assert "disabled" not in tpux("supervisor", "status").stdout


def test_a_supervisor_stops_while_a_listener_blocks(tpux):
    place = install(tpux, BLOCKS)
    job = tpux.create(COMMAND)
    tpux.until(lambda: types(place / "begun"))
    tpux("wait", job)
    pid = tpux.supervisor()
    tpux("supervisor", "stop")
    tpux.until(lambda: not tpux.alive(pid), "since no thread delays the end of the process")


@pytest.mark.system
def test_the_end_of_the_supervisor_and_a_delete_report_what_is_left(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "5"  # a slow machine must begin a call within the 30 s that the delete waits
    place = install(tpux, "def body(job, event):\n    if getattr(event, 'to', '') == 'succeeded': time.sleep(10**6)\n")
    job = tpux.create(COMMAND)
    tpux("wait", job)
    tpux.until(lambda: tpux.supervisor() is None)
    assert "it has not received all events of job 1, and will" in str(report(tpux)["message"])
    begun = len(lines(place / "begun"))
    tpux("delete", job, "-y")
    assert not tpux.json("list", "--all")
    assert len(lines(place / "begun")) > begun, "the call was repeated"
    assert "job 1 was removed before it had all events" in str(report(tpux)["message"])
    tpux.until(lambda: tpux.supervisor() is None)


def test_a_delete_waits_for_the_listeners_and_says_so(tpux):
    place = install(tpux, GATED)
    job = tpux.create(COMMAND)
    tpux("wait", job)
    delete = tpux.popen("delete", job, "-y")
    tpux.until(lambda: "waiting for listeners before the record is removed: note" in str(tpux.show(job)["why"]))
    events = written(tpux, job)
    (place / "go").touch()
    _, stderr = delete.communicate(timeout=60)
    assert (delete.returncode, b"job 1 deleted" in stderr) == (0, True), stderr
    assert types(place / "received") == events
    assert not report(tpux)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("ValueError('no luck')", "plugin note (tpux-note 1.0) failed in on_event: ValueError: no luck"),
        ("KeyboardInterrupt", "plugin note (tpux-note 1.0) failed in on_event: KeyboardInterrupt"),
        ("__import__('tpux').TpuxError('no mail server')", "no mail server"),
    ],
)
def test_an_event_is_skipped_and_reported_after_three_failures(tpux, error, message):
    tpux.env["TPUX_CLOCK_RATE"] = FAST
    place = install(tpux, f"def body(job, event):\n    if event.type == 'allocated': raise {error}\n")
    job = tpux.create(COMMAND)
    tpux("wait", job)
    others = [kind for kind in written(tpux, job) if kind != "allocated"]
    # A supervisor that starts again may repeat the last ones.
    tpux.until(lambda: types(place / "received")[: len(others)] == others, f"for {others}")
    assert types(place / "begun").count("allocated") == 3
    found = until_reported(tpux, f"skipped allocated of job 1 after 3 failures: {message}")
    assert (found["skipped"], found["disabled"]) == (1, False)
    assert "listener note (1 event(s) skipped): skipped allocated" in tpux("supervisor", "status").stdout
    if "ValueError" in error:  # of an error that is not a TpuxError, the traceback is kept
        assert f"raise {error}" in tpux("plugins", "show", "note").stdout


def test_a_call_that_a_killed_supervisor_had_begun_is_repeated(tpux):
    place = install(
        tpux,
        "def body(job, event):\n"
        "    if event.type == 'allocated' and not (HERE / 'killed').exists():\n"
        "        (HERE / 'killed').touch()\n"
        "        os.kill(os.getpid(), 9)\n",
    )
    job = tpux.create(COMMAND)
    tpux.until((place / "killed").exists)
    tpux("wait", job)  # starts the supervisor again
    tpux.until(lambda: types(place / "received")[-1:] == written(tpux, job)[-1:])
    events, received = written(tpux, job), types(place / "received")
    at = events.index("allocated")
    assert received[:at] == events[:at]
    again = received[at:]
    assert again == events[len(events) - len(again) :], "from the stored offset on, each event is delivered in order"
    assert len(again) >= len(events) - at


@pytest.mark.system
def test_failures_are_counted_across_restarts_of_the_supervisor(tpux):
    place = install(tpux, "def body(job, event): event.type == 'created' and 1 / 0\n")
    job = tpux.create(LASTING.replace("GO", str(tpux.work / "go")))
    stored = tpux.directory(job) / "listeners/note.json"
    tpux.until(lambda: stored.exists() and json.loads(stored.read_text())["failures"] in {1, 2})
    tpux.kill_supervisor()
    tpux("list")
    until_reported(tpux, "skipped created of job 1 after 3 failures")
    assert types(place / "begun")[:4].count("created") == 3
    (tpux.work / "go").touch()
    tpux("wait", job)


def test_the_last_events_of_a_job_are_received_after_a_restart(tpux):
    place = install(tpux, GATED)
    job = tpux.create(COMMAND)
    tpux("wait", job)
    tpux.kill_supervisor()
    assert lines(place / "received") == []
    (place / "go").touch()
    tpux("supervisor", "start")
    until_received(tpux, place, job)
    tpux.until(lambda: tpux.supervisor() is None)
    tpux("supervisor", "start")
    tpux.until(lambda: tpux.log().count(" ended") >= 2, "for a supervisor that finds nothing to do")
    assert types(place / "received") == written(tpux, job)


def test_a_listener_has_its_secrets_for_the_last_events_also_after_a_restart(tpux):
    tpux.env["MAIL_KEY"] = "abc123"
    place = install(
        tpux,
        "from tpux import Section\nclass Mail(Section):\n    key: str = ''\n"
        "@hookimpl\ndef config_section(): return Mail\n"
        "def body(job, event):\n    wait_for('go')\n    note('keys', job.section('note', Mail).key)\n",
    )
    job = tpux.create("note: {key: '${env:MAIL_KEY}'}\n" + COMMAND)
    tpux("wait", job)
    tpux.kill_supervisor()
    assert "abc123" in (tpux.directory(job) / "secrets.json").read_text()
    (place / "go").touch()
    tpux("supervisor", "start")
    until_received(tpux, place, job)
    assert set(lines(place / "keys")) == {"abc123"}
    tpux.until(lambda: not (tpux.directory(job) / "secrets.json").exists())
    tpux.until(lambda: tpux.supervisor() is None)


def test_a_listener_begins_at_its_installation(tpux):
    tpux.env["PYTHONPATH"] = str(tpux.work.parent / "site")
    go = tpux.work / "go"
    done = tpux.create(COMMAND)
    tpux("wait", done)
    job = tpux.create(LASTING.replace("GO", str(go)))
    tpux.until(lambda: tpux.events(job, "attempt-running"))
    before = len(written(tpux, job))
    tpux("supervisor", "stop")
    place = install(tpux, NOTHING)
    tpux("supervisor", "start")
    tpux.until((tpux.directory(job) / "listeners/note.json").exists)
    tpux.kill_supervisor()
    go.touch()
    tpux("wait", job)
    tpux.until(lambda: types(place / "received") == written(tpux, job)[before:])
    assert {line.split()[1] for line in lines(place / "received")} == {job}
    later = tpux.create(COMMAND)
    tpux("wait", later)
    tpux.until(lambda: types(place / "received")[-len(written(tpux, later)) :] == written(tpux, later))


def test_a_listener_that_is_installed_again_begins_anew(tpux):
    go = tpux.work / "go"
    place = install(tpux, NOTHING)
    job = tpux.create(LASTING.replace("GO", str(go)))
    tpux.until(lambda: tpux.events(job, "attempt-running"))
    until_received(tpux, place, job)
    tpux("supervisor", "stop")
    uninstall(tpux, place)
    tpux("supervisor", "start")
    tpux.until(lambda: '"offset": null' in (tpux.directory(job) / "listeners/note.json").read_text())
    tpux("stop", job)
    tpux("wait", job, code=103)
    tpux.until(lambda: tpux.supervisor() is None)
    (place / "received").unlink()
    shutil.rmtree(place)
    install(tpux, NOTHING)
    before = len(written(tpux, job))
    go.touch()
    tpux("resume", job)
    tpux("wait", job)
    tpux.until(lambda: types(place / "received") == written(tpux, job)[before:])


def test_a_job_is_not_shown_to_plugins_that_its_config_disables(tpux):
    seen = "note('classified', 'yes')\n    return [Failure('tpu-busy')]"
    place = install(tpux, f"{NOTHING}from tpux import Failure\n@hookimpl\ndef classify_failure(attempt):\n    {seen}\n")
    fails = "command: {cmd: 'exit 1'}\n"
    quiet = tpux.create(fails + "plugins: {disabled: [note]}\n")
    tpux("wait", quiet, code=100)
    job = tpux.create(fails)
    tpux("wait", job, code=100)
    until_received(tpux, place, job)
    assert {line.split()[1] for line in lines(place / "received")} == {job}
    assert lines(place / "classified") == ["yes"]
    assert [tpux.show(one)["failure"]["kind"] for one in (quiet, job)] == ["program", "tpu-busy"]


def test_an_event_that_is_half_written_is_not_delivered(tpux):
    place = install(tpux, NOTHING)
    job = tpux.create(LASTING.replace("GO", str(tpux.work / "go")))
    tpux.until(lambda: tpux.events(job, "attempt-running"))
    until_received(tpux, place, job)
    tpux.kill_supervisor()
    with (tpux.directory(job) / "events.jsonl").open("a") as file:
        file.write('{"type": "waiting", "at": 1, "why": "tor')
    (tpux.work / "go").touch()
    tpux("wait", job)
    until_received(tpux, place, job)


def test_only_plugins_that_may_be_listeners_are_imported(tpux):
    place = install(tpux, NOTHING)
    other = "from tpux import hookimpl\nopen(__file__ + '.imported', 'w')\n@hookimpl\ndef clean_up(): yield from ()\n"
    tpux.plugin("tpux-other", other, entries="other = tpux_other")
    job = tpux.create(COMMAND)
    tpux("wait", job)
    until_received(tpux, place, job)
    assert not list(place.glob("*.imported"))


@pytest.mark.system
def test_a_wrapper_of_on_event_surrounds_every_call_of_all_listeners(tpux):
    tpux.env["TPUX_DISABLED_PLUGINS"] = "ssh,history,limits,notify,brevo_email,sheets"  # listeners too
    place = install(tpux, NOTHING)
    wrapper = (
        "import time\nfrom pathlib import Path\nfrom tpux import hookimpl\n"
        "HERE = Path(__file__).parent\n"
        "while not (HERE / 'go').exists(): time.sleep(0.02)\n"
        "@hookimpl(wrapper=True)\ndef on_event(event):\n"
        "    with (HERE / 'wrapped').open('a') as file: file.write(event.type + '\\n')\n"
        "    return (yield)\n"
    )
    tpux.plugin("tpux-around", wrapper, entries="around = tpux_around")
    job = tpux.create(COMMAND)
    tpux.until(lambda: tpux.events(job, "attempt-started"))
    (place / "go").touch()  # its import has taken longer than that of the listener
    tpux("wait", job)
    until_received(tpux, place, job)
    assert types(place / "wrapped") == written(tpux, job)
    assert not (tpux.directory(job) / "listeners/around.json").exists()


@pytest.mark.system
def test_a_blocked_import_delays_no_other_listener_for_good(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = FAST
    place = install(tpux, NOTHING)
    tpux.plugin("tpux-stuck", "import time\ntime.sleep(10**6)\ndef on_event(): pass\n", entries="stuck = tpux_stuck")
    job = tpux.create(COMMAND)
    tpux("wait", job)
    until_received(tpux, place, job)
    tpux.until(lambda: tpux.supervisor() is None)


@pytest.mark.system
def test_a_listener_whose_section_asks_for_ticks_gets_them_also_while_nothing_happens(tpux):
    """Also from a supervisor that has no event to deliver; what fails is reported, and no event is skipped for it."""
    tpux.env["TPUX_CLOCK_RATE"] = FAST
    place = install(tpux, TICKING)
    waits = f"command: {{cmd: 'until [ -e {tpux.work / 'GO'} ]; do sleep 0.05; done'}}\n"
    job, other = tpux.create(waits + "note: {}\n"), tpux.create(waits)
    tpux.until(lambda: len(lines(place / "ticks")) > 3)
    assert {line.split()[0] for line in lines(place / "ticks")} == {job}, f"{other} does not ask for ticks"
    until_reported(tpux, "a tick of job", "no")
    tpux("supervisor", "stop")
    (place / "ticks").unlink()
    tpux("supervisor", "start")
    tpux.until(lambda: len(lines(place / "ticks")) > 1)
    assert report(tpux)["skipped"] == 0
    (tpux.work / "GO").touch()
    tpux("wait", job)
    tpux("wait", other)
