"""The real wandb, mostly offline: what each ending leaves behind, and that its record, not its output, decides."""

from __future__ import annotations

import io
import json
import os
import shlex
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import tpux_wandb
from tpux import Command, Job, TpuxError, Worker, config
from tpux.store import progress
from tpux_testing import attempt, detector_contract, hooks_contract, job, run_job, section_contract, steps_of
from tpux_testing.sandbox import Sandbox
from tpux_wandb import read_run

PROGRAM = """
import os, signal, sys
import wandb

print("id", os.environ.get("WANDB_RUN_ID"), os.environ.get("WANDB_RESUME"), flush=True)
run = wandb.init(project="demo", mode="offline", settings=wandb.Settings(x_disable_stats=True))
for step in range(3):
    run.log({"loss": 1.0 / (step + 1), "image": {"not": "a number"}})
"""
ENDINGS = {
    "finish": ("run.finish()", "succeeded", 0),
    "no-finish": ("", "succeeded", 0),
    "finish-then-segfault": ("run.finish(); os.kill(os.getpid(), signal.SIGSEGV)", "succeeded", 0),
    "finish-then-exit-3": ("run.finish(); sys.exit(3)", "succeeded", 0),
    "finish-with-1": ("run.finish(exit_code=1)", "failed", 1),
    "exception": ("raise ValueError('loss is NaN')", "failed", 1),
    "ctrl-c": ("os.kill(os.getpid(), signal.SIGINT)", "failed", 255),
    "sigterm": ("os.kill(os.getpid(), signal.SIGTERM)", "failed", None),
    "sigkill": ("os.kill(os.getpid(), signal.SIGKILL)", "failed", None),
}
MY_KEY = "k" * 40
USING = job({"command": {"cmd": "true", "finished_by": ["wandb"]}})


@pytest.fixture(autouse=True)
def exported(monkeypatch):
    monkeypatch.setenv("MY_KEY", MY_KEY)


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def message(number: int, value: bytes) -> bytes:
    """Return a field of a protobuf message that is a message itself, or a text."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def logged(key: str, value: str) -> bytes:
    """Return the record of a step."""
    return message(2, message(1, message(1, key.encode()) + message(16, value.encode())))


RUN = message(17, message(1, b"abc") + message(3, b"demo"))
EXIT_0 = message(18, b"")


def write_run(path: Path, records: Iterable[bytes]) -> None:
    """Write a `.wandb` file, as wandb would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(b":W&B\x00\x00\x00")
        for record in records:
            first, rest = True, record
            while first or rest:
                room = 32768 - file.tell() % 32768 - 7
                if room < 0:
                    file.write(bytes(room + 7))
                    continue
                part, rest = rest[:room], rest[room:]
                kind = (1 if first else 4) if not rest else 2 if first else 3
                file.write(struct.pack("<IHB", 0, len(part), kind) + part)
                first = False


@pytest.fixture
def program(tmp_path):
    """Return the command of a program that ends in this way; skips where wandb is not installed."""
    pytest.importorskip("wandb", reason="wandb is not installed: it has no wheel for this platform")

    def command(ending: str, mode: str = "offline") -> str:
        path = tmp_path / "train.py"
        path.write_text(PROGRAM.replace("offline", mode) + ending + "\n")
        return f"{sys.executable} {path}"

    return command


def test_contracts():
    hooks_contract("wandb")
    section_contract("wandb", {"api_key": "${env:MY_KEY}", "project": "demo"})
    detector_contract("wandb")


def test_a_section_without_finished_by_is_a_warning():
    with Sandbox() as sandbox:
        loaded = config.load(sandbox.write_config("wandb: {}\ncommand: x"), plugins=sandbox.plugins)
        [warning] = loaded.warnings
        assert warning.message == "section 'wandb' does not affect the program: command.finished_by does not name wandb"
        named = "wandb: {}\ncommand: {cmd: x, finished_by: [wandb]}"
        assert config.load(sandbox.write_config(named), plugins=sandbox.plugins).warnings == []


@pytest.mark.parametrize("name", ENDINGS)
def test_the_record_decides_however_the_program_ended(program, name):
    ending, state, recorded = ENDINGS[name]
    run = run_job({"command": {"cmd": program(ending), "finished_by": ["wandb"], "require_finished": True}})
    assert run.state == state, run.why
    [event] = [event for event in run.events if event.type == "collected"]
    assert event.data["exit code"] == recorded
    if recorded is not None:
        assert event.data["summary"].startswith("loss=0.333")
        assert event.data["run"] in event.data["to upload it"]
        assert event.data["to upload it"].startswith("wandb sync /")  # it is in no PATH that tpux knows
        assert " in tpux ssh 1 --worker 0 with the program's environment active " in event.data["to upload it"]
    if name == "finish-with-1":
        assert run.failure.kind == "incomplete"
    if name == "exception":
        assert run.failure.evidence == "exit code 1: ValueError: loss is NaN"


