"""The keys of the section, as jobman's users write them, and what is wrong with them before anything is created."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

import tpux_conda
from tpux_conda.section import CondaSection
from tpux_testing import job


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fms.yaml").write_text(
        "dependencies:\n  - pip:\n    - -r more.txt\n    - -r /mnt/all.txt\n    - '-e ./x'\n"
    )
    (tmp_path / "r.txt").write_text("numpy\n-c limits.txt\n--index-url https://x/simple\n")
    return tmp_path


@pytest.mark.parametrize(
    "keys", [{"env_name": "fms", "yaml_file": "fms.yaml"}, {"name": "fms", "config_file": "fms.yaml"}]
)
def test_both_names_of_jobmans_keys(files, keys):
    section = CondaSection.model_validate(keys)
    assert (section.name, section.config_file) == ("fms", Path("fms.yaml"))
    assert section.local_files() == [Path("fms.yaml")]


def test_requirements_are_a_list_or_a_file(files):
    assert CondaSection.model_validate({"requirements": ["a", "b"]}).requirements == ["a", "b"]
    assert CondaSection.model_validate({"requirements": "r.txt"}).requirements_file == Path("r.txt")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "base"}, "base is conda's own environment: choose another name"),
        ({"name": "a/b"}, "'a/b' is not the name of an environment"),
        ({"python": 3.1}, 'write "3.10" in quotes'),
        ({"installer_url": "https://x/y.sh"}, "belong together"),
        ({"installer_url": "x", "installer_sha256": "0" * 64}, "installer_url"),
        ({"prune": True}, "prune needs config_file"),
        ({"requirements": "r.txt", "requirements_file": "r.txt"}, "set only one of them"),
        ({"config_file": "nowhere.yml"}, "file not found"),
    ],
)
def test_bad_values(files, keys, message):
    with pytest.raises(ValidationError, match=message):
        CondaSection.model_validate(keys)


def test_preflight_names_files_that_are_not_copied(files):
    made = job({"job": {"env_type": "conda"}, "conda": {"config_file": files / "fms.yaml", "requirements": "r.txt"}})
    found = [(finding.message.split("'")[1], finding.where.split(":")[1]) for finding in tpux_conda.preflight(made)]
    assert found == [("more.txt", "3"), ("./x", "5"), ("limits.txt", "2")]


@pytest.mark.parametrize(
    ("more", "noted"), [({}, True), ({"ssh": {}}, False), ({"tpu": {"accelerator": "v4-8"}}, False)]
)
def test_preflight_says_if_each_worker_asks_the_index(files, more, noted):
    tpu = {"allocation_mode": "tpu-vm", "accelerator": "v4-16", "zone": "us-central2-b"}
    config = {"job": {"env_type": "conda"}, "tpu": {**tpu, **more.get("tpu", {})}}
    found = tpux_conda.preflight(job({**config, **({"ssh": {}} if "ssh" in more else {})}))
    assert [(each.level, each.where) for each in found] == [("note", "conda")] * noted


def test_two_environments_are_an_error(files):
    config = {"setup": {"modules": ["docker", "conda"]}, "docker": {"image": "a"}}
    with pytest.raises(Exception, match="docker and conda are both environments; a command runs in one"):
        job(config)
