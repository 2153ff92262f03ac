"""The module on a real worker: installs keys with their modes, and changes only its block of ~/.ssh/config."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from ssh_servers import Server
from ssh_support import make_job

from tpux import Allocation, Job, Put, Result, Sh, Steps, sh
from tpux.model.steps import dry_run
from tpux_ssh import check, clean_up, setup
from tpux_ssh.host import SshHost
from tpux_ssh.section import Identity, SshSection


@pytest.fixture
def pair(tmp_path: Path) -> Identity:
    private, public = tmp_path / "id_github", tmp_path / "id_github.pub"
    private.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n")
    private.chmod(0o600)
    public.write_text("ssh-ed25519 AAAA me\n")
    entry = "Host github.com\n  User git\n  IdentityFile ~/.ssh/id_github\n"
    return Identity(private_key=private, public_key=public, config_entry=entry)


def run_steps(host: SshHost, steps: Steps) -> Result:
    """Run steps as core does, and return the result of the first that fails, or of the last."""
    result = Result()
    try:
        step = next(steps)
        while True:
            if isinstance(step, Put):
                host.put(step.source, step.remote, step.mode)
                result = Result()
            elif not (result := host.run(f"set -e\n{step.script}")).ok:
                return result
            step = steps.send(result)
    except StopIteration:
        return result


def set_up(host: SshHost, job: Job, section: SshSection) -> bool:
    assert run_steps(host, setup(job, section)).ok
    return run_steps(host, check(job, section)).ok


def test_keys_and_modes(server: Server, host: SshHost, job: Job, pair: Identity) -> None:
    section = SshSection(identities=[pair])
    assert not run_steps(host, check(job, section)).ok
    assert set_up(host, job, section)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (server.home / ".ssh").iterdir()}
    assert modes == {"id_github": 0o600, "id_github.pub": 0o644, "config": 0o600}
    assert stat.S_IMODE((server.home / ".ssh").stat().st_mode) == 0o700
    (server.home / ".ssh" / "id_github").chmod(0o644)
    assert not run_steps(host, check(job, section)).ok


def test_jobmans_names_for_the_keys(server: Server, host: SshHost, job: Job, pair: Identity) -> None:
    section = SshSection(tpu_private_key=pair.private_key, tpu_public_key=pair.public_key)
    assert set_up(host, job, section)
    assert sorted(path.name for path in (server.home / ".ssh").iterdir()) == ["id_github", "id_github.pub"]


def test_the_block_is_replaced_and_other_lines_are_kept(
    server: Server, host: SshHost, job: Job, pair: Identity
) -> None:
    config = server.home / ".ssh" / "config"
    config.parent.mkdir()
    config.write_text("Host mine\n  User me\n  # >>> not tpux")  # no trailing newline
    assert set_up(host, job, SshSection(identities=[pair]))
    first = config.read_text()
    assert first.startswith("Host mine\n  User me\n  # >>> not tpux\n# >>> tpux:")
    assert set_up(host, job, SshSection(identities=[pair]))
    assert config.read_text() == first
    config.write_text(first + "Host after\n  User you\n")
    other = pair.model_copy(update={"config_entry": "Host other\n  User o"})
    assert not run_steps(host, check(job, SshSection(identities=[other]))).ok
    assert set_up(host, job, SshSection(identities=[other]))
    text = config.read_text()
    assert "github" not in text
    assert text.count("Host other") == text.count("Host mine") == text.count("Host after") == 1


def test_the_block_ends_the_users_last_host_section(server: Server, host: SshHost, job: Job, pair: Identity) -> None:
    (server.home / ".ssh").mkdir()
    (server.home / ".ssh" / "config").write_text("Host mine\n  User me\n")
    free = pair.model_copy(update={"config_entry": "ServerAliveInterval 7"})
    assert set_up(host, job, SshSection(identities=[free]))
    assert "serveraliveinterval 7" in host.run("ssh -G somewhere").text


def test_a_block_with_a_missing_delimiter_is_an_error(server: Server, host: SshHost, job: Job, pair: Identity) -> None:
    config = server.home / ".ssh" / "config"
    config.parent.mkdir()
    config.write_text("# >>> tpux: 1234\nHost mine\n")
    result = run_steps(host, setup(job, SshSection(identities=[pair])))
    assert "the first or the last line of tpux's block is missing" in result.text
    assert config.read_text() == "# >>> tpux: 1234\nHost mine\n"


def test_a_symbolic_link_is_kept(server: Server, host: SshHost, job: Job, pair: Identity) -> None:
    (server.home / "dotfiles").mkdir()
    (server.home / ".ssh").mkdir()
    (server.home / ".ssh" / "config").symlink_to("../dotfiles/ssh_config")
    assert set_up(host, job, SshSection(identities=[pair]))
    assert (server.home / ".ssh" / "config").is_symlink()
    assert "github" in (server.home / "dotfiles" / "ssh_config").read_text()


def test_scripts_contain_no_private_key(tmp_path: Path, job: Job, pair: Identity) -> None:
    section = SshSection(identities=[pair], between_workers=True)
    steps = [*dry_run(check(job, section)), *dry_run(setup(job, section))]
    assert not [step for step in steps if isinstance(step, Sh) and "secret" in step.script]
    assert not (job.directory / "ssh").exists()  # a dry run creates no key


def test_authorized_keys_gets_one_line(server: Server, host: SshHost, tmp_path: Path, pair: Identity) -> None:
    job = make_job(tmp_path / "dry", ssh=SshSection())
    keys = server.home / ".ssh" / "authorized_keys"
    keys.parent.mkdir()
    keys.write_text("ssh-ed25519 AAAA mine")
    section = SshSection(between_workers=True)
    assert run_steps(host, setup(job, section)).ok
    assert run_steps(host, setup(job, section)).ok
    mine, ours = keys.read_text().splitlines()
    assert mine == "ssh-ed25519 AAAA mine"
    assert ours.endswith(" tpux_between_workers")


def test_a_borrowed_machine_keeps_nothing_after_the_job(
    server: Server, host: SshHost, tmp_path: Path, pair: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = server.home / ".ssh"
    directory.mkdir()
    own = {"authorized_keys": "ssh-ed25519 AAAA mine\n", "config": "Host mine\n  User me\n", "id_mine": "mine"}
    for name, text in own.items():
        (directory / name).write_text(text)
    mine = pair.model_copy(update={"private_key": tmp_path / "id_mine", "public_key": None})
    mine.private_key.write_text("mine")
    section = SshSection(between_workers=True, identities=[pair, mine])
    machines = Allocation("mine", "ssh", (host.worker,), borrowed=True)
    monkeypatch.setattr("tpux.api.machines.allocation_of", lambda _: machines)
    job, other = make_job(tmp_path / "a", ssh=section), replace(make_job(tmp_path / "b", ssh=section), id="000077")
    created = replace(machines, borrowed=False)
    for one in (job, other):
        assert set_up(host, one, section)
    assert run_steps(host, clean_up(job)).ok
    assert (directory / "id_github").exists(), "the other job uses it too"
    monkeypatch.setattr("tpux.api.machines.allocation_of", lambda _: created)
    assert list(clean_up(other)) == [], "a resume needs no set-up on machines that are deleted later"
    monkeypatch.setattr("tpux.api.machines.allocation_of", lambda _: machines)
    for _ in range(2):
        assert run_steps(host, clean_up(other)).ok
        assert {path.name: path.read_text() for path in directory.iterdir()} == own


def test_without_a_section_nothing_is_installed(host: SshHost, job: Job) -> None:
    assert list(dry_run(check(job, None))) == []
    assert run_steps(host, setup(job, None)).ok
    assert sh("true")
