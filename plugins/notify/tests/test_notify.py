"""Messages about jobs, as real servers receive them."""

from __future__ import annotations

import email
import email.policy
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.test_info import PAID

from tpux import events
from tpux_notify import children
from tpux_notify.messages import message_of
from tpux_notify.outbox import Outbox
from tpux_notify.section import NotifySection
from tpux_testing import job as build_job
from tpux_testing import listener_contract

SECRET = "hunter-secret-22"
QUICK = "10"
"""The clock rate: the first retry of a message follows after half a second."""


def config(cmd: str, sections: str, job: str = "") -> str:
    return f"job: {{name: train{job}}}\ncommand: {{cmd: {json.dumps(cmd)}}}\n{sections}"


@pytest.fixture(autouse=True)
def exported(tpux):
    tpux.env["HOOK_PASSWORD"] = SECRET


def webhook(http, more: str = "") -> str:
    return f"notify:\n  urls: ['json://user:${{env:HOOK_PASSWORD}}@127.0.0.1:{http.port}/hook']\n  digest: 0s\n{more}"


def numbers(text: str) -> list[str]:
    return re.findall(r"number (\S+)", text)


def texts(http) -> str:
    return "\n".join(body["message"] for body in http.bodies)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_the_contract_of_a_listener(http):
    listener_contract("notify", {"notify": {"urls": [f"json://127.0.0.1:{http.port}"], "digest": "0s"}})


def test_a_mail_has_the_job_what_happened_the_cause_the_command_and_the_last_20_lines(tpux, smtp):
    box, port = smtp
    tpux.env["MAIL_PASSWORD"] = SECRET
    url = f"mailto://127.0.0.1:{port}?from=tpux@example.com&to=me@example.com&name=${{env:MAIL_PASSWORD}}"
    lines = "for i in $(seq 1 40); do echo line $i; done; echo the key is $KEY; exit 3"
    sections = f"notify:\n  urls: ['{url}']\n  digest: 0s\n"
    job = tpux.create(config(lines, sections).replace("{cmd:", "{env: {KEY: '${env:MAIL_PASSWORD}'}, cmd:"))
    tpux("wait", job, code=100)
    tpux.until(lambda: box.mails, "for the mail")
    mail = email.message_from_string(box.mails[0], policy=email.policy.default)
    text = mail.get_body(("plain",)).get_content()
    number = int(job)
    assert mail["Subject"] == f"tpux: job {number} train has failed"
    assert "exit code 3" in text
    assert f"tpux show {number}" in text
    assert "line 22\n" in text.replace("\r", "")
    assert "line 21\n" not in text.replace("\r", ""), "19 lines, and the last one"
    assert "the key is ********" in text
    assert len(numbers(text)) == 1
    everything = [path.read_bytes() for path in tpux.home.rglob("notify/**/*") if path.is_file()]
    assert not any(SECRET.encode() in content for content in everything)


@pytest.mark.parametrize(
    ("secret", "printed"),
    [
        ("-----BEGIN KEY-----\nAAAABBBBCCCC\nDDDDEEEEFFFF\n", 'printf %s "$KEY"'),
        (SECRET, 'printf %490s "" | tr " " x; echo "$KEY"'),  # a message has 500 characters of a line
        (SECRET * 100, 'printf "%s\\n" "$KEY"; printf %32700s ""'),  # it is made from the last 32 KiB
    ],
    ids=["of-several-lines", "where-a-line-is-cut", "where-the-output-is-cut"],
)
def test_no_part_of_a_secret_is_in_a_message(tpux, http, secret, printed):
    tpux.env["MY_KEY"] = secret
    text = config(f"{printed}; exit 3", webhook(http)).replace("{cmd:", "{env: {KEY: '${env:MY_KEY}'}, cmd:")
    tpux("wait", tpux.create(text), code=100)
    tpux.until(lambda: "has failed" in str(http.bodies), "for the message")
    said = texts(http)
    assert "last output" in said
    for part in ("AAAABBBB", "DDDDEEEE", SECRET[:5], SECRET[-9:]):
        assert part not in said


def test_output_is_left_out_once_the_secrets_are_deleted(tpux, http, monkeypatch):
    monkeypatch.setattr("tpux_notify.messages._secrets", lambda job: None)
    failed = events.StateChanged(to="failed", kind="program", why="exit code 3")
    [message] = message_of(build_job(), failed, NotifySection())
    assert "without its last output" in message.text


