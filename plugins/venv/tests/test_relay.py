"""Copies of an environment: between local workers, each of which starts processes of the others; from a bucket."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tpux import Job, Peer, Put, Result, Section, Steps, hookimpl, sh
from tpux_local import shell_on
from tpux_testing import job, run_job
from tpux_venv.build import _with_index, build
from tpux_venv.scripts import GET_UV
from tpux_worker_tools import peer_copy

RUN = "import sys, tpux_tiny; print(sys.prefix)"


class Index:
    """A package index on loopback, with the wheels of `bench`.

    Attributes:
        asked: the pages of packages that were asked for: one by each installation.
    """

    def __init__(self, wheels: Path, root: Path) -> None:
        self.asked: list[str] = []
        index = self
        (root / "simple/tpux-tiny").mkdir(parents=True)
        for wheel in wheels.iterdir():
            (root / "simple/tpux-tiny" / wheel.name).symlink_to(wheel)

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.endswith("/"):
                    index.asked.append(self.path)
                super().do_GET()

            def log_message(self, *_) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/simple"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def index(bench, tmp_path) -> Iterator[Index]:
    bench.requirements.write_text("tpux-tiny\n")
    index = Index(bench.wheels, tmp_path / "index")
    yield index
    index.close()


@pytest.fixture
def workers(bench, uv, local_host):
    """Four workers whose only package source is the wheels of `bench`."""
    return [local_host(**bench.env) for _ in range(4)]


def peers(workers, *numbers: int) -> list[Peer]:
    of_job = Job("000001", "me", "ab12", Path(), {}, resolved={"local": workers[0]._resolved})
    return [Peer(number, tuple(shell_on(workers[number].worker, of_job))) for number in numbers]


def set_up(bench, host, others, directory: str | None = None) -> str:
    """Set up a worker; return the output of its steps."""
    section = bench.section(path="env", find_links=str(bench.wheels))
    steps, output, result = build(section, host.worker.index, others, directory), "", None
    while True:
        try:
            step = next(steps) if result is None else steps.send(result)
        except StopIteration:
            return output
        if isinstance(step, Put):
            host.put(step.source, step.remote, step.mode)
            result = Result()
            continue
        result = host.run(f"set -e\n{step.script}", timeout=100)
        output += result.text + "\n"
        assert result.ok or step.may_fail, output


def test_the_index_is_asked_once_for_all_workers(bench, uv, index, monkeypatch):
    monkeypatch.setenv("PATH", f"{bench.bin}{os.pathsep}/usr/bin{os.pathsep}/bin")
    config = {
        "tpu": {"accelerator": "v4-32"},
        "job": {"env_type": "venv"},
        "venv": {"path": "my env", "requirements_file": bench.requirements, "index_url": index.url},
        "command": {"cmd": f"python -c '{RUN}' && tpux-tiny && python -m pip --version"},
    }
    ran = run_job(config)
    assert ran.state == "succeeded", ran.why
    for number in (1, 2, 3):
        assert "copied from worker" in (log := ran.logs[f"venv_worker_{number}.log"]), log
    assert index.asked == ["/simple/tpux-tiny/"]
    prefixes = set()
    for number in range(4):
        prefix, tiny, pip = ran.output[number].splitlines()
        assert (tiny, prefix in pip) == (f"tiny {prefix}", True), "its scripts start its own Python"
        prefixes.add(prefix)
    assert len(prefixes) == 4, "each worker runs its own copy"


def test_a_worker_that_has_survived_is_copied_by_the_first_one(bench, workers):
    set_up(bench, workers[2], [])
    for wheel in bench.wheels.iterdir():
        wheel.unlink()
    assert "copied from worker 2" in set_up(bench, workers[0], peers(workers, 1, 2, 3))
    assert "copied from worker 0" in set_up(bench, workers[1], peers(workers, 0, 2, 3))
    assert workers[1].run(f"env/bin/python -c '{RUN}'").text == str(workers[1].home / "env")


def test_changed_requirements_are_copied_too(bench, workers):
    for worker in (0, 1):
        set_up(bench, workers[worker], [])
    bench.add_wheel("2.0")
    bench.requirements.write_text("--no-index\ntpux-tiny==2.0\n")
    set_up(bench, workers[0], [])
    for wheel in bench.wheels.iterdir():
        wheel.unlink()
    assert "copied from worker 0" in set_up(bench, workers[1], peers(workers, 0))
    assert workers[1].run("env/bin/python -c 'import tpux_tiny; print(tpux_tiny.VERSION)'").text == "2.0"


def test_a_worker_without_ensurepip_copies_before_it_asks_the_index(bench, workers, uv):
    set_up(bench, workers[0], [])
    calls = uv.read_text()
    for name in ("python3", f"python{sys.version_info[0]}.{sys.version_info[1]}"):
        python = (bench.bin / name).read_text().partition("\n")[2]
        bench.program(name, f'case "$*" in *ensurepip* | "-m venv /"*) exit 1 ;; esac\n{python}')
    for name in ("apt-get", "sleep"):  # where it would end otherwise
        bench.program(name, "exit 1")
    assert "copied from worker 0" in set_up(bench, workers[1], peers(workers, 0))
    assert uv.read_text() == calls, "uv would ask the index"
    assert workers[1].run(f"env/bin/python -c '{RUN}' && env/bin/python -m pip --version").ok


def test_uv_is_installed_with_the_workers_pip_where_the_environment_has_none(bench):
    (bench.bin / "uv").unlink()
    bench.sh("python3", "-m", "venv", "--without-pip", "env")
    bench.program("python3", 'echo "$@" >calls; exit 1')
    bench.run_steps(_with_index(bench.section(), GET_UV))
    assert "pip install" in (bench.home / "calls").read_text()


BLOCKED = ("sh", "-c", "echo 'ssh: connect to host 10.0.0.2 port 22: Connection timed out' >&2; exit 255")


def test_a_worker_that_the_network_does_not_let_through_is_not_waited_for(bench, workers, monkeypatch):
    monkeypatch.setattr(peer_copy, "BLOCKED_TIMEOUT", 0)
    assert "Connection timed out" in set_up(bench, workers[1], [Peer(0, BLOCKED)])


UNREACHED = ("sh", "-c", "exit 255")
CUT_OFF = (
    "sh",
    "-c",
    'script=$(cat); case $script in *"set -- send"*) echo "$script" | "$@" | head -c 20000 ;; esac',
    "-",
)


@pytest.mark.parametrize("broken", [UNREACHED, CUT_OFF])
def test_without_a_copy_the_worker_asks_the_index(bench, workers, monkeypatch, broken):
    monkeypatch.setattr(peer_copy, "UNREACHED_TIMEOUT", 0)
    set_up(bench, workers[0], [])
    (peer,) = peers(workers, 0)
    output = set_up(bench, workers[1], [Peer(0, (*broken, *peer.shell))])
    assert "copied from" not in output
    assert workers[1].run(f"env/bin/python -c '{RUN}' && env/bin/python -m pip --version").ok
    assert workers[1].run("ls -d env/.tpux-venv-copy").code != 0


def test_an_environment_of_other_requirements_is_not_copied(bench, workers, monkeypatch):
    monkeypatch.setattr(peer_copy, "UNREACHED_TIMEOUT", 0)
    set_up(bench, workers[0], [])
    bench.requirements.write_text("--no-index\ntpux-tiny>=1\n")
    assert "worker 0 has nothing to copy (76)" in set_up(bench, workers[1], peers(workers, 0))


def test_a_worker_waits_while_another_one_builds(bench, workers):
    set_up(bench, workers[0], [])
    workers[0].put(b"building\n", "env/.tpux-venv")
    outputs: list[str] = []
    thread = threading.Thread(target=lambda: outputs.append(set_up(bench, workers[1], peers(workers, 0))))
    thread.start()
    while workers[1].read(("env/.tpux-venv-copy/asked", 0)) == [None]:
        assert thread.is_alive()
    workers[0].put(b"ready\n", "env/.tpux-venv")
    thread.join()
    assert "waiting for worker 0" in outputs[0]
    assert "copied from worker 0" in outputs[0]


def test_what_is_kept_in_the_bucket_is_read_by_new_machines(bench, workers, tmp_path):
    directory = str(tmp_path / "bucket/.tpux/venv")
    set_up(bench, workers[1], [], directory)
    assert not Path(directory).exists(), "one worker writes"
    set_up(bench, workers[0], [], directory)
    assert len(list(Path(directory).iterdir())) == 1
    assert "read from" in set_up(bench, workers[2], [], directory)
    assert workers[2].run("env/bin/tpux-tiny").text == f"tiny {workers[2].home}/env"


def test_an_archive_in_the_bucket_that_is_of_no_use_is_replaced(bench, workers, tmp_path):
    directory = tmp_path / "bucket/.tpux/venv"
    set_up(bench, workers[0], [], str(directory))
    (archive,) = directory.iterdir()
    archive.write_bytes(archive.read_bytes()[:20000])
    assert "read from" not in set_up(bench, workers[1], [], str(directory))
    assert workers[1].run("env/bin/tpux-tiny").text == f"tiny {workers[1].home}/env"
    workers[0].run("rm -rf env")
    assert "read from" not in set_up(bench, workers[0], peers(workers, 1), str(directory))
    assert "read from" in set_up(bench, workers[2], [], str(directory))


class BucketSection(Section):
    def durable_paths(self) -> list[str]:
        return ["~/gcs", "/mnt/data"]


class Bucket:
    @hookimpl
    def config_section(self) -> type[Section]:
        return BucketSection

    @hookimpl
    def check(self) -> Steps:
        yield sh("true")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("~/gcs/runs", "gcs/runs/.tpux/venv"),
        ("gcs/runs", "gcs/runs/.tpux/venv"),
        ("/mnt/data", "/mnt/data/.tpux/venv"),
        ("/mnt/database", None),
        ("gs://b/runs/", "gs://b/runs/.tpux/venv"),
        ("s3://b/runs", None),
        (None, None),
    ],
)
def test_environments_are_kept_beside_the_output_if_that_is_in_a_bucket(output, expected):
    config = {"job": {"output_dir": output}, "bucket": {}, "setup": {"modules": ["bucket", "venv"]}}
    assert peer_copy.bucket_directory(job(config, plugins={"bucket": Bucket()}), "venv") == expected


def test_nothing_is_kept_below_a_mount_that_is_made_later():
    config = {"job": {"output_dir": "~/gcs/runs"}, "bucket": {}, "setup": {"modules": ["venv", "bucket"]}}
    assert peer_copy.bucket_directory(job(config, plugins={"bucket": Bucket()}), "venv") is None


# An object appears when its upload has ended, also if that was cut off.
GCLOUD = """
[ "$1 $2" = "--quiet storage" ] || exit 2
shift 2
for last in "$@"; do :; done
target=$ROOT/${last#gs://}
case "$1 $2" in
cat*) exec cat "$target" ;;
"cp -") mkdir -p "$(dirname "$target")" && cat >"$target.upload" && mv "$target.upload" "$target" ;;
mv*) mv "$ROOT/${2#gs://}" "$target" ;;
esac
"""


def test_an_output_url_keeps_environments_without_a_mount(bench, workers, tmp_path):
    root, url = tmp_path / "storage", "gs://b/runs/.tpux/venv"
    bench.program("gcloud", "exit 1")
    set_up(bench, workers[0], [], url)
    workers[0].run("rm -rf env")
    bench.program("gcloud", f"ROOT={root}\n{GCLOUD}")
    set_up(bench, workers[0], [], url)
    (archive,) = (root / "b/runs/.tpux/venv").iterdir()
    assert f"read from {url}/{archive.name}" in set_up(bench, workers[2], [], url)
    assert workers[2].run("env/bin/tpux-tiny").text == f"tiny {workers[2].home}/env"
    archive.write_bytes(archive.read_bytes()[:20000])
    assert "read from" not in set_up(bench, workers[3], [], url)
    assert workers[3].run("env/bin/tpux-tiny").ok
