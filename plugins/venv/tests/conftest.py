"""A worker without tpux: a home directory, its own PATH, and steps run as core runs them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import tpux_venv
from tpux import Command, Put, Result, Section, Sh, Step, Steps
from tpux_testing import job
from tpux_venv.build import build
from tpux_venv.section import VenvSection

JOB = job()
REQUIREMENTS = "--no-index\ntpux-tiny\n"


@dataclass
class Bench:
    """A worker."""

    home: Path
    bin: Path
    wheels: Path
    requirements: Path

    @property
    def env(self) -> dict[str, str]:
        path = f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin"
        return {"HOME": str(self.home), "PATH": path, "PIP_NO_INDEX": "1", "LANG": "C.UTF-8"}

    def section(self, **keys: object) -> VenvSection:
        return VenvSection.model_validate(
            {"name": "env", "requirements_file": self.requirements, "find_links": "wheels", **keys}
        )

    def program(self, name: str, script: str) -> None:
        """Put a shell script on the worker's PATH."""
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def run_steps(self, steps: Steps, most: int = 100) -> tuple[Step, Result] | None:
        """Run at most `most` steps until one fails; return the failed step and its result."""
        result: Result | None = None
        for _ in range(most):
            try:
                step = steps.send(result)  # type: ignore[arg-type]
            except StopIteration:
                return None
            result = self.run_step(step)
            if not result.ok and not (isinstance(step, Sh) and step.may_fail):
                return step, result
        return None

    def run_step(self, step: Step) -> Result:
        if isinstance(step, Put):
            target = self.home / step.remote.removeprefix("~/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(step.source if isinstance(step.source, bytes) else step.source.read_bytes())
            return Result()
        return self.sh("sh", "-e", "-c", step.script)

    def sh(self, *argv: str) -> Result:
        done = subprocess.run(argv, cwd=self.home, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return Result(done.returncode, done.stdout)

    def check(self, section: Section) -> str:
        """Return why the environment is not ready, or '' if it is."""
        failed = self.run_steps(tpux_venv.check(JOB, section))
        shutil.rmtree(self.home / ".tpux/uses" / JOB.key, ignore_errors=True)  # not in the way of other set-ups
        return failed[1].text or "no output" if failed else ""

    def setup(self, section: Section) -> None:
        failed = self.run_steps(build(section))
        assert failed is None, failed[1].text

    def run(self, section: Section, script: str) -> Result:
        """Run a command wrapped by the plugin."""
        (self.home / "script").write_text(script)
        wrapped = tpux_venv.run(Command(argv=("bash", "script"), script="script"), section)
        return self.sh(*wrapped.argv)

    def add_wheel(self, version: str) -> None:
        """Write a wheel of the package `tpux-tiny`."""
        self.wheels.mkdir(exist_ok=True)
        info = f"tpux_tiny-{version}.dist-info"
        files = {
            "tpux_tiny.py": f"VERSION = {version!r}\nimport sys\ndef main(): print('tiny', sys.prefix)\n",
            f"{info}/entry_points.txt": "[console_scripts]\ntpux-tiny = tpux_tiny:main\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tpux-tiny\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
        with zipfile.ZipFile(self.wheels / f"tpux_tiny-{version}-py3-none-any.whl", "w") as wheel:
            for name, content in {**files, f"{info}/RECORD": record}.items():
                wheel.writestr(name, content)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment once per session, since installing pip takes seconds."""
    path = tmp_path_factory.mktemp("template") / "env"
    subprocess.run([sys.executable, "-m", "venv", path], check=True)
    return path


@pytest.fixture
def bench(tmp_path: Path, template: Path) -> Bench:
    """Return a worker with Python and one wheel, without uv. Its `-m venv` copies pip from the template."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    bench = Bench(home, programs, home / "wheels", tmp_path / "requirements.txt")
    python = shlex.quote(sys.executable)
    pip = f'cp -rl {template}/lib/. "$3/lib"'
    with_pip = '[ "$2" = venv ] && [ "$3" != --without-pip ]'
    venv = f'if {with_pip}; then {python} -m venv --without-pip "$3" && {pip}; exit; fi'
    for name in ("python3", f"python{sys.version_info[0]}.{sys.version_info[1]}"):
        bench.program(name, f'{venv}\nexec {python} "$@"')
    bench.program("uv", "exit 1")
    bench.requirements.write_text(REQUIREMENTS)
    bench.add_wheel("1.0")
    return bench


@pytest.fixture
def uv(bench: Bench) -> Path:
    """Install the real uv on the worker; return the file to which each call adds a line."""
    real = shutil.which("uv", path=os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)]))
    assert real is not None, "`make setup` installs uv"
    calls = bench.bin / "calls"
    bench.program("uv", f'echo "$@" >>{calls}; exec {real} "$@"')
    return calls