def test_a_program_without_wandb_has_not_finished():
    run = run_job({"command": {"cmd": "echo wandb: Run history", "finished_by": ["wandb"], "require_finished": True}})
    assert (run.state, run.failure.kind) == ("failed", "incomplete")
    assert "collected" not in {event.type for event in run.events}


@pytest.fixture
def worker_python(tmp_path, monkeypatch):
    """Let the workers' `python3` be this script."""

    def replace_python(script: str) -> None:
        python = tmp_path / "tools/python3"
        python.parent.mkdir()
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        monkeypatch.setenv("PATH", f"{python.parent}:{os.environ['PATH']}")

    return replace_python


RECORDED = {
    "cmd": "mkdir -p $WANDB_DIR/wandb/run-1-abc; cp {record} $WANDB_DIR/wandb/run-1-abc/run-abc.wandb",
    "finished_by": ["wandb"],
    "require_finished": True,
}


def test_what_the_workers_python_says_beside_it_is_not_taken_for_the_record(tmp_path, worker_python):
    write_run(tmp_path / "record", [RUN, EXIT_0])
    worker_python(f'echo "Error processing line 1 of site-packages/a.pth:" >&2; {sys.executable} "$@"; echo bye >&2')
    run = run_job({"command": {**RECORDED, "cmd": RECORDED["cmd"].format(record=tmp_path / "record")}})
    assert run.state == "succeeded", run.why
    [event] = [event for event in run.events if event.type == "collected"]
    assert event.data["run"] == "abc"


@pytest.mark.parametrize(
    ("python", "said"), [("exit 0", "plugin wandb"), ("echo Traceback; echo no module x; exit 1", "left: no module x")]
)
def test_a_record_that_cannot_be_read_is_named_as_the_reason(tmp_path, worker_python, python, said):
    write_run(tmp_path / "record", [RUN, EXIT_0])
    worker_python(python)
    run = run_job({"command": {**RECORDED, "cmd": RECORDED["cmd"].format(record=tmp_path / "record")}})
    assert (run.state, run.failure.kind) == ("failed", "incomplete")
    begin = "exit code 0 on all workers, but whether the program finished is unknown: worker 0: "
    assert run.failure.evidence.startswith(begin)
    assert said in run.failure.evidence


def test_a_program_that_hangs_after_it_finished_is_ended(program):
    hang = "run.finish(); import time; time.sleep(1000)"
    settings = {
        "command": {"cmd": program(hang), "finished_by": ["wandb"], "grace_period": 1},
        "watch": {"straggler_grace": 1, "poll_every": 0.2},
    }
    assert run_job(settings).state == "succeeded"


def test_a_resume_continues_the_run_and_a_rerun_begins_another():
    plain = job("command: {cmd: 'true', finished_by: [wandb]}")
    own = "wandb: {one_run: false, api_key: '${env:MY_KEY}', base_url: 'https://w.lab', project: p}"
    other_settings = job(f"{own}\ncommand: {{cmd: 'true', finished_by: [wandb]}}")

    def variables(*, attempt: int, stage: int, worker: int = 0, of: Job = plain) -> dict[str, str]:
        made = replace(of, attempt=attempt, stage=stage)
        command = Command(("bash", "script"), "script", {"TPUX_OUTPUT_DIR": f"/out/attempt-{attempt}", "A": "1"})
        section = made.sections["wandb"]
        answer = tpux_wandb.prepare_command(made, command, section, Worker(worker))
        assert answer.argv[-2:] == ("bash", "script")
        return dict(answer.env)

    first, resumed, rerun = (variables(attempt=n, stage=s) for n, s in ((1, 0), (2, 1), (3, 0)))
    assert first["WANDB_RUN_ID"] == resumed["WANDB_RUN_ID"] != rerun["WANDB_RUN_ID"]
    assert {one["WANDB_RESUME"] for one in (first, resumed, rerun)} == {"allow"}
    assert (resumed["WANDB_DIR"], first["A"]) == ("/out/attempt-2/wandb-worker-0", "1")
    assert "WANDB_API_KEY" not in first
    other = variables(attempt=1, stage=0, worker=1)
    assert other["WANDB_DIR"] == "/out/attempt-1/wandb-worker-1"
    assert not {"WANDB_RUN_ID", "WANDB_RESUME"} & other.keys()
    off = variables(attempt=1, stage=0, of=other_settings)
    assert "WANDB_RUN_ID" not in off
    assert (off["WANDB_API_KEY"], off["WANDB_BASE_URL"], off["WANDB_PROJECT"]) == (MY_KEY, "https://w.lab", "p")