def test_a_recipient_that_refuses_gets_the_message_later_with_the_same_number(tpux, http):
    tpux.env["TPUX_CLOCK_RATE"] = QUICK
    http.answers = [500, 503]
    job = tpux.create(config("true", webhook(http)))
    tpux("wait", job)
    tpux.until(lambda: len(http.bodies) >= 3, "for the third try")
    assert len({tuple(numbers(body["message"])) for body in http.bodies}) == 1
    assert http.bodies[0]["title"] == f"tpux: job {int(job)} train has finished"


def test_a_recipient_that_is_down_delays_nothing_and_is_reported_without_its_secrets(tpux, http):
    tpux.env["TPUX_CLOCK_RATE"] = "30"
    down = f"json://user:${{env:HOOK_PASSWORD}}@127.0.0.1:{free_port()}/${{env:HOOK_PASSWORD}}"
    sections = f"notify:\n  urls: ['{down}', 'json://127.0.0.1:{http.port}']\n  digest: 0s\n  events: [started]\n"
    job = tpux.create(config(f"until [ -e {tpux.work / 'GO'} ]; do sleep 0.05; done", sections))
    tpux.until(lambda: http.bodies, "for the recipient that is up")

    def reported() -> str:
        rows = tpux.json("supervisor", "status")["listeners"]
        return next((row["message"] for row in rows if row["name"] == "notify"), "")

    tpux.until(reported, "for the report")
    assert "messages to json://127.0.0.1 wait and are tried again: " in reported()
    assert SECRET not in reported() + tpux.log()
    (tpux.work / "GO").touch()
    tpux("wait", job)


def test_events_within_the_digest_are_one_message(tpux, http):
    sections = webhook(http, "  events: [started, finished]\n").replace("digest: 0s", "digest: 4s")
    jobs = [tpux.create(config("true", sections)) for _ in range(2)]
    for job in jobs:
        tpux("wait", job)
    tpux.until(lambda: http.bodies, "for the digest")
    tpux.until(lambda: len(numbers(texts(http))) == 4, "for all")
    assert len(http.bodies) < 4
    assert re.match(r"tpux: \d events, job 1 train has started", http.bodies[0]["title"])


@pytest.mark.system
def test_a_preemption_and_the_recovery_are_reported(tpux, http):
    more = "  events: [started, preempted, recovered, restarting, finished]\n"
    text = config("if [ $TPUX_ATTEMPT = 1 ]; then exit 9; fi", webhook(http, more), ", rule: resume")
    job = tpux.create(text.replace("rule: resume", "rule: resume, max_restarts: {program: 1}"))
    tpux("wait", job)
    tpux.until(lambda: "has finished" in str(http.bodies), "for the last message")
    said = " ".join(body["title"] + body["message"] for body in http.bodies)
    for part in ("has started", "has failed (program), and is started again", "runs again (attempt 2)"):
        assert part in said
    preempted = events.StateChanged(to="recovering", kind="preempted", restart="resume", until=1.0, why="n1 is gone")
    [message] = message_of(build_job(), preempted, NotifySection())
    assert "has lost its machines (preempted)" in message.title
    assert "cause: n1 is gone" in message.text


@pytest.mark.system
def test_a_job_that_waits_and_machines_about_to_be_released_are_reported_once(tpux, http):
    tpux.env["TPUX_CLOCK_RATE"] = "60"
    tpux.plugin("tpux-paid", PAID, entries="paid = tpux_paid")
    sections = webhook(http, "  events: [release, queued]\n  release_notice: 30m\n  queued_after: 3m\n")
    tpu = f"{sections}tpu: {{allocation_mode: paid, accelerator: v4-8, keep_on_failure: 20m}}\n"
    job = tpux.create(config("exit 1", tpu))
    waiting = tpux.create(config("exit 1", tpu), "tpu.accelerator=v6e-8")
    tpux("wait", job, code=100)
    tpux.until(lambda: len(http.bodies) >= 2, "for the messages")
    tpux.until(lambda: not tpux.show(job)["release_at"], "for the release")
    tpux("stop", waiting)
    tpux.until_done()
    queued, release = sorted(http.bodies, key=lambda body: "releases" in body["title"])
    assert re.match(rf"tpux: job {int(job)} train releases its machines in (20|1\d) min", release["title"])
    assert f"tpux stop {int(job)} --keep" in release["message"]
    assert re.match(rf"tpux: job {int(waiting)} train has waited for machines for [3-9] min", queued["title"])
    assert "cause: no capacity" in queued["message"]


