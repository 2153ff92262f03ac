"""Write the picture of `tpux monitor` in README.md: `python scripts/monitor_picture.py docs/monitor.svg`.

The jobs are made up; the screen is the monitor's own, which Textual exports.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tpux import Progress
from tpux.api import JobInfo
from tpux_monitor.app import Monitor
from tpux_monitor.rows import Job

SIZE = (100, 24)


@dataclass(frozen=True)
class Example:
    """A job of the picture."""

    id: int
    name: str
    state: str
    tpu: str
    minutes: float
    attempt: int = 1
    step: int | None = None
    why: str = ""
    last_line: str = ""


JOBS = (
    Example(14, "llama-lr3e-4", "running", "v4-32", 150, 3, 4200, last_line="step 4200/10000 loss 2.309"),
    Example(13, "llama-lr1e-4", "provisioning", "v4-32", 17, why="no capacity in us-central2-b: asking again in 40 s"),
    Example(12, "vit-big", "recovering", "v5e-64", 3.5, 2, 900, why="preempted: requesting new machines"),
    Example(11, "vit-debug", "failed", "v4-8", 1500, 1, 310, why="program on worker 0: exit code 1: out of memory"),
    Example(10, "resnet", "succeeded", "v4-8", 3100, 2, 10000, why="the program has finished"),
)


def main(target: Path) -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        lines = [f"step {step}/10000 loss {2.31 + (4200 - step) * 0.002:.3f}" for step in range(4188, 4201)]
        log.write_text("\n".join([*lines[:-1], "saved checkpoint 4200", lines[-1], ""]))
        jobs, logs = [_job(example) for example in JOBS], dict.fromkeys(range(4), log)
        with patch("tpux_monitor.app.read", lambda **_: jobs), patch("tpux_monitor.app.files", lambda _: logs):
            # Without the fonts of another host, which a page would load.
            target.write_text(re.sub(r"@font-face \{[^}]*\}\s*", "", asyncio.run(_draw())))


async def _draw() -> str:
    app = Monitor(interval=0.25)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(1)
        return app.export_screenshot(title="tpux monitor")


def _job(example: Example) -> Job:
    now, ended = time.time(), example.state in {"failed", "succeeded"}
    since = now - 60 * example.minutes
    info = JobInfo(
        id=f"{example.id:06}", user="ann", name=example.name, state=example.state, why=example.why, hint="",
        ended=ended, done=ended, attempt=example.attempt, stage=0, accelerator=example.tpu, workers=4,
        zone=None, machines=None, failure=None, since=since, created_at=since, updated_at=now,
        directory=Path("/"), output_dir="",
        progress=None if example.step is None else Progress(step=example.step, total=10000),
    )  # fmt: skip
    return Job(info, example.last_line)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