def test_an_api_key_that_stands_in_the_config_is_an_error():
    """It would be stored with the job, and is in each copy of the config."""
    text = "command: {cmd: 'true', finished_by: [wandb]}\nwandb: {api_key: %s}\n"
    with pytest.raises(TpuxError) as refused:
        job(text % "0123456789abcdef")
    said = f"{refused.value}\n{refused.value.hint}"
    assert "2:18: wandb.api_key is a secret, which would be stored with the job" in said
    assert "write api_key: ${env:WANDB_API_KEY}, and export WANDB_API_KEY=..." in said
    assert "0123456789abcdef" not in said
    assert job(text % "'${env:MY_KEY}'").sections["wandb"]
    assert job(text % "null").sections["wandb"]


def test_the_variables_of_the_config_outrank_those_of_the_plugin():
    given = {"WANDB_RUN_ID": "mine", "WANDB_RESUME": "must", "WANDB_DIR": "/runs", "WANDB_API_KEY": "k2"}
    section = "wandb: {api_key: '${env:MY_KEY}', base_url: 'https://w.lab', project: p}\n"
    section += "job: {environment: {WANDB_PROJECT: q}}\n"
    made = job(f"{section}command: {{cmd: 'true', finished_by: [wandb], env: {json.dumps(given)}}}")
    given["WANDB_PROJECT"] = "q"
    command = Command(("bash", "script"), "script", {"TPUX_OUTPUT_DIR": "/out/attempt-1", **given})
    answer = tpux_wandb.prepare_command(replace(made, attempt=1), command, made.sections["wandb"], Worker(0))
    assert answer.env == {**command.env, "WANDB_BASE_URL": "https://w.lab"}


def test_the_run_is_found_in_a_directory_of_the_users_own_and_can_be_uploaded_as_shown(program, tmp_path):
    """The directory may also have the runs of other jobs, and of earlier attempts."""
    code, tools = tmp_path / "code", tmp_path / "bin"
    write_run(code / "it's mine/wandb/offline-run-20991122_000000-other/run-other.wandb", [RUN, EXIT_0])
    newest = 'touch -d 2099-01-01 "$WANDB_DIR"/wandb/*-other/*'
    tools.mkdir()
    (tools / "wandb").write_text('#!/bin/sh\necho "$WANDB_API_KEY $WANDB_BASE_URL $*"\n')
    (tools / "wandb").chmod(0o755)
    settings = {
        "job": {"max_restarts": {"program": 1, "infra": 0}},
        "command": {
            "cmd": f"{newest}; [ $TPUX_ATTEMPT = 2 ] && exit 8; {program('sys.exit(9)')}",
            "env": {"WANDB_DIR": "it's mine", "PATH": f"{tools}:/usr/bin:/bin"},
            "finished_by": ["wandb"],
        },
        "code": str(code),
        "wandb": {"api_key": "${env:MY_KEY}", "base_url": "https://wandb.lab"},
    }
    run = run_job(settings)
    [first] = [event.data for event in run.events if event.type == "collected"]
    assert (run.attempts, run.failure.code, first["exit code"]) == (2, 8, 9), "the second attempt has no run"
    assert first["run"] in first["to upload it"], first
    upload, _, _ = str(first["to upload it"]).partition(" while the job holds")
    (tmp_path / ".wandb-key").write_text(MY_KEY)
    assert first["the key for that"].startswith("tpux cp FILE 1:~/.wandb-key --worker 0, ")
    *_, script = shlex.split(upload)
    printed = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert not (tmp_path / ".wandb-key").exists()
    assert printed.stdout.startswith(f"{MY_KEY} https://wandb.lab sync /"), (printed, upload)
    assert printed.stdout.endswith(f"-{first['run']}\n")


