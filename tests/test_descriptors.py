"""Open files are a budget: jobs wait for a free descriptor, and no program inherits the supervisor's limit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

CONFIG = "tpu: {accelerator: v4-8}\ncommand: {cmd: '%s', grace_period: 1s}\n"


def create_with(tpux, soft: int, hard: int, cmd: str) -> str:
    """Create a job with a command that has these limits, and starts the supervisor."""
    config = tpux.config(CONFIG % cmd)
    script = 'ulimit -S -n "$0" && ulimit -H -n "$1" && shift && exec "$@"'
    create = [str(tpux.python), "-m", "tpux.cli.main", "create", config, "--json"]
    done = subprocess.run(
        ["sh", "-c", script, str(soft), str(hard), *create],
        env=tpux.env,
        cwd=tpux.work,
        capture_output=True,
        check=True,
    )
    tpux.until(tpux.supervisor, "for the supervisor: another command would start one with its own limits")
    return str(json.loads(done.stdout)["id"])


def test_a_program_has_the_limit_of_the_command_that_has_started_the_supervisor(tpux):
    job = create_with(tpux, 300, 500, "ulimit -Sn; ulimit -Hn; ulimit -Sn >&2; sleep 1000")
    tpux.until(lambda: tpux.output_so_far(job).count(b"\n") == 3, "for the output")
    assert tpux.output(job) == b"300\n500\n300\n"
    limits = Path(f"/proc/{tpux.supervisor()}/limits").read_text()
    assert "Max open files            500                  500" in limits
    tpux("stop", job)


@pytest.mark.system
def test_a_process_that_replaces_the_supervisor_gives_back_the_same_limit(tpux):
    module = tpux.plugin("tpux-note", "def find_orphans(): pass\n", entries="note = tpux_note")
    job = create_with(tpux, 300, 500, "while sleep 0.2; do ulimit -Sn; done")
    tpux.until(lambda: tpux.output_so_far(job), "for the program")
    module.write_text("# edited\n")
    tpux.until(lambda: tpux.log().count("replacing process") == 1, "for the new process")
    other = tpux.create(CONFIG % "ulimit -Sn")
    tpux.until_state(other, "succeeded")
    assert tpux.output(other) == b"300\n"
    tpux("stop", job)


@pytest.mark.system
def test_jobs_wait_for_a_free_descriptor_and_say_so_and_a_stop_does_not(tpux):
    go = tpux.work / "go"
    waits = CONFIG % f"until [ -e {go} ]; do sleep 0.1; done"
    jobs = [create_with(tpux, 48, 48, f"until [ -e {go} ]; do sleep 0.1; done")]
    jobs += [tpux.create(waits) for _ in range(24)]
    tpux.until(lambda: tpux.show(jobs[-1])["why"] == "waiting for a free descriptor (limit 48)", "for the reason")
    tpux("stop", jobs[-1])
    tpux("stop", jobs[0])
    go.touch()
    for job in jobs[1:-1]:
        tpux.until_state(job, "succeeded")
