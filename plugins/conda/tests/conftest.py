"""Workers with a command like conda, and a channel in a directory."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import shlex
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tpux import Host, Result, Steps
from tpux_conda.section import CondaSection

STAND_IN = Path(__file__).with_name("stand_in.py")
PYTHON = """#!/bin/sh
case $1 in
    --version) echo Python VERSION ;;
    -m) shift; echo "$@" >>"$CONDA_PREFIX/pip-calls"; for file; do :; done; cat "$file" >>"$CONDA_PREFIX/pip-calls"
        if grep -q nmupy "$file"; then
            echo "ERROR: Could not find a version that satisfies the requirement nmupy (from versions: none)" >&2
            echo "ERROR: No matching distribution found for nmupy" >&2
            exit 1
        fi ;;
esac
"""
PACKAGES = {
    ("tiny", "1.0"): ("bin/tiny", "#!/bin/sh\necho tiny 1.0\n"),
    ("tiny", "2.0"): ("bin/tiny", "#!/bin/sh\necho tiny 2.0\n"),
    ("extra", "1.0"): ("bin/extra", "#!/bin/sh\necho extra 1.0\n"),
    ("python", "3.10.4"): ("bin/python", PYTHON.replace("VERSION", "3.10.4")),
    ("python", "3.12.1"): ("bin/python", PYTHON.replace("VERSION", "3.12.1")),
}


def _write_package(channel: Path, name: str, version: str, path: str, content: str) -> None:
    data = content.encode()
    entry = {"_path": path, "path_type": "hardlink", "sha256": hashlib.sha256(data).hexdigest()}
    index = {"name": name, "version": version, "build": "0", "build_number": 0, "depends": [], "timestamp": 1}
    files = {
        "info/index.json": json.dumps({**index, "subdir": "noarch", "noarch": "generic"}).encode(),
        "info/paths.json": json.dumps({"paths_version": 1, "paths": [{**entry, "size_in_bytes": len(data)}]}).encode(),
        path: data,
    }
    with tarfile.open(channel / f"noarch/{name}-{version}-0.tar.bz2", "w:bz2") as archive:
        for member, content_ in files.items():
            info = tarfile.TarInfo(member)
            info.size, info.mode = len(content_), 0o755
            archive.addfile(info, io.BytesIO(content_))


@pytest.fixture(scope="session")
def channel(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a channel with the packages."""
    rattler_index = pytest.importorskip("rattler.index", reason="py-rattler is not installed")
    directory = tmp_path_factory.mktemp("channel")
    for subdir in ("noarch", "linux-64", "linux-aarch64"):
        (directory / subdir).mkdir()
    for (name, version), (path, content) in PACKAGES.items():
        _write_package(directory, name, version, path, content)
    asyncio.run(rattler_index.index_fs(directory))
    return f"file://{directory}"


@dataclass
class Workers:
    """Workers whose PATH has a command like conda.

    Attributes:
        path: their PATH; its first directory is theirs.
        file: an environment.yml.
    """

    path: str
    file: Path
    channel: str
    new: Callable[..., Host]

    @property
    def bin(self) -> Path:
        return Path(self.path.partition(os.pathsep)[0])

    def host(self) -> Host:
        return self.new(PATH=self.path, CONDA_FORGE=self.channel)

    def program(self, name: str) -> None:
        """Install the stand-in under a name."""
        path = self.bin / name
        settings = f"export STAND_IN={shlex.quote(str(STAND_IN))} STAND_IN_PYTHON={shlex.quote(sys.executable)}\n"
        path.write_text(STAND_IN.with_suffix(".sh").read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{settings}", 1))
        path.chmod(0o755)

    def write(self, *dependencies: str) -> CondaSection:
        """Write the environment.yml, and return a section that names it."""
        listed = "".join(f"  - {one}\n" for one in dependencies)
        self.file.write_text(f"name: other\nchannels: [{self.channel!r}]\ndependencies:\n{listed}")
        return CondaSection.model_validate({"name": "train", "config_file": self.file})

    def take(self, host: Host, steps: Steps) -> Result:
        """Take steps until one fails that may not; return its result, or the last one."""
        result = Result()
        answer: Result | None = None
        while True:
            try:
                step = steps.send(answer)  # type: ignore[arg-type]
            except StopIteration:
                return result
            if hasattr(step, "script"):
                answer = result = host.run(f"set -e\n{step.script}")
            else:
                host.put(step.source, step.remote, step.mode)
                answer = Result()
            if not answer.ok and not getattr(step, "may_fail", False):
                return answer


@pytest.fixture
def workers(channel: str, local_host: Callable[..., Host], tmp_path: Path) -> Workers:
    """Return workers with `conda`."""
    (tmp_path / "bin").mkdir()
    made = Workers(f"{tmp_path}/bin:/usr/bin:/bin", tmp_path / "environment.yml", channel, local_host)
    made.program("conda")
    return made