def test_the_upload_where_the_script_activates_its_own_environment(tmp_path):
    """tpux does not know what the script does: the command is for a shell in which the user has done the same."""
    venv = tmp_path / "venv/bin"
    venv.mkdir(parents=True)
    (venv / "wandb").write_text('#!/bin/sh\necho "$WANDB_API_KEY $WANDB_BASE_URL $*"\n')
    (venv / "wandb").chmod(0o755)
    write_run(tmp_path / "record", [RUN, EXIT_0])
    run_directory = "$WANDB_DIR/wandb/offline-run-1-abc"
    cmd = f"PATH={venv}:$PATH; mkdir -p {run_directory}; cp {tmp_path}/record {run_directory}/run-abc.wandb; wandb x"
    command = {"cmd": cmd, "finished_by": ["wandb"], "env": {"PATH": "/usr/bin:/bin"}}
    run = run_job({"command": command, "wandb": {"api_key": "${env:MY_KEY}", "base_url": "https://wandb.lab"}})
    [shown] = [event.data for event in run.events if event.type == "collected"]
    upload, _, where = shown["to upload it"].partition(" in tpux ssh 1 --worker 0 ")
    assert where.startswith(
        "with the program's environment active while the job holds its machines; elsewhere wandb sync"
    )
    (tmp_path / ".wandb-key").write_text(MY_KEY)
    env = {"HOME": str(tmp_path), "PATH": f"{venv}:/usr/bin:/bin"}
    printed = subprocess.run(["bash", "-c", upload], env=env, capture_output=True, text=True, timeout=60)
    assert printed.stdout.startswith(f"{MY_KEY} https://wandb.lab sync /"), (printed, upload)
    assert not (tmp_path / ".wandb-key").exists()


def test_a_resumed_attempt_uses_the_same_id(program):
    ending = "sys.exit(0 if os.environ['TPUX_ATTEMPT'] == '2' else 9)"
    settings = {
        "job": {"max_restarts": {"program": 1}},
        "command": {"cmd": program(ending), "finished_by": ["wandb"]},
    }
    run = run_job(settings)
    ids = [event.data["run"] for event in run.events if event.type == "collected"]
    assert len(ids) == 2
    assert ids[0] == ids[1]
    assert f"id {ids[0]} allow" in run.output[0]


@pytest.mark.parametrize("own", [None, "own dir"])
def test_the_upload_names_the_directories_of_all_attempts_in_order(tmp_path, own):
    """The newest file alone has the steps of the last attempt."""
    write_run(tmp_path / "record", [RUN])
    (tmp_path / "code").mkdir()
    made = 'at="$WANDB_DIR/wandb/$1-2026010${TPUX_ATTEMPT}_000000-$2"; mkdir -p "$at"; cp $record "$at/run-$2.wandb"'
    cmd = f"""
        record={tmp_path / "record"}
        make() {{ {made}; }}
        make offline-run "$WANDB_RUN_ID"
        make offline-run another
        [ $TPUX_ATTEMPT != 2 ] || make run "$WANDB_RUN_ID"
        [ $TPUX_ATTEMPT = 3 ]
    """
    settings = {
        "job": {"max_restarts": {"program": 2}},
        "code": str(tmp_path / "code"),
        "command": {"cmd": cmd, "finished_by": ["wandb"], "env": {"WANDB_DIR": own} if own else {}},
    }
    run = run_job(settings)
    shown = [event.data for event in run.events if event.type == "collected"][-1]
    _, _, held = str(shown["to upload it"]).partition("sync ")
    _, _, elsewhere = str(shown["to upload it"]).partition("elsewhere wandb sync ")
    for command in (held.partition(" in tpux ssh")[0], elsewhere.partition(" where the director")[0]):
        names = [Path(path).name for path in shlex.split(command)]
        assert names == [f"offline-run-2026010{n}_000000-{names[0].split('-', 3)[3]}" for n in (1, 2, 3)]
        assert not names[0].endswith("another")


@pytest.mark.parametrize("output_dir", ["gs://bucket/runs", "relative"])
def test_an_output_directory_that_is_not_absolute_on_the_workers(tmp_path, output_dir):
    """A URL is no directory; and the program of a job with code starts elsewhere than in the home directory."""
    write_run(tmp_path / "record", [RUN, EXIT_0])
    (tmp_path / "code").mkdir()
    (tmp_path / "code/file").touch()
    cmd = f"ls -A; mkdir -p $WANDB_DIR/wandb/run-1-abc; cp {tmp_path}/record $WANDB_DIR/wandb/run-1-abc/run-abc.wandb"
    command = {"cmd": f"{cmd}; exit 3", "finished_by": ["wandb"]}
    run = run_job({"job": {"output_dir": output_dir}, "code": str(tmp_path / "code"), "command": command})
    assert (run.state, run.output[0]) == ("succeeded", "file\n"), run.why
    [event] = [event for event in run.events if event.type == "collected"]
    assert event.data["run"] == "abc"


