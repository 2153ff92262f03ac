"""The module in a home directory of this machine that tpux has not created: the user's own files stay as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ssh_support import LocalHome, make_job

from tpux import Allocation, Job, Put, Step, Steps, Worker
from tpux.model.steps import dry_run
from tpux_ssh import check, clean_up, setup
from tpux_ssh.section import Identity, SshSection

MINE, MY_CONFIG = "ssh-ed25519 AAAA mine\n", "Host mine\n  User me\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHome:
    """Return a home directory with files of the user in ~/.ssh, of which authorized_keys is a symbolic link."""
    home = LocalHome(tmp_path / "home")
    (home.path / ".ssh").mkdir(parents=True)
    (home.path / "dotfiles").mkdir()
    (home.path / ".ssh" / "authorized_keys").symlink_to("../dotfiles/keys")
    (home.path / ".ssh" / "authorized_keys").write_text(MINE)
    (home.path / ".ssh" / "config").write_text(MY_CONFIG)
    machines = Allocation("mine", "ssh", (Worker(0, address="127.0.0.1:22"),), borrowed=True)
    monkeypatch.setattr("tpux.api.machines.allocation_of", lambda _: machines)
    return home


@pytest.fixture
def key(tmp_path: Path) -> Identity:
    """Return a private key with an entry for ~/.ssh/config."""
    path = tmp_path / "deploy"
    path.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nthe job's\n")
    path.chmod(0o600)
    return Identity(private_key=path, config_entry="Host github.com\n  User git\n")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job; its section is given to the hooks."""
    return make_job(tmp_path / "job", ssh=SshSection())


def each(steps: list[Step]) -> Steps:
    for step in steps:  # noqa: UP028  (a step's result is sent, which `yield from` a list does not accept)
        yield step


def users_files(home: LocalHome) -> list[str]:
    return [(home.path / ".ssh" / name).read_text() for name in ("authorized_keys", "config")]


def test_a_full_disk_leaves_the_users_files_as_they_are(home: LocalHome, job: Job, key: Identity) -> None:
    section, only_key = SshSection(between_workers=True, identities=[key]), SshSection(identities=[key])
    assert home(setup(job, section)).ok
    before = users_files(home)
    assert all("tpux" in text for text in before)
    home.full = True
    for steps in (setup(job, section), setup(job, only_key), clean_up(job)):
        assert not home(steps).ok
        assert users_files(home) == before
    home.full = False
    assert home(clean_up(job)).ok
    assert users_files(home) == [MINE, MY_CONFIG]
    assert (home.path / ".ssh" / "authorized_keys").is_symlink()


def test_a_full_disk_leaves_the_config_as_it_is(home: LocalHome, job: Job, key: Identity) -> None:
    section = SshSection(identities=[key])
    assert home(setup(job, section)).ok
    before = users_files(home)
    home.full = True
    assert not home(clean_up(job)).ok
    assert users_files(home) == before


def test_an_authorized_keys_in_which_no_line_is_left(home: LocalHome, job: Job) -> None:
    (home.path / ".ssh" / "authorized_keys").write_text("")
    section = SshSection(between_workers=True)
    assert home(setup(job, section)).ok
    assert home(setup(job, section)).ok
    assert home(clean_up(job)).ok
    assert (home.path / ".ssh" / "authorized_keys").read_text() == ""


def test_a_key_of_the_user_with_the_same_name_is_not_replaced(home: LocalHome, job: Job, key: Identity) -> None:
    section, own = SshSection(identities=[key]), home.path / ".ssh" / "deploy"
    own.write_text("the user's key\n")
    result = home(setup(job, section))
    assert not result.ok
    assert result.text == (
        "~/.ssh/deploy is not from tpux and has other content than the file in ssh.identities: "
        "rename one of the two, or remove the file from this machine"
    )
    assert own.read_text() == "the user's key\n"
    assert home(clean_up(job)).ok
    assert own.read_text() == "the user's key\n"
    own.write_bytes(key.private_key.read_bytes())
    assert home(setup(job, section)).ok, "the same key does no harm"
    assert home(clean_up(job)).ok
    assert own.exists(), "it was there before the job"
    own.unlink()
    assert home(setup(job, section)).ok
    key.private_key.write_text("another key of the job\n")
    assert home(setup(job, section)).ok, "a file from tpux is replaced"
    assert own.read_text() == "another key of the job\n"
    assert home(clean_up(job)).ok
    assert not own.exists()


