"""The files of a conda environment that are in the job's code may refer to others of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tpux_code
import tpux_conda
from tpux import Job, Worker
from tpux_conda.section import CondaSection
from tpux_testing import job as new_job


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "tpux"))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "my code"
    path.mkdir()
    return path


def make_job(code: Path, **keys: object) -> Job:
    """Return the job, always the same one, with a new snapshot of the code."""
    job = new_job({"job": {"env_type": "conda"}, "code": {"dir": str(code)}, "conda": {"name": "train", **keys}})
    answer = tpux_code.resolve(replace(job, resolved={}))
    assert answer is not None
    return replace(job, store_id="lab", token="3fa9", resolved={**job.resolved, "code": answer})


def test_paths_of_an_environment_file_count_from_its_directory(code):
    (code / "envs/local").mkdir(parents=True)
    (code / "envs/local/setup.py").touch()
    (code / "envs/more.txt").touch()
    pip = ["-r more.txt", "./local", '"-e ./local"', "numpy>=2", "git+https://example.com/x.git"]
    text = "dependencies:\n  - python=3.10\n  - conda-forge::tiny\n  - pip:\n"
    file = code / "envs/environment.yml"
    file.write_text(text + "".join(f"    - {line}\n" for line in pip))
    assert tpux_conda.preflight(make_job(code, config_file=file)) == []
    file.write_text(f"{text}    - ./other\n    - -r ../../more.txt\n    - x @ file:./y\n")
    found = [(each.level, each.where) for each in tpux_conda.preflight(make_job(code, config_file=file))]
    assert found == [("error", f"{file}:{place}") for place in ("5:7", "6:10", "7:11")]


def test_requirements_are_installed_from_the_code_and_again_when_a_file_of_it_changes(code, workers):
    host = workers.host()
    (code / "common.txt").write_text("# common\n")
    (code / "requirements.txt").write_text("-r common.txt\n# in the code\n")

    def is_ready(job: Job) -> bool:
        return workers.take(host, tpux_conda.check(job, job.section("conda", CondaSection))).ok

    def set_up(job: Job) -> str:
        for steps in (
            tpux_code.setup(job, Worker(0), ()),
            tpux_conda.setup(job, job.section("conda", CondaSection), Worker(0), ()),
        ):
            done = workers.take(host, steps)
            assert done.ok, done.text
        assert is_ready(job)
        return host.run("cat envs/train/pip-calls").text

    job = make_job(code, requirements_file=code / "requirements.txt", python="3.10")
    calls = set_up(job)
    assert f".tpux/code/jobs/{job.key}/requirements.txt" in calls
    assert calls.endswith("# in the code")
    assert host.run(f"test -e .tpux/code/jobs/{job.key}/requirements.txt").ok
    assert is_ready(job)
    (code / "common.txt").write_text("# changed\n")
    changed = make_job(code, requirements_file=code / "requirements.txt", python="3.10")
    assert not is_ready(changed)
    assert set_up(changed).count("# in the code") == 2


def test_an_environment_file_is_used_where_the_code_has_it(code, workers):
    host = workers.host()
    section = workers.write("tiny=1.0", "python=3.10")
    file = code / "environment.yml"
    file.write_text(workers.file.read_text())
    job = make_job(code, config_file=file)
    assert section.name == "train"
    for steps in (
        tpux_code.setup(job, Worker(0), ()),
        tpux_conda.setup(job, job.section("conda", CondaSection), Worker(0), ()),
    ):
        done = workers.take(host, steps)
        assert done.ok, done.text
    assert host.run(f"test -e .tpux/code/jobs/{job.key}/environment.yml && ! test -e .tpux/conda/train.yml").ok
    assert workers.take(host, tpux_conda.check(job, job.section("conda", CondaSection))).ok