def test_a_message_is_sent_again_if_its_sender_died_and_once_otherwise(http, tmp_path, monkeypatch):
    monkeypatch.setenv("TPUX_HOME", str(tmp_path))
    outbox = Outbox({"url": f"json://127.0.0.1:{http.port}"}, 0.0, "ann")
    [message] = message_of(build_job(), events.StateChanged(to="succeeded", at=5.0), NotifySection())
    assert message.number.endswith("-5000-finished")
    outbox.put(message)
    outbox.put(message)
    assert [path.stat().st_mode & 0o777 for path in (outbox.directory / "pending").iterdir()] == [0o600]
    outbox.send()
    _until(lambda: not outbox.waits())
    outbox.put(message)
    assert not outbox.waits(), "the event was delivered again"
    (outbox.directory / "sent" / message.number).unlink()  # as if the sender had died before it noted that
    outbox.put(message)
    outbox.send()
    _until(lambda: not outbox.waits())
    assert [numbers(body["message"]) for body in http.bodies] == [[message.number]] * 2


def test_a_slow_recipient_does_not_delay_the_job(tpux, http):
    http.delay = 20.0
    job = tpux.create(config("true", webhook(http)))
    tpux("wait", job)
    tpux.until_done()
    assert len(http.bodies) <= 1, "it has ended before the answer"


def test_a_sender_that_hangs_is_killed_and_the_error_says_so(http, tmp_path):
    http.delay = 30.0
    code = "import send; send.TIMEOUT = 1; print(send.attempt(lambda: send.request('http://127.0.0.1:%d', None, {})))"
    program = [sys.executable, "-c", code % http.port]
    done = subprocess.run(program, cwd=children.PROGRAM.parent, capture_output=True, text=True, timeout=20)
    assert done.stdout == "no answer within 1 s\n"