@pytest.mark.parametrize("size", [0, 1, 100, 5000, 40_000])
def test_a_torn_file_is_read_as_far_as_it_goes(program, tmp_path, monkeypatch, size):
    env = {"WANDB_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    cmd = program("run.log({f'k{i}': 'x' * 100 for i in range(900)}); run.finish()").split()
    subprocess.run(cmd, env=env, check=True, capture_output=True, timeout=120)
    [path] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    whole = read_run.read(path)
    assert (whole["exit_code"], whole["summary"]["k899"]) == (0, f'"{"x" * 100}"')
    path.write_bytes(path.read_bytes()[:size])
    torn = read_run.read(path)
    assert torn["exit_code"] is None
    assert len(torn["summary"]) < len(whole["summary"])


class Counted(io.BytesIO):
    """A file that counts the bytes that are read."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


@pytest.mark.parametrize("size", [0, 1, 29, 32740])
def test_of_a_large_file_only_the_start_and_the_end_are_read(tmp_path, monkeypatch, size):
    path = tmp_path / "run-abc.wandb"
    early, middle, last = logged("early", "1"), logged("middle", "2"), logged("loss", "3")
    many = [message(9, bytes(32000))] * ((read_run.HEAD + read_run.TAIL) // 32000)
    # A record of several blocks lies across the place where reading continues.
    ends = [message(9, bytes(5 * 32768)), last, message(9, bytes(read_run.TAIL - 3 * 32768 + size)), EXIT_0]
    write_run(path, [RUN, early, *many, middle, *ends])
    file = Counted(path.read_bytes())
    monkeypatch.setattr(Path, "open", lambda *_: file)
    found = read_run.read(path)
    assert (found["run_id"], found["exit_code"], found["summary"]) == ("abc", 0, {"loss": "3"})
    assert file.count <= read_run.HEAD + read_run.TAIL + 2 * read_run.BLOCK < path.stat().st_size


@pytest.mark.parametrize("size", [0, 1])
def test_the_end_of_a_record_is_not_taken_for_a_record(tmp_path, size):
    path = tmp_path / "run-abc.wandb"
    write_run(path, [RUN, bytes(size), b"\x92\x01" * (read_run.HEAD + read_run.TAIL)])  # parts of it would be an exit
    found = read_run.read(path)
    assert (found["run_id"], found["exit_code"]) == ("abc", None)


class WandbServer(BaseHTTPRequestHandler):
    """Answers what wandb needs for a run `abc`, "fast-1", of the project `demo` of the entity `lab`."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        project = {"id": "p", "name": "demo", "entity": {"id": "e", "name": "lab"}}
        bucket = {"id": "b", "name": "abc", "displayName": "fast-1", "config": "{}", "project": project}
        viewer = {"id": "u", "flags": "{}", "entity": "lab", "username": "lab", "teams": {"edges": []}}
        data = {"viewer": viewer, "serverInfo": {"features": []}, "upsertBucket": {"bucket": bucket, "inserted": True}}
        answer = json.dumps({"data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


def test_the_url_of_a_run_is_known_while_it_is_in_progress_and_when_it_was_killed(program):
    """The real wandb, online: it prints the URL when the run begins, and after its regular end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), WandbServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    wait = "import time\nwhile not os.path.exists('killed'): time.sleep(0.1)\nos.kill(os.getpid(), signal.SIGKILL)"
    section = {"base_url": base, "api_key": "${env:MY_KEY}", "one_run": False}
    command = {"cmd": program(wait, "online"), "finished_by": ["wandb"]}
    with Sandbox() as sandbox:
        job = sandbox.start({"wandb": section, "command": command})
        known = job.until(lambda state: progress.load(job.controller.record.directory, state)[0].url)
        assert progress.load(job.controller.record.directory, known)[0].url == f"{base}/lab/demo/runs/abc"
        assert known.state == "running"
        [worker] = job.controller.begin().machines.workers
        Path(worker.details["home"], "killed").touch()
        state = job.until(lambda state: state.ended)
        assert state.collected[0]["wandb"]["url"] == f"{base}/lab/demo/runs/abc"
    server.shutdown()
    server.server_close()


def test_the_url_comes_from_the_output_or_from_the_record():
    footer = "wandb: \U0001f680 View run fast-1 at: https://wandb.ai/lab/demo/runs/abc\nwandb: Find logs at: ./x\n"
    run = {"run_id": "abc", "project": "demo", "exit_code": 0, "summary": {}, "at": 1, "directory": "/o/run-1-abc"}
    for log, entity, url in [
        (footer, "", "https://wandb.ai/lab/demo/runs/abc"),
        ("", "me", "https://wandb.ai/me/demo/runs/abc"),
        ("", "", None),
    ]:
        steps = tpux_wandb.collect(
            job({"command": {"cmd": "true", "finished_by": ["wandb"]}}), None, attempt(log), Worker(0)
        )
        answer = f"tpux-wandb {json.dumps({**run, 'entity': entity})}"
        assert steps_of(steps, answers={"wandb": answer}).value.get("url") == url


BLOCK = r"printf 'wandb: \n\033[1;34mwandb\033[0m: Run %s:\nwandb: loss 0.1\n' summary"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"command": {"cmd": f"{BLOCK}; kill -ABRT $$"}}, True),
        ({"command": {"cmd": f"{BLOCK.replace('summary', 'history')}; exit 3"}}, True),
        ({"command": {"cmd": f"{BLOCK}; exit 3", "finished_by": ["wandb"]}}, False),
        ({"command": {"cmd": "echo epoch 3; exit 3"}}, False),
        ({"command": {"cmd": f"{BLOCK}; exit 3"}, "plugins": {"disabled": ["wandb"]}}, False),
    ],
)
def test_a_failure_after_the_summary_names_finished_by(settings, named):
    run = run_job(settings)
    assert run.state == "failed"
    assert ("command.finished_by: [wandb]" in run.failure.hint) == named, run.failure
    assert run.failure.hint.startswith("tpux logs 1 --worker 0")


@pytest.mark.system
def test_online_without_a_network_the_service_has_failed(program):
    """With `WANDB_RESUME=allow`, which tpux sets, wandb asks the server before it begins."""
    environment = {
        "WANDB_BASE_URL": "http://127.0.0.1:9",
        "WANDB_API_KEY": "k" * 40,
        "WANDB_INIT_TIMEOUT": "5",
        "WANDB_HTTP_TIMEOUT": "1",
    }
    settings = {
        "job": {"max_restarts": {"service": 0}},
        "command": {"cmd": program("", mode="online"), "finished_by": ["wandb"], "env": environment},
    }
    assert run_job(settings, timeout=120).failure.kind == "service"


def test_the_reader_needs_no_package():
    assert Path(read_run.__file__).read_text() == tpux_wandb.READER
    assert "import wandb" not in tpux_wandb.READER


@pytest.mark.parametrize(
    ("given", "runs", "run", "finished"),
    [
        pytest.param("", {"main": None, "eval": 0}, "eval", False, id="a run is open while a later one has ended"),
        pytest.param("", {"main": 1, "eval": 0}, "eval", True, id="a run has failed, and the program went on"),
        pytest.param("main", {"main": 0, "eval": None}, "main", False, id="the given one has ended, another is open"),
        pytest.param("main", {"main": None, "eval": 0}, "main", False, id="the given one is open"),
        pytest.param("main", {"main": 0, "eval": 1}, "main", True, id="the given one has ended"),
    ],
)
def test_of_several_runs_none_may_be_open(tmp_path, capsys, given, runs, run, finished):
    for at, (name, code) in enumerate(runs.items(), 1000):
        path = tmp_path / f"wandb/offline-run-1-{name}/run-{name}.wandb"
        ends = [] if code is None else [message(18, bytes([8, code]))]
        write_run(path, [message(17, message(1, name.encode())), *ends])
        os.utime(path, (at, at))
    (tmp_path / "started").write_bytes(f"wandb\0{tmp_path}\0{given}\0".encode())
    read_run.main(tmp_path)
    steps = tpux_wandb.collect(
        job({"command": {"cmd": "true", "finished_by": ["wandb"]}}), None, attempt(""), Worker(0)
    )
    found = steps_of(steps, answers={"wandb": capsys.readouterr().out}).value
    assert found["run"] == run
    made = replace(attempt(""), collected={0: {"wandb": found}})
    trusts = job({"command": {"cmd": "true", "finished_by": ["wandb"]}})
    assert bool(tpux_wandb.classify_failure(trusts, made)) == finished
