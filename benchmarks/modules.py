"""Modules on emulated TPU VMs: preparing 64 workers and one, checking them, and starting another attempt on them.

gcsfuse and the Python that creates an environment are stand-ins, and a step sleeps: on real machines the steps of 64
workers take as long as those of one, while here they would share the cores. What is measured is tpux.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.emulated import ZONE, unavailable
from benchmarks.measure import Row, at_most, until
from benchmarks.sandbox import Sandbox, running, temporary_sandbox
from tpux.model.events import AttemptRunning, StateChanged
from tpux.store.record import Record
from tpux_emulator.cloud.settings import DEFAULT_DELAYS
from tpux_emulator.emulator import Emulator

STEP = 45
"""Seconds that a step of each worker takes, whatever their number: as the installation of a small environment."""
CHECKED = ("ssh", "gcsfuse", "venv", "code")
JOB = """
job: {{name: bench, env_type: venv, rule: pass}}
tpu: {{allocation_mode: tpu-vm, accelerator: {accelerator}, zone: {zone}, project: emulated, endpoint: '{url}'}}
ssh: {{port: {port}}}
code: {{dir: '{directory}'}}
gcsfuse: {{bucket_name: data, mount_path: /run/bench/gcs}}
script: {{path: '{directory}/prepare.sh'}}
command: {{cmd: 'echo here; exec sleep 3600', grace_period: 1s}}
"""
# A tmpfs stands for the bucket: FUSE would cost 64 processes. It is named after the bucket, which the check looks for.
GCSFUSE = """#!/bin/sh
for word; do bucket=$point point=$word; done
exec sudo -n mount -t tmpfs -o mode=777 "$bucket" "$point"
"""
PYTHON = """#!/bin/sh
case "$1 $2" in "-m venv") ;; *) exit ;; esac
mkdir -p "$3/bin"
: >"$3/pyvenv.cfg"
cp "$0" "$3/bin/python"
echo "export VIRTUAL_ENV='$3'" >"$3/bin/activate"
"""


def rows() -> list[Row]:
    """Measure jobs with one, 4 and 64 workers."""
    if reason := unavailable():
        return [Row("modules on emulated TPU VMs", f"not measured: {reason}")]
    with temporary_sandbox() as sandbox:
        home = sandbox.directory / "emulator"
        _write_image(home / "image/usr/local/bin")
        (sandbox.directory / "code").mkdir()
        (sandbox.directory / "code/prepare.sh").write_text(f"sleep {STEP}\n")
        with Emulator(home, clock_rate=1, delays=dict.fromkeys(DEFAULT_DELAYS, 0.0)) as cloud:
            sandbox.env |= {"PYTHONPYCACHEPREFIX": str(sandbox.directory / "pycache"), "PYTHONDONTWRITEBYTECODE": ""}
            sandbox.env |= cloud.environment(zone=ZONE)
            try:
                return _rows(sandbox, cloud)
            finally:
                sandbox.tpux("supervisor", "stop")  # before the emulator stops: it would request new nodes


def _write_image(programs: Path) -> None:
    programs.mkdir(parents=True)
    for name, text in {"gcsfuse": GCSFUSE, "python3": PYTHON}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)


def _rows(sandbox: Sandbox, cloud: Emulator) -> list[Row]:
    one, _, _ = _measure(sandbox, cloud, "v4-8")
    _, _, four_again = _measure(sandbox, cloud, "v4-32")
    many, checked, again = _measure(sandbox, cloud, "v4-512")
    note = f"{many:.1f} s and {one:.1f} s, of which a step that sleeps takes {STEP} s; the workers share these cores"
    return [
        at_most("preparing 64 workers / preparing one", many / one, 1.5, note=note),
        at_most(f"`tpux check` of {', '.join(CHECKED)} on 64 prepared workers", checked, 3, unit=" s"),
        at_most(
            "another attempt on 4 prepared workers: set-up begun until the command is started",
            four_again,
            2,
            unit=" s",
            note=f"on 64: {again:.2g} s",
        ),
    ]


def _measure(sandbox: Sandbox, cloud: Emulator, accelerator: str) -> tuple[float, float, float]:
    """Return the seconds of a job's first set-up, of `tpux check`, and from its second set-up to its command."""
    place = {"zone": ZONE, "url": cloud.url, "port": cloud.ssh_port, "directory": sandbox.directory / "code"}
    record = sandbox.submit(JOB.format(accelerator=accelerator, **place))
    until(lambda: running(record), within=300, why="the job to run")
    began = time.monotonic()
    sandbox.tpux("check", record.id, *(word for name in CHECKED for word in ("--only", name)))
    checked = time.monotonic() - began
    sandbox.tpux("stop", record.id, "--keep")
    sandbox.tpux("resume", record.id)
    until(lambda: running(record) and record.refresh().attempt == 2, within=120, why="the second attempt")
    first, second = _set_ups(record)
    sandbox.tpux("delete", record.id, "-y")
    sandbox.tpux("supervisor", "stop")
    return first, checked, second


def _set_ups(record: Record) -> list[float]:
    """Return for each attempt how many seconds its set-up took, until the command was started on all workers."""
    began = 0.0
    found: list[float] = []
    for event, _ in record.events():
        if isinstance(event, StateChanged) and event.to == "setting-up":
            began = event.at
        elif isinstance(event, AttemptRunning):
            found.append(event.at - began)
    return found
