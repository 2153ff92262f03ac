"""Unusable keys are config errors with a position, reported before anything is created."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ssh_support import make_job

from tpux import ConfigError, config
from tpux.plugin.manager import Plugins
from tpux_ssh import preflight, public_keys
from tpux_ssh.keyfiles import derive_public, inspect_key, own_key, public_line
from tpux_ssh.section import Identity, SshSection
from tpux_ssh.worker_setup import remote_name

POSITION = "train.yaml:2:16: ssh.private_key"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return keygen(tmp_path / "id_rsa", "rsa")


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "", *options: str) -> Path:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "", "-f", str(path), *options]
    subprocess.run([*command, *(["-b", "2048"] if kind == "rsa" else [])], check=True)
    return path


def config_error(tmp_path: Path, section: str) -> str:
    path = tmp_path / "train.yaml"
    path.write_text(f"ssh:\n{section}\ncommand: {{cmd: 'true'}}\n")
    with pytest.raises(ConfigError) as caught:
        config.load(path, plugins=Plugins())
    return str(caught.value)


@pytest.mark.parametrize("form", [(), ("-m", "PEM")])
def test_an_rsa_key_with_a_passphrase(tmp_path: Path, form: tuple[str, ...]) -> None:
    locked = keygen(tmp_path / "locked", "rsa", "secret", *form)
    error = config_error(tmp_path, f"  private_key: {locked}")
    assert POSITION in error
    assert f"{locked} has a passphrase" in error


def test_a_key_readable_by_others(tmp_path: Path, key: Path) -> None:
    key.chmod(0o644)
    error = config_error(tmp_path, f"  private_key: {key}")
    assert POSITION in error
    assert f"the private key {key} is readable by others (mode 644)" in error
    assert "readable by others" in config_error(tmp_path, f"  identities: [{{private_key: {key}}}]")
    assert "readable by others" in config_error(tmp_path, f"  tpu_private_key: {key}")


def test_a_missing_key_file(tmp_path: Path) -> None:
    assert POSITION in config_error(tmp_path, "  private_key: none")


def test_a_public_key_instead_of_the_private_one(tmp_path: Path, key: Path) -> None:
    error = config_error(tmp_path, f"  private_key: {key}.pub")  # readable by all, as public keys are
    assert POSITION in error
    assert f"{key}.pub is a public key: use {key}" in error
    assert "chmod" not in error


@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [
        ("id.ppk", "PuTTY-User-Key-File-3: ssh-ed25519\n", "is a key of PuTTY: convert it with puttygen"),
        ("renamed", "PuTTY-User-Key-File-2: ssh-rsa\n", "-O private-openssh -o"),
        ("mine.pub", "sk-ssh-ed25519@openssh.com AAAA me\n", "is a public key: use the file of the private key"),
        ("rfc4716", "---- BEGIN SSH2 PUBLIC KEY ----\n", "is a public key"),
        ("pem", "-----BEGIN RSA PUBLIC KEY-----\n", "is a public key"),
        ("authorized_keys", "# mine\n\necdsa-sha2-nistp256 AAAA me\n", "is a public key"),
        ("id-cert.pub", "ssh-ed25519-cert-v01@openssh.com AAAA me\n", "is a certificate of a public key"),
        ("host.crt", "-----BEGIN CERTIFICATE-----\n", "is a certificate"),
        ("account.json", '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----"}', "is a JSON file"),
        ("notes", "my keys\n", "is not a private key"),
        ("empty", "", "is not a private key: it is empty"),
    ],
)
def test_another_kind_of_file_is_named(tmp_path: Path, name: str, content: str, shown: str) -> None:
    (tmp_path / name).write_text(content)
    for section in (f"  private_key: {name}", f"  tpu_private_key: {name}", f"  identities: [{{private_key: {name}}}]"):
        error = config_error(tmp_path, section)
        assert "train.yaml:2:" in error
        assert f"{tmp_path / name} {shown}" in error or shown in error
        assert "readable by others" not in error


def test_a_private_key_in_place_of_the_public_one(tmp_path: Path, key: Path) -> None:
    """It would be copied readable by all."""
    for section in (
        f"  tpu_private_key: {key}\n  tpu_public_key: {key}",
        f"  identities: [{{private_key: {key}, public_key: {key}}}]",
    ):
        assert f"{key} is a private key: use {key}.pub" in config_error(tmp_path, section)


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
@pytest.mark.parametrize("form", [(), ("-m", "PEM")])
def test_inspect_key(tmp_path: Path, kind: str, form: tuple[str, ...]) -> None:
    plain, locked = keygen(tmp_path / "plain", kind, "", *form), keygen(tmp_path / "locked", kind, "secret", *form)
    assert not inspect_key(plain).encrypted
    assert inspect_key(locked).encrypted
    assert derive_public(plain) == public_line(plain)


def test_a_public_key_of_another_pair(tmp_path: Path, key: Path) -> None:
    other = keygen(tmp_path / "other")
    pair = Identity(private_key=key, public_key=other.with_name("other.pub"))
    (finding,) = preflight(make_job(tmp_path / "job", ssh=SshSection(identities=[pair])))
    assert finding.level == "error"
    assert "is not the public key of" in finding.message


def test_an_identity_with_a_passphrase_is_a_warning(tmp_path: Path) -> None:
    pair = Identity(private_key=keygen(tmp_path / "locked", "rsa", "secret"))
    (finding,) = preflight(make_job(tmp_path / "job", ssh=SshSection(identities=[pair])))
    assert finding.level == "warning"


def test_public_keys_in_googles_format(tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    job = make_job(tmp_path / "job", ssh=SshSection(private_key=key))
    public = key.with_name("id_rsa.pub").read_text().strip()
    assert public_keys(job) == [f"ann:{public_line(own_key())} tpux", f"ann:{public} ann"]
    key.with_name("id_rsa.pub").unlink()
    assert public_keys(job)[1] == f"ann:{public} ann"


def test_remote_name_of_a_jobs_copy() -> None:
    assert remote_name(Path("/jobs/000001/files/12-id_rsa")) == "id_rsa"
    assert remote_name(Path("/home/me/.ssh/12-id_rsa")) == "12-id_rsa"