@pytest.mark.parametrize("between_workers", [False, True])
def test_the_end_of_a_job_leaves_another_one_its_keys(
    home: LocalHome, tmp_path: Path, job: Job, key: Identity, between_workers: bool
) -> None:
    section = SshSection(identities=[key], between_workers=between_workers)
    second = replace(make_job(tmp_path / "second", ssh=section), id="000077")
    assert home(setup(job, section)).ok
    assert home(check(job, section)).ok
    assert not home(check(second, section)).ok, "the files are there, but not noted as this job's too"
    assert home(setup(second, section)).ok
    assert home(check(second, section)).ok
    before = users_files(home)
    for _ in range(2):
        assert home(clean_up(job)).ok
        assert home(check(second, section)).ok
        assert (home.path / ".ssh" / "deploy").exists()
        assert users_files(home) == before
    assert not home(check(job, section)).ok
    assert home(setup(job, section)).ok
    assert home(clean_up(job)).ok
    assert home(check(second, section)).ok, "also if the other job's keys were installed last"
    assert home(clean_up(second)).ok
    assert users_files(home) == [MINE, MY_CONFIG]
    assert sorted(path.name for path in (home.path / ".ssh").iterdir()) == ["authorized_keys", "config"]


def test_nothing_stays_of_a_section_that_was_changed(home: LocalHome, job: Job, key: Identity) -> None:
    assert home(setup(job, SshSection(identities=[key]))).ok
    changed = key.model_copy(update={"config_entry": "Host other\n"})
    assert home(setup(job, SshSection(identities=[changed]))).ok
    assert home(clean_up(job)).ok
    assert users_files(home) == [MINE, MY_CONFIG]
    assert not (home.path / ".ssh" / "deploy").exists()


def test_jobs_with_different_keys_share_a_machine(home: LocalHome, tmp_path: Path, job: Job, key: Identity) -> None:
    path = tmp_path / "other"
    path.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nthe other job's\n")
    path.chmod(0o600)
    other_key = Identity(private_key=path, config_entry="Host github.com\n  Port 2222\nHost gitlab.com\n")
    section, other_section = SshSection(identities=[key]), SshSection(identities=[other_key])
    other = replace(make_job(tmp_path / "other-job", ssh=other_section), id="000077")
    steps, others_steps = setup(job, section), setup(other, other_section)
    took = list(zip(dry_run(steps), dry_run(others_steps), strict=True))
    assert all(one.remote != another.remote for one, another in took if isinstance(one, Put)), "at the same time"
    for _ in range(2):
        assert home(setup(job, section)).ok
        assert home(setup(other, other_section)).ok
        assert home(check(job, section)).ok
        assert home(check(other, other_section)).ok
    config = users_files(home)[1]
    assert config.startswith(MY_CONFIG)
    assert config.count("Host github.com") == 2
    assert config.index("Port 2222") < config.index("User git"), "the entries of the last set-up come first"
    changed = SshSection(identities=[key.model_copy(update={"config_entry": "Host changed\n"})])
    assert home(setup(job, changed)).ok
    assert users_files(home)[1].count("Host github.com") == 1
    assert home(check(other, other_section)).ok
    assert home(clean_up(other)).ok
    assert home(check(job, changed)).ok
    assert home(clean_up(job)).ok
    assert users_files(home) == [MINE, MY_CONFIG]


def test_jobs_with_the_same_keys_have_one_block(home: LocalHome, tmp_path: Path, job: Job, key: Identity) -> None:
    section = SshSection(identities=[key])
    second = replace(make_job(tmp_path / "second", ssh=section), id="000077")
    for each in (job, second, job, second):
        assert home(setup(each, section)).ok
    assert users_files(home)[1].count("Host github.com") == 1


def test_the_block_of_a_former_job_does_not_stay_on_machines_of_tpux(
    home: LocalHome, tmp_path: Path, job: Job, key: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = Allocation("tpux", "ssh", (Worker(0, address="127.0.0.1:22"),))
    monkeypatch.setattr("tpux.api.machines.allocation_of", lambda _: machines)
    assert home(setup(job, SshSection(identities=[key]))).ok
    section = SshSection(identities=[key.model_copy(update={"config_entry": "Host other\n"})])
    successor = replace(make_job(tmp_path / "successor", ssh=section), id="000077")
    assert home(setup(successor, section)).ok
    assert home(check(successor, section)).ok
    assert "github" not in users_files(home)[1]


def test_another_worker_with_the_same_home_directory_may_have_written_the_block(
    home: LocalHome, job: Job, key: Identity
) -> None:
    section = SshSection(identities=[key])
    steps, others_steps = list(dry_run(setup(job, section))), list(dry_run(setup(job, section)))
    assert home(each([*steps[:-1], *others_steps, steps[-1]])).ok
    assert home(check(job, section)).ok
