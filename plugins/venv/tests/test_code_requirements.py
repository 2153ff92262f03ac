"""Requirements that the code brings are installed from the copy of the code on the worker."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import tpux_code
import tpux_venv
from tpux import Job, Peer, Worker
from tpux_testing import job as new_job
from tpux_venv.section import VenvSection

BACKEND = """
import zipfile

def _build(directory, name, content):
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(f"{directory}/{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in content.items():
            wheel.writestr(path, text)
        facts = f"Name: {name}\\nVersion: 1.0\\nProvides-Extra: all\\n"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\n{facts}")
        facts = "Generator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\\n{facts}")
        wheel.writestr(f"{info}/RECORD", "")
    return f"{name}-1.0-py3-none-any.whl"

def build_wheel(directory, config_settings=None, metadata_directory=None):
    return _build(directory, "NAME", {"NAME.py": open("NAME.py").read()})

def build_editable(directory, config_settings=None, metadata_directory=None):
    import os
    return _build(directory, "NAME", {"NAME.pth": os.getcwd()})
"""
PROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "NAME"
version = "1.0"
"""


def write_project(directory: Path, name: str, version: str = "1") -> None:
    """Write a project that is built without any index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "backend.py").write_text(BACKEND.replace("NAME", name))
    (directory / "pyproject.toml").write_text(PROJECT.replace("NAME", name))
    (directory / f"{name}.py").write_text(f"VERSION = {version!r}\n")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "code of mine"
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "tpux"))


def make_job(code: Path, file: str | Path = "requirements.txt", *, exclude: tuple[str, ...] = ()) -> Job:
    """Return the job, always the same one, with a new snapshot of the code."""
    section = {"dir": str(code), "exclude": [*exclude]}
    job = new_job({"job": {"env_type": "venv"}, "code": section, "venv": {"requirements_file": code / file}})
    answer = tpux_code.resolve(replace(job, resolved={}))
    assert answer is not None
    return replace(job, store_id="lab", token="3fa9", resolved={**job.resolved, "code": answer})


def set_up(bench, job: Job) -> None:
    """Set up the code and the environment, if it is not ready; each step must succeed."""
    for steps in (tpux_code.setup(job, Worker(0), ()), *(() if is_ready(bench, job) else (prepare(job),))):
        failed = bench.run_steps(steps)
        assert failed is None, failed[1].text
    assert is_ready(bench, job)


def prepare(job: Job, peers: tuple[Peer, ...] = ()):
    return tpux_venv.setup(job, job.section("venv", VenvSection), Worker(0), peers)


def is_ready(bench, job: Job) -> bool:
    return bench.run_steps(tpux_venv.check(job, job.section("venv", VenvSection))) is None


def run(bench, job: Job, script: str) -> str:
    return bench.run(job.section("venv", VenvSection), f"cd /; python -c {script!r}").text


@pytest.fixture(params=["pip", "uv"])
def installer(request: pytest.FixtureRequest) -> str:
    if request.param == "uv":
        request.getfixturevalue("uv")
    return str(request.param)


def test_all_that_requirements_refer_to_is_installed_from_the_code(bench, code, installer):
    """A file in a directory, with nested ones, links, and three projects."""
    write_project(code, "editable")
    write_project(code / "sub", "plain")
    write_project(code / "extra one", "spaced")
    (code / "requirements").mkdir()
    shutil.copytree(bench.wheels, code / "requirements/wheels")
    file, common = code / "requirements/tpu.txt", code / "requirements/common.txt"
    projects = "-e .\n./sub[all]\n-e './extra one'\n"
    file.write_text(f"# all\n--no-index\n-r common.txt  # shared\n--find-links ./wheels\n{projects}")
    common.write_text("--constraint=limits.txt\ntpux-tiny \\\n  >=0.5\n")
    (code / "requirements/limits.txt").write_text("tpux-tiny<2\n")
    job = make_job(code, "requirements/tpu.txt")
    assert tpux_venv.preflight(job) == []
    set_up(bench, job)
    script = "import tpux_tiny, editable, plain, spaced; print(tpux_tiny.VERSION, editable.__file__, plain.VERSION)"
    assert run(bench, job, script) == f"1.0 {bench.home}/.tpux/code/jobs/{job.key}/editable.py 1"
    if installer == "uv":
        assert "pip install" in (bench.bin / "calls").read_text()


def test_a_changed_file_leads_to_a_new_installation(bench, code, installer):
    write_project(code / "sub", "plain")
    write_project(code, "editable")
    (code / "common.txt").write_text("--no-index\n./sub\n")
    (code / "requirements.txt").write_text("-r common.txt\n-e .\n")
    set_up(bench, make_job(code))
    (code / "train.py").write_text("print()\n")
    (code / "editable.py").write_text("VERSION = '2'\n")
    changed = make_job(code)
    assert is_ready(bench, changed), "neither the code nor an editable package is a requirement"
    set_up(bench, changed)
    for path, text in [
        ("common.txt", "--no-index\n./sub\n# more\n"),
        ("pyproject.toml", PROJECT.replace("NAME", "editable") + "# more\n"),
        ("sub/plain.py", "VERSION = '2'\n"),
    ]:
        (code / path).write_text(text)
        changed = make_job(code)
        assert not is_ready(bench, changed), path
        set_up(bench, changed)
    assert run(bench, changed, "import plain, editable; print(plain.VERSION, editable.VERSION)") == "2 2"


def test_a_changed_wheel_of_the_same_version_is_installed(bench, code, installer):
    shutil.copytree(bench.wheels, code / "wheels")
    (code / "requirements.txt").write_text("--no-index\n./wheels/tpux_tiny-1.0-py3-none-any.whl\n")
    set_up(bench, make_job(code))
    write_project(code / "made", "tpux_tiny", "new")
    namespace: dict[str, object] = {}
    exec(BACKEND.replace("NAME", "tpux_tiny"), namespace)
    build = namespace["_build"]
    assert callable(build)
    build(str(code / "wheels"), "tpux_tiny", {"tpux_tiny.py": "VERSION = 'new'\n"})
    changed = make_job(code)
    assert not is_ready(bench, changed)
    set_up(bench, changed)
    assert run(bench, changed, "import tpux_tiny; print(tpux_tiny.VERSION)") == "new"


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("numpy\n-r ../base.txt\n", "2:4", "outside of the code's directory"),
        ("-rbase.txt\n", "1:3", "does not exist"),
        ("--requirement=base.txt  # a comment\n", "1:15", "does not exist"),
        ("numpy \\\n  >=2\n  -e  ./other[extra]\n", "3:7", "does not exist"),
        ("-e empty\n", "1:4", "no Python project"),
        ("pkg @ file:../pkg\n", "1:7", "outside of the code's directory"),
        ("pkg @ file://CODE/empty\n", "1:7", "a path on this machine"),
        ("wheels/x.whl ; python_version > '3'\n", "1:1", "does not exist"),
        ("--no-index --find-links ../wheels\n", "1:25", "outside of the code's directory"),
        ("numpy\n-c ./deps.txt\n", "2:4", "refer to itself"),
        ("-r empty\n", "1:4", "is a directory"),
        ("-r ignored.txt\n", "1:4", "not among the code"),
        ("-r 'my file.txt'\n", "1:5", "does not exist"),
    ],
)
def test_what_is_not_in_the_code_is_an_error_with_its_place(code, text, place, what):
    (code / "empty").mkdir()
    (code / "empty/x").touch()
    (code / "ignored.txt").touch()
    (code / "requirements.txt").write_text("-r sub/nested.txt\n")
    (code / "sub").mkdir()
    file = code / "deps.txt"
    file.write_text(text.replace("CODE", str(code)))
    job = make_job(code, file, exclude=("ignored.txt",))
    (finding,) = tpux_venv.preflight(job)
    assert (finding.level, finding.where) == ("error", f"{file}:{place}")
    assert what in finding.message


@pytest.mark.parametrize(
    "line",
    [
        "requests>=2 # as ./it was",
        "# -r base.txt",
        "-r https://example.com/base.txt",
        "-r /mnt/base.txt",
        "-e git+https://example.com/x.git@main#egg=x",
        "-e ${WHEELS}/x",
        "-f https://example.com/links.html",
        "--index-url https://example.com/simple",
        "pkg @ https://example.com/pkg.zip",
        "jax[tpu]==0.4 ; python_version < '4' --hash=sha256:ab/c",
        "",
    ],
)
def test_urls_packages_and_paths_of_the_worker_need_no_code(code, line):
    (code / "requirements.txt").write_text(f"numpy\n{line}\n")
    job = make_job(code)
    assert tpux_venv.preflight(job) == []
    without = new_job({"job": {"env_type": "venv"}, "venv": {"requirements_file": code / "requirements.txt"}})
    assert tpux_venv.preflight(without) == []


def test_requirements_outside_of_the_code_are_copied_without_what_they_refer_to(code, tmp_path):
    file = tmp_path / "outside.txt"
    file.write_text("numpy\n-r base.txt\n")
    (finding,) = tpux_venv.preflight(make_job(code, file))
    assert finding.where == f"{file}:2:4"
    assert "move this file into the code's directory" in finding.hint
