"""Make the pictures of `tpux web` for the README: docs/images/web-jobs.png and web-job.png, of jobs on this machine.

Needs chromium (apt install chromium) and the development tools: .venv/bin/python scripts/screenshots.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent.parent / "docs/images"
TPUX = Path(sys.executable).parent / "tpux"
TRAIN = """\
job: {{name: {name}}}
tpu: {{accelerator: v4-8}}
command:
  cmd: |
    python3 - <<'EOF'
    import math, time
    for step in range(1, {steps}):
        print(f"step {{step}} loss {{1.8 + 2.4 * math.exp(-step / 60) + 0.05 * math.sin(step):.3f}}", flush=True)
        time.sleep({pause})
    EOF
    {end}
"""
JOBS = (
    ("llama-lr3e-4", 400, 0.05, "sleep 300"),
    ("llama-lr1e-4", 90, 0.1, "sleep 300"),
    ("vit-debug", 30, 0.01, "exit 1"),
)


def main() -> None:
    """Run the jobs, take the pictures, and delete the jobs."""
    with tempfile.TemporaryDirectory() as directory:
        env = {**os.environ, "TPUX_HOME": f"{directory}/home", "TPUX_USER": "ann"}
        ids = []
        for name, steps, pause, end in JOBS:
            config = Path(directory, f"{name}.yaml")
            config.write_text(TRAIN.format(name=name, steps=steps, pause=pause, end=end))
            made = subprocess.run([TPUX, "create", config, "--json"], env=env, check=True, capture_output=True)
            ids.append(str(json.loads(made.stdout)["id"]))
        subprocess.run([TPUX, "list"], env=env, check=True)
        time.sleep(30)
        server = subprocess.Popen([TPUX, "web", "--port", "0"], env=env, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            take(server.stdout.readline().strip(), int(ids[0]))
        finally:
            server.terminate()
            server.wait(30)
            subprocess.run([TPUX, "delete", "-y", *ids], env=env, check=True)
            subprocess.run([TPUX, "supervisor", "stop"], env=env, check=True)  # it writes into the directory


def take(address: str, job: int) -> None:
    """Take the pictures of a running server."""
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 350})
        page.goto(address.replace("/#", "/jobs#"))
        page.locator("tbody tr").nth(2).wait_for()
        page.screenshot(path=IMAGES / "web-jobs.png", full_page=True)  # however high the table is
        page.set_viewport_size({"width": 1000, "height": 1500})
        page.goto(f"{address.partition('#')[0]}jobs/{job}")
        page.locator(".chart").first.wait_for()
        page.wait_for_timeout(1000)
        chart = page.locator(".chart").first.bounding_box()
        assert chart is not None
        end = chart["y"] + chart["height"] + 16
        page.screenshot(
            path=IMAGES / "web-job.png", full_page=True, clip={"x": 0, "y": 0, "width": 1000, "height": end}
        )
        browser.close()


if __name__ == "__main__":
    main()
