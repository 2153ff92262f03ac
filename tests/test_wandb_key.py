"""The key of Weights & Biases is in no argument list, log or event: only in files of mode 0600, and in the program."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tpux import env
from tpux.store import hooks
from tpux_testing.sandbox import Sandbox

KEY = "canary0f1e2d3c4b5a69788796a5b4c3d2e1f0"
CONFIG = {
    "job": {"rule": "resume", "max_restarts": {"program": 1}},
    "tpu": {"node_count": 2},
    "wandb": {"api_key": "${env:WANDB_API_KEY}", "project": "demo"},
    "command": {
        "cmd": "echo key of ${#WANDB_API_KEY}; sleep 0.5; echo 'wandb: ERROR api_key is not valid'; exit 1",
        "finished_by": ["wandb"],
    },
}


@contextmanager
def watched_arguments() -> Iterator[list[str]]:
    """Look for the key in the arguments of every process of this machine, meanwhile."""
    found: list[str] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            for path in (process / "cmdline" for process in Path("/proc").glob("[0-9]*")):
                try:
                    arguments = path.read_bytes()
                except OSError:
                    continue
                if KEY.encode() in arguments:
                    found.append(arguments.decode(errors="replace"))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def files_with_key(home: Path) -> dict[str, int]:
    """Return the permissions of the files that have the key, by path."""
    found = {}
    for path in home.rglob("*"):
        try:
            if path.is_file() and KEY.encode() in path.read_bytes():
                found[str(path.relative_to(home))] = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            continue
    return found


def test_the_key_is_nowhere(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv(env.TRACE_HOOKS, "1")
    with watched_arguments() as arguments, Sandbox() as sandbox:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        job = sandbox.start(CONFIG)
        hooks.start_trace(job.controller.record.directory)
        monkeypatch.delenv("WANDB_API_KEY")
        job.until(lambda state: state.run.running)
        meanwhile = files_with_key(sandbox.home)
        assert job.until(lambda state: state.ended).state == "failed"
        assert job.output() == f"key of {len(KEY)}\nwandb: ERROR api_key is not valid\n"
        directory = job.controller.record.directory
        assert "prepare_command" in (directory / "hooks.jsonl").read_text()
        [secrets] = meanwhile
        assert secrets.endswith("/secrets.json")
        assert meanwhile[secrets] == 0o600
        job.until(lambda _: not (directory / "secrets.json").exists())
        assert files_with_key(sandbox.home) == {}
    assert arguments == []
    assert KEY not in caplog.text
