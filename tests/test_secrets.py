"""Secrets: one job with every module, each with a secret of its own, and a search for them in everything that it wrote.

The first attempt fails while a module is set up, since messages about failures quote programs; then the job is resumed.
The environments docker and conda, each in a job of its own, are in `test_jobman_e2e.py`.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import build_wheel
from tpux_local.mounts import mounts_below

ROOT = Path(__file__).parents[1]
NAMES = ("ENV", "JOB", "CMD", "SCRIPT", "GIT", "TOKEN", "INDEX", "WANDB", "DOCKER", "CONDA")
CANARIES = {f"CANARY_{name}": f"kanari-{name.lower()}-Zq7" for name in NAMES}
CONFIG = """
job: {name: canary, env_type: venv, rule: pass, environment: {OF_JOB: '${env:CANARY_JOB}'}}
ssh: {between_workers: true}
code: {repo: 'http://ann:${env:CANARY_GIT}@127.0.0.1:PORT/project.git'}
script: {path: setup.sh, env: {KEY: '${env:CANARY_SCRIPT}'}}
venv: {requirements_file: requirements.txt, index_url: 'http://ann:${env:CANARY_INDEX}@127.0.0.1:PORT/simple'}
wandb: {api_key: '${env:CANARY_WANDB}'}
setup: {tries: 1}
command:
  env: {OF_ENV: '${env:CANARY_ENV}'}
  finished_by: [wandb]
  cmd: |
    for secret in "$OF_JOB" "$OF_ENV" "$WANDB_API_KEY" "${env:CANARY_CMD}"; do echo ${#secret}; done
    python -c 'import tpux_secret_test'
    while [ ! -e ~/go ]; do sleep 0.1; done
"""
GCSFUSE = "gcsfuse: {bucket_name: data, mount_path: gcs}\n"


@pytest.fixture
def server(tmp_path) -> Iterator[ThreadingHTTPServer]:
    """Serve a git repository and a package index to who has the right password."""
    root = tmp_path / "served"
    (root / "simple/tpux-secret-test").mkdir(parents=True)
    git = ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-C", root / "project.git"]
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", root / "project.git"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "first"], check=True)
    logins = {
        "project.git": [f"ann:{CANARIES['CANARY_GIT']}", f"{CANARIES['CANARY_TOKEN']}:"],
        "simple": [f"ann:{CANARIES['CANARY_INDEX']}"],
    }

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            first = self.path.split("/")[1]
            accepted = [f"Basic {base64.b64encode(login.encode()).decode()}" for login in logins[first]]
            if self.headers.get("Authorization") not in accepted:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="test"')
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif first == "simple":
                super().do_GET()
            else:
                self._git()

        do_POST = do_GET  # noqa: N815  (http.server's name)

        def _git(self) -> None:
            path, _, query = self.path.partition("?")
            variables = {
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            }
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            environment = {**os.environ, **variables}
            done = subprocess.run(["git", "http-backend"], env=environment, input=body, stdout=subprocess.PIPE)
            self.wfile.write(b"HTTP/1.0 200 OK\r\n" + done.stdout)

        def log_message(self, *_) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def bucket(tpux, tmp_path) -> Iterator[bool]:
    """Serve a bucket, and give the workers a `gcsfuse`; False where nothing can be mounted."""
    if shutil.which("rclone") is None or not os.access("/dev/fuse", os.W_OK):
        yield False
        return
    from gcp_storage_emulator.server import create_server

    with create_server("127.0.0.1", 0, in_memory=True, default_bucket="data") as server:
        endpoint = f"http://127.0.0.1:{server._api._httpd.server_port}"
        program = tmp_path / "bin/gcsfuse"
        program.parent.mkdir()
        real = ROOT / "plugins/gcsfuse/tests/gcsfuse"
        program.write_text(f'#!/bin/sh\nSTORAGE_ENDPOINT={endpoint} GCSFUSE_CALLS=/dev/null exec {real} "$@"\n')
        program.chmod(0o755)
        tpux.env["PATH"] = f"{program.parent}{os.pathsep}{tpux.env['PATH']}"
        yield True
        for path in mounts_below(tmp_path):
            subprocess.run(["fusermount3", "-u", "-z", path])


class ArgumentLists(threading.Thread):
    """Watches the argument lists of all processes.

    Attributes:
        found: those with a secret.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.found: set[bytes] = set()
        self.ended = threading.Event()

    def run(self) -> None:
        """Read each process's list three times: a shell of its parent's is replaced by the program within moments."""
        secrets, times_read = searched(), Counter[str]()
        while not self.ended.wait(0.03):
            for process in Path("/proc").glob("[0-9]*"):
                if times_read[process.name] == 3:
                    continue
                times_read[process.name] += 1
                with suppress(OSError):
                    content = (process / "cmdline").read_bytes()
                    if any(secret in content for secret in secrets):
                        self.found.add(content)


def searched() -> list[bytes]:
    """Return the secrets, also as HTTP sends them."""
    plain = [secret.encode() for secret in CANARIES.values()]
    return plain + [base64.b64encode(login) for secret in plain for login in (b"ann:" + secret, secret + b":")]


def stored_secrets(directory: Path) -> list[Path]:
    """Return the files of a job's secrets. A bucket that is being unmounted is left out, as `os.walk` does."""
    return [Path(parent, "secrets.json") for parent, _, files in os.walk(directory) if "secrets.json" in files]


def has_archive(mounted: Path) -> bool:
    with suppress(OSError):  # the bucket's server may be slow
        return bool(list(mounted.glob("*/.tpux/venv/*.tar")))
    return False


def files_with_secrets(directory: Path) -> set[str]:
    """Return the files below a directory that have a secret in their content or name, relative to it."""
    found = set()
    for parent, _, files in os.walk(directory):  # the mounted bucket too
        for name in files:
            path = Path(parent, name)
            content = b""
            with suppress(OSError):  # a file that is being replaced, or in a bucket that is being unmounted
                content = b"" if path.is_symlink() or not path.is_file() else path.read_bytes()
            if any(secret in content or secret in os.fsencode(path) for secret in searched()):
                found.add(str(path.relative_to(directory)))
    return found


EXPOSED = """
tpu:
  allocation_mode: tpu-vm
  accelerator: v4-8
  metadata: {key: '${env:CANARY_ENV}'}
  startup_script: '/${env:CANARY_ENV}'
  flags: ['--metadata=a=${env:CANARY_ENV}']
job: {env_type: docker}
venv: {requirements_file: requirements.txt, index_url: 'http://ann:${env:CANARY_INDEX}@127.0.0.1/simple'}
script:
  path: setup.sh
  args: [a, 'b=${env:CANARY_SCRIPT}']
  check: 'test ${env:CANARY_SCRIPT}'
  env: {KEY: '${env:CANARY_SCRIPT}'}
docker:
  image: img
  flags: '-e A=${env:CANARY_DOCKER}'
  mount_dirs: ['/${script.env.KEY}']
  env_vars: ['A=${env:CANARY_DOCKER}']
gcsfuse:
  bucket_name: '${env:CANARY_ENV}'
  mount_path: gcs
  options: ['--a=${env:CANARY_ENV}']
  extra_mounts: [{bucket_name: abc, mount_path: b, options: ['--b=${env:CANARY_ENV}']}]
conda:
  installer_url: 'https://ann:${env:CANARY_CONDA}@host/x.sh'
  installer_sha256: '0000000000000000000000000000000000000000000000000000000000000000'
  requirements: ['--index-url=http://${env:CANARY_CONDA}@host']
command: {cmd: 'echo "${env:CANARY_CMD}"'}
"""


def test_a_secret_in_an_argument_is_an_error_with_its_position(tpux):
    for name in ("setup.sh", "requirements.txt"):
        (tpux.work / name).write_text("true\n")
    tpux.env |= {name: value.lower() for name, value in CANARIES.items()}
    found = tpux("config", "check", tpux.config(EXPOSED), code=2).stderr
    assert re.findall(r"(\d+:\d+): (\S+) cannot have the secret \$\{env:CANARY_", found) == [
        ("5:19", "tpu.metadata"),
        ("6:19", "tpu.startup_script"),
        ("7:11", "tpu.flags"),
        ("12:13", "script.args"),
        ("13:10", "script.check"),
        ("17:10", "docker.flags"),
        ("18:16", "docker.mount_dirs"),
        ("23:13", "gcsfuse.options"),
        ("24:62", "gcsfuse.extra_mounts.options"),
        ("26:18", "conda.installer_url"),
    ]
    assert "give it to the script in env" in found


def test_no_secret_is_left_anywhere(tpux, tmp_path, server, bucket):
    (tpux.work / "setup.sh").write_text('test -n "$KEY"\n')
    (tpux.work / "requirements.txt").write_text("tpux-secret-test\n")
    (tpux.work / "temporary").mkdir()
    tpux.env |= {**CANARIES, "TMPDIR": str(tpux.work / "temporary")}
    tpux.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{tpux.env['PATH']}"  # has uv
    arguments = ArgumentLists()
    arguments.start()

    text = CONFIG.replace("PORT", str(server.server_port))
    shown = [tpux("config", "show", tpux.config(text)).stdout]
    job = tpux.create(text + GCSFUSE, "job.output_dir=gcs/runs") if bucket else tpux.create(text)
    tpux("wait", job, code=100)
    assert tpux.show(job)["failure"]["evidence"].startswith("venv: "), "the index has no package yet"
    tpux.until(lambda: not stored_secrets(tpux.directory(job)))
    left = {"after a failure": files_with_secrets(tpux.home) | files_with_secrets(tpux.work)}

    wheel = build_wheel(tmp_path, "tpux-secret-test", "", "")
    served = tmp_path / "served/simple/tpux-secret-test"
    shutil.copy(wheel, served)
    (served / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    token = f"code.repo=http://${{env:CANARY_TOKEN}}@127.0.0.1:{server.server_port}/project.git"
    shown.append(tpux("resume", job, token).stderr)
    tpux.until(lambda: tpux.output_so_far(job).count(b"\n") == 4)
    if bucket:
        tpux.until(lambda: has_archive(tpux.machines(job) / "worker-0/gcs/runs"))  # it was looked into
    private = [path for path in files_with_secrets(tpux.home) if not path.endswith("/secrets.json")]
    left["while the program runs"] = set(private) | files_with_secrets(tpux.work)
    for path in stored_secrets(tpux.directory(job)):
        assert path.stat().st_mode & 0o777 == 0o600
    (tpux.machines(job) / "worker-0/go").touch()
    tpux("wait", job)
    lengths = [len(CANARIES[f"CANARY_{name}"]) for name in ("JOB", "ENV", "WANDB", "CMD")]
    assert tpux.output(job).decode().split() == [str(length) for length in lengths], "the program got them"
    tpux.until(lambda: not stored_secrets(tpux.directory(job)))
    left["after the end"] = files_with_secrets(tpux.home) | files_with_secrets(tpux.work)

    shown.append(tpux("show", "--json", job).stdout)
    arguments.ended.set()
    arguments.join()
    assert {when: files for when, files in left.items() if files} == {}
    assert arguments.found == set()
    assert not [text for text in shown if any(secret.decode() in text for secret in searched())]


# The supervisor dies after it has copied a file, and before it starts the script that reads and removes it.
LETHAL = """
    import os, signal
    from pathlib import Path
    from dataclasses import replace
    import tpux_local
    from tpux import TpuSection, hookimpl
    from tpux_local import inspect, release, resolve
    from tpux_local.host import LocalHost

    class LethalTpuSection(TpuSection):
        transport = "lethal"

    class Host(LocalHost):
        def put(self, source, remote, mode=0o600):
            super().put(source, remote, mode)
            wanted = Path("WANTED")
            if wanted.exists() and remote.endswith(wanted.read_text()):
                wanted.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

    @hookimpl
    def tpu_section(): return LethalTpuSection
    @hookimpl
    def provision(request):
        ready = tpux_local.provision(request)
        return replace(ready, allocation=replace(ready.allocation, transport="lethal"))
    @hookimpl
    def connect(worker, job): return Host(worker, job.resolved["lethal"])
"""
CUT_OFF = """
tpu: {allocation_mode: lethal}
job: {env_type: ENVIRONMENT}
script: {path: setup.sh, env: {KEY: '${env:CANARY_SCRIPT}'}}
venv: {requirements_file: requirements.txt, index_url: 'http://ann:${env:CANARY_INDEX}@127.0.0.1:9/simple'}
conda: {requirements: ['--index-url=http://${env:CANARY_CONDA}@127.0.0.1:9']}
command: 'true'
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("environment", "file"),
    [("venv", "/variables"), ("venv", ".tpux/venv/venv.sh"), ("conda", ".tpux/conda/tpux.txt")],
)
def test_no_secret_is_left_by_a_set_up_that_was_cut_off_and_stopped(tpux, tmp_path, environment, file):
    (tpux.work / "setup.sh").write_text('test -n "$KEY"\n')
    (tpux.work / "requirements.txt").write_text("tpux-secret-test\n")
    (tmp_path / "bin").mkdir()
    conda = 'case "$1" in create) touch ~/made ;; run) [ -e ~/made ] ;; esac'
    for program, script in {"micromamba": conda, "uv": "exit 1"}.items():
        (tmp_path / "bin" / program).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / program).chmod(0o755)
    tpux.env |= {**CANARIES, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{tpux.env['PATH']}"}
    wanted = tmp_path / "wanted"
    wanted.write_text(file)
    tpux.plugin("tpux-lethal", LETHAL.replace("WANTED", str(wanted)), entries="lethal = tpux_lethal")
    job = tpux.create(CUT_OFF.replace("ENVIRONMENT", environment))
    tpux.until(lambda: not wanted.exists())
    tpux.until(lambda: tpux.supervisor() is None)
    assert [name for name in files_with_secrets(tpux.home) if name.endswith(file)], "it was cut off there"
    tpux("stop", job)
    tpux.until(lambda: not stored_secrets(tpux.directory(job)))
    assert files_with_secrets(tpux.home) == set()