def test_brevo_gets_the_mail_by_its_api_and_the_key_is_nowhere_else(tpux, http):
    tpux.env["BREVO_API_KEY"] = SECRET
    brevo = (
        "brevo_email:\n  api_key: ${env:BREVO_API_KEY}\n  sender: a@example.com\n  receiver: b@example.com\n"
        f"  digest: 0s\n  api_url: http://127.0.0.1:{http.port}/v3/smtp/email\n"
    )
    job = tpux.create(config("exit 1", brevo))
    tpux("wait", job, code=100)
    tpux.until(lambda: http.received, "for the mail")
    method, path, headers, body = http.received[0]
    assert (method, path, headers["api-key"]) == ("POST", "/v3/smtp/email", SECRET)
    assert body["sender"] == {"email": "a@example.com"}
    assert body["to"] == [{"email": "b@example.com"}]
    assert body["subject"] == f"tpux: job {int(job)} train has failed"
    found = [path for path in tpux.home.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert {path.name for path in found} <= {"secrets.json"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in found)


def test_the_key_of_brevo_itself_in_a_config_is_an_error(tpux):
    """It would be stored with the job, and stay there after its end."""
    section = f"command: {{cmd: 'true'}}\nbrevo_email: {{api_key: {SECRET}, sender: a@b.c, receiver: a@b.c}}\n"
    refused = tpux("create", tpux.config(section), code=2).stderr
    assert "job.yaml:2:24: brevo_email.api_key is a secret, which would be stored with the job" in refused
    assert "write api_key: ${env:BREVO_API_KEY}, and export BREVO_API_KEY=..." in refused
    word = f"brevo_email.api_key={SECRET}"
    config = tpux.config(section.replace(SECRET, "'${env:KEY}'"))
    tpux.env["KEY"] = SECRET
    refused_too = tpux("create", config, word, code=2).stderr
    assert "brevo_email.api_key is a secret" in refused_too
    assert SECRET not in refused
    tpux("config", "check", config)


@pytest.mark.parametrize(
    "url",
    [
        f"mailtos://me:{SECRET}@smtp.example.com?to=me@example.com",
        f"mailto://smtp.example.com?to=me@example.com&pass={SECRET}",
        f"slack://{SECRET}/#runs",
        f"discord://12345/{SECRET}",
        f"jsons://hooks.example.com/catch/{SECRET}",
        f"json://hooks.example.com?+X-Token={SECRET}",
        f"json://user:{SECRET}@hooks.example.com",
        f"ntfy://{SECRET}",
        f"unknown://{SECRET}",
        f"mailto://a.example.com,slack://{SECRET}/#runs",
        f"json://[{SECRET}",
    ],
)
def test_a_url_with_a_secret_in_a_config_is_an_error_that_says_what_to_write(tpux, url):
    """It would be stored with the job, and is in each copy of the config."""
    open_url = "mailto://mail.example.com?from=a@example.com&to=b@example.com"
    text = f"command: {{cmd: 'true'}}\nnotify:\n  urls:\n    - {open_url}\n    - '{url}'\n"
    refused = tpux("config", "check", tpux.config(text), code=2).stderr
    assert "job.yaml:5:7: notify.urls.1 is a secret, which would be stored with the job" in refused
    assert "write - ${env:NOTIFY_URL}, and export NOTIFY_URL=..." in refused
    assert "urls.0" not in refused
    assert SECRET not in refused
    tpux.env.update({"KEY": SECRET, "NOTIFY_URL": url})
    for written in {url.replace(SECRET, "${env:KEY}"), "${env:NOTIFY_URL}"}:
        tpux("config", "check", tpux.config(text.replace(url, written)))


@pytest.mark.parametrize(
    "url",
    [
        "mailto://127.0.0.1:25/me@example.com",
        "json://127.0.0.1:8080/",
        "syslog://127.0.0.1",
        "form://user@host?method=put",
    ],
)
def test_a_url_without_a_secret_needs_none(tpux, url):
    tpux("config", "check", tpux.config(f"command: {{cmd: 'true'}}\nnotify: {{urls: ['{url}']}}\n"))


def test_a_heartbeat_with_a_password_in_a_config_is_an_error(tpux):
    section = f"command: {{cmd: 'true'}}\nnotify: {{heartbeat_url: 'https://me:{SECRET}@example.com/ping'}}\n"
    refused = tpux("config", "check", tpux.config(section), code=2).stderr
    assert "notify.heartbeat_url is a secret" in refused
    assert "write heartbeat_url: ${env:HEARTBEAT_URL}" in refused
    tpux.env["KEY"] = SECRET
    tpux("config", "check", tpux.config(section.replace(SECRET, "${env:KEY}")))


@pytest.mark.system
def test_the_heartbeat_is_requested_while_the_supervisor_lives(tpux, http):
    tpux.env["TPUX_CLOCK_RATE"] = "120"
    beat = f"notify: {{heartbeat_url: 'http://127.0.0.1:{http.port}/ping/{SECRET}'}}\n"
    job = tpux.create(config(f"until [ -e {tpux.work / 'GO'} ]; do sleep 0.05; done", beat))
    tpux.until(lambda: len(http.received) >= 2, "for the second request")
    assert {(method, path) for method, path, *_ in http.received} == {("GET", f"/ping/{SECRET}")}
    os.kill(tpux.supervisor(), 9)
    tpux.until(lambda: tpux.supervisor() is None)
    time.sleep(0.5)  # a request that is on its way
    seen = len(http.received)
    time.sleep(6)  # two intervals
    assert len(http.received) == seen
    (tpux.work / "GO").touch()
    tpux("wait", job)


def test_a_test_message_says_who_received_it(tpux, http):
    down = free_port()
    sections = (
        f"notify:\n  urls: ['json://127.0.0.1:{http.port}', 'json://user:${{env:HOOK_PASSWORD}}@127.0.0.1:{down}']\n"
    )
    job = tpux.create(config("true", sections + "  events: []\n"))
    tpux("wait", job)
    done = tpux("notify", "test", job, code=1)
    assert "json://127.0.0.1: sent\n" in done.stderr
    assert "1 of 2 recipients did not get it" in done.stderr
    assert SECRET not in done.stderr
    assert http.bodies[0]["title"] == "tpux: a test"
    other = tpux.create(config("true", ""))
    assert "name them in notify.urls" in tpux("notify", "test", other, code=2).stderr
    tpux("wait", other)


def test_the_supervisor_imports_neither_apprise_nor_what_sends(tpux, http):
    job = tpux.create(
        config(f"until [ -e {tpux.work / 'GO'} ]; do sleep 0.05; done", webhook(http, "  events: [started]\n"))
    )
    tpux.until(lambda: http.bodies, "for the message")
    maps = Path(f"/proc/{tpux.supervisor()}/maps").read_text()
    assert "apprise" not in maps
    code = "import sys, tpux_notify, tpux_notify.brevo; print({'apprise', 'smtplib', 'requests'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
    (tpux.work / "GO").touch()
    tpux("wait", job)


@pytest.mark.parametrize(
    "wrong",
    ["{urls: [me@example.com]}", "{urls: [], output_lines: 21}", "{heartbeat_url: 'ftp://a'}", "{events: [all]}"],
)
def test_a_wrong_section_is_an_error_of_the_config(tpux, wrong):
    assert "job.yaml:3" in tpux("config", "check", tpux.config(config("true", f"notify: {wrong}\n")), code=2).stderr


def _until(what) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)
