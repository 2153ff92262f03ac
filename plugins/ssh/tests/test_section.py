"""Keys that cannot be used are mistakes of the config, with their place, before anything is created."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ssh_support import make_job

from tpux import ConfigError, config
from tpux.plugins import Plugins
from tpux_ssh import preflight, public_keys
from tpux_ssh.keyfiles import derive_public, inspect_key, own_key, public_line
from tpux_ssh.section import Identity, SshSection
from tpux_ssh.worker_setup import remote_name


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return keygen(tmp_path / "id_rsa", "rsa")


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "", *options: str) -> Path:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "", "-f", str(path), *options]
    subprocess.run([*command, *(["-b", "2048"] if kind == "rsa" else [])], check=True)
    return path


def mistake(tmp_path: Path, section: str) -> str:
    path = tmp_path / "train.yaml"
    path.write_text(f"ssh:\n{section}\ncommand: {{cmd: 'true'}}\n")
    with pytest.raises(ConfigError) as caught:
        config.load(path, plugins=Plugins())
    return str(caught.value)


@pytest.mark.parametrize("form", [(), ("-m", "PEM")])
def test_an_rsa_key_with_a_passphrase(tmp_path: Path, form: tuple[str, ...]) -> None:
    locked = keygen(tmp_path / "locked", "rsa", "secret", *form)
    said = mistake(tmp_path, f"  private_key: {locked}")
    assert f"train.yaml:2:16: ssh.private_key is not right: {locked} has a passphrase" in said


def test_a_key_that_others_can_read(tmp_path: Path, key: Path) -> None:
    key.chmod(0o644)
    said = mistake(tmp_path, f"  private_key: {key}")
    assert f"train.yaml:2:16: ssh.private_key is not right: others can read the private key {key} (mode 644)" in said
    assert "others can read" in mistake(tmp_path, f"  identities: [{{private_key: {key}}}]")
    assert "others can read" in mistake(tmp_path, f"  tpu_private_key: {key}")


def test_a_key_that_is_not_there(tmp_path: Path) -> None:
    assert "train.yaml:2:16: ssh.private_key is not right: there is no file" in mistake(tmp_path, "  private_key: none")


def test_a_public_key_in_the_place_of_the_private_one(tmp_path: Path, key: Path) -> None:
    public = key.with_name("id_rsa.pub")
    public.chmod(0o600)
    assert "name the file without .pub" in mistake(tmp_path, f"  private_key: {public}")


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
@pytest.mark.parametrize("form", [(), ("-m", "PEM")])
def test_what_a_key_file_says(tmp_path: Path, kind: str, form: tuple[str, ...]) -> None:
    plain, locked = keygen(tmp_path / "plain", kind, "", *form), keygen(tmp_path / "locked", kind, "secret", *form)
    assert not inspect_key(plain).encrypted
    assert inspect_key(locked).encrypted
    assert derive_public(plain) == public_line(plain)


def test_a_public_key_of_another_pair(tmp_path: Path, key: Path) -> None:
    other = keygen(tmp_path / "other")
    pair = Identity(private_key=key, public_key=other.with_name("other.pub"))
    (finding,) = preflight(make_job(tmp_path / "job", ssh=SshSection(identities=[pair])))
    assert finding.level == "error"
    assert "is not the public half of" in finding.message


def test_an_identity_with_a_passphrase_is_odd(tmp_path: Path) -> None:
    pair = Identity(private_key=keygen(tmp_path / "locked", "rsa", "secret"))
    (finding,) = preflight(make_job(tmp_path / "job", ssh=SshSection(identities=[pair])))
    assert finding.level == "warning"


def test_public_keys_as_googles_metadata_has_them(tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    job = make_job(tmp_path / "job", ssh=SshSection(private_key=key))
    public = key.with_name("id_rsa.pub").read_text().strip()
    assert public_keys(job) == [f"ann:{public_line(own_key())} tpux", f"ann:{public} ann"]
    key.with_name("id_rsa.pub").unlink()
    assert public_keys(job)[1] == f"ann:{public} ann"


def test_the_name_of_a_copy_beside_a_job() -> None:
    assert remote_name(Path("/jobs/000001/files/12-id_rsa")) == "id_rsa"
    assert remote_name(Path("/home/me/.ssh/12-id_rsa")) == "12-id_rsa"
