"""Kubeconfigs: the context, and each kind of login, read again when it has expired."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpux import JsonValue, TpuxError
from tpux_gke.client import ApiError, Client, client_of
from tpux_gke.cluster import Cluster, find, stored
from tpux_gke.cluster import kubeconfig as kubeconfig_of
from tpux_gke.execs import Exec
from tpux_gke.login import Login
from tpux_gke.preflight import check
from tpux_gke.section import GkeTpuSection

TPU = GkeTpuSection.model_validate({"accelerator": "v6e-16", "image": "python"})


def write(path: Path, user: dict[str, JsonValue], **cluster: JsonValue) -> Path:
    """Write a kubeconfig with a context of a user."""
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the shell's kubeconfig."""
    path = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{path}")
    return path


def config_of(name: str, **more: JsonValue) -> dict[str, JsonValue]:
    """Return a kubeconfig whose entries are all named after it."""
    return {
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"of-{name}"}}],
        "clusters": [{"name": name, "cluster": {"server": f"http://127.0.0.1:1/{name}"}}],
        "users": [{"name": name, "user": {"token": name}}],
        **more,
    }


def merge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *configs: dict[str, JsonValue]) -> None:
    """Write kubeconfigs into a directory each, and name all of them in KUBECONFIG, with one that does not exist."""
    paths = [tmp_path / str(number) / "config" for number in range(len(configs))]
    for path, config in zip(paths, configs, strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, [tmp_path / "none", *paths])))


def test_context_and_user_in_different_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several kubeconfigs are one, as for kubectl: the current context of the first that has one."""
    contexts, others = config_of("a"), config_of("a", **{"current-context": "b"})
    del contexts["users"], contexts["clusters"], others["contexts"]
    merge(monkeypatch, tmp_path, contexts, others, config_of("b", **{"current-context": "a"}))
    cluster = find(TPU)
    assert (cluster.context, cluster.namespace, cluster.server) == ("b", "of-b", "http://127.0.0.1:1/b")
    chosen = find(TPU.model_copy(update={"context": "a"}))
    assert (chosen.server, chosen.namespace) == ("http://127.0.0.1:1/a", "of-a")
    assert Login(stored(chosen.to_json())).credential().token == "a"


def test_first_file_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of a name is that of the first file that has it, with nothing of the others."""
    first, second = config_of("a", **{"current-context": "a"}), config_of("a")
    first["contexts"] = [{"name": "a", "context": {"cluster": "a", "user": "a"}}]
    second["clusters"] = [{"name": "a", "cluster": {"server": "http://127.0.0.1:2"}}]
    second["users"] = [{"name": "a", "user": {"token": "other"}}]
    merge(monkeypatch, tmp_path, first, second)
    cluster = find(TPU)
    assert (cluster.server, cluster.namespace) == ("http://127.0.0.1:1/a", "default")
    assert Login(cluster).credential().token == "a"


def test_as_kubectl_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubectl: str) -> None:
    """The real kubectl has the same contexts, clusters and users."""
    second = config_of("a", **{"current-context": "b"})
    second["users"] = [{"name": "a", "user": {"tokenFile": "t", "token": "x"}}, {"name": "b", "user": {"token": "b"}}]
    second["contexts"] = [{"name": "a", "context": {"cluster": "b", "user": "b"}}]
    merge(monkeypatch, tmp_path, config_of("a"), {}, second, config_of("c", **{"current-context": "c"}))
    command = [kubectl, "config", "view", "--raw", "--output=json"]
    view = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    merged = kubeconfig_of(find(TPU.model_copy(update={"context": "c"})).kubeconfig)
    for kind in ("contexts", "clusters", "users"):
        assert sorted(merged[kind], key=str) == sorted(view[kind], key=str)  # type: ignore[arg-type]
    assert merged["current-context"] == view["current-context"] == "b"


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("user", "as", "admin"),
        ("user", "as-uid", "1"),
        ("user", "as-groups", ["team"]),
        ("user", "as-user-extra", {"a": ["b"]}),
        ("cluster", "proxy-url", "socks5://127.0.0.1:1080"),
    ],
)
def test_key_that_tpux_does_not_support(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, key: str, value: JsonValue
) -> None:
    """kubectl would be somebody else, or take another way: tpux must not do something else in silence."""
    config = config_of("a", **{"current-context": "a"})
    given: dict[str, JsonValue] = {"server": "https://c"} if kind == "cluster" else {"token": "a"}
    config[f"{kind}s"] = [{"name": "a", kind: {**given, key: value}}]
    config["contexts"] = [{"name": "a", "context": {"cluster": "a", "user": "a"}}]
    merge(monkeypatch, tmp_path, config)
    with pytest.raises(TpuxError, match=f"does not support {key}, which the {kind} a of") as raised:
        find(TPU)
    assert "tpu.context" in raised.value.hint


def test_paths_are_of_the_file_that_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the second file, and for a program that is named by a path."""
    second = config_of("b", **{"current-context": "b"})
    second["clusters"] = [{"name": "b", "cluster": {"server": "https://c", "certificate-authority": "ca"}}]
    second["users"] = [
        {"name": "b", "user": {"tokenFile": "token"}},
        {"name": "exec", "user": {"exec": {"command": "./get-token"}}},
    ]
    second["contexts"] = [*second["contexts"], {"name": "e", "context": {"cluster": "b", "user": "exec"}}]  # type: ignore[misc]
    merge(monkeypatch, tmp_path, config_of("a"), second)
    (tmp_path / "1/token").write_text("of the second")
    (tmp_path / "1/ca").write_text("PEM")
    (tmp_path / "1/get-token").write_text('#!/bin/sh\necho \'{"status": {"token": "of the program"}}\'\n')
    (tmp_path / "1/get-token").chmod(0o755)
    cluster = find(TPU)
    assert cluster.ca == "PEM"
    assert Login(cluster).credential().token == "of the second"
    assert Login(find(TPU.model_copy(update={"context": "e"}))).credential().token == "of the program"


def test_token(kubeconfig: Path) -> None:
    """A token is not stored with the job, and a new one is found after the old one was refused."""
    write(kubeconfig, {"token": "first"})
    cluster = find(TPU)
    assert (cluster.server, cluster.context, cluster.namespace) == ("http://127.0.0.1:1", "here", "team")
    assert "first" not in json.dumps(cluster.to_json())
    login = Login(stored(cluster.to_json()))
    assert login.credential().token == "first"
    write(kubeconfig, {"token": "second"})
    assert login.credential().token == "first"
    login.forget()
    assert login.credential().token == "second"


def test_token_file(kubeconfig: Path) -> None:
    """Its path is relative to the kubeconfig."""
    (kubeconfig.parent / "token").write_text("of a file\n")
    write(kubeconfig, {"tokenFile": "token"})
    assert Login(find(TPU)).credential().token == "of a file"


def test_exec_plugin(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in the environment of the shell that created the job, and again once its token has expired."""
    tools = kubeconfig.parent / "bin"
    tools.mkdir()
    ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 30))
    answer = {"status": {"token": "TOKEN", "expirationTimestamp": ends}}
    program = tools / "get-token"
    program.write_text(
        f"#!/bin/sh\necho x >>{kubeconfig.parent}/runs\n"
        f"echo '{json.dumps(answer)}' | sed \"s/TOKEN/$CLOUDSDK_CONFIG-$OWN-$1/\"\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("CLOUDSDK_CONFIG", "gcloud")
    write(kubeconfig, {"exec": {"command": "get-token", "args": ["arg"], "env": [{"name": "OWN", "value": "own"}]}})
    resolved = find(TPU).to_json()
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.delenv("CLOUDSDK_CONFIG")
    login = Login(stored(resolved))
    assert login.credential().token == "gcloud-own-arg"
    login.credential()
    assert (kubeconfig.parent / "runs").read_text().count("x") == 2


def test_secret_variables(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only variables that name something are stored with the job."""
    write(kubeconfig, {"exec": {"command": "get-token"}})
    for name in (
        "CLOUDSDK_AUTH_ACCESS_TOKEN",
        "CLOUDSDK_PROXY_PASSWORD",
        "GOOGLE_API_KEY",
        "GOOGLE_OAUTH_ACCESS_TOKEN",
    ):
        monkeypatch.setenv(name, "secret-value")
    monkeypatch.setenv("CLOUDSDK_ACTIVE_CONFIG_NAME", "work")
    found = find(TPU)
    assert "secret-value" not in json.dumps(found.to_json())
    assert found.variables["CLOUDSDK_ACTIVE_CONFIG_NAME"] == "work"


def test_missing_exec_plugin(kubeconfig: Path) -> None:
    """A program that is not there is named, with what installs it."""
    write(kubeconfig, {"exec": {"command": "no-such-plugin", "installHint": "install it"}})
    with pytest.raises(TpuxError, match="no-such-plugin is not in PATH") as raised:
        Login(find(TPU)).credential()
    assert raised.value.hint == "install it"


def test_no_context(kubeconfig: Path) -> None:
    """The contexts that there are are named."""
    write(kubeconfig, {})
    with pytest.raises(TpuxError, match="no context 'other'") as raised:
        find(TPU.model_copy(update={"context": "other"}))
    assert "here" in raised.value.hint


def test_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, the command that makes one is named."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(TpuxError, match="no kubeconfig") as raised:
        find(TPU)
    assert "get-credentials" in raised.value.hint
    with pytest.raises(TpuxError, match="no cluster is known"):
        stored({})


def test_certificate_of_the_server(kubeconfig: Path) -> None:
    """What cannot be decoded is said."""
    write(kubeconfig, {}, **{"certificate-authority-data": "§"})
    with pytest.raises(TpuxError, match="not base64"):
        find(TPU)
    assert Login(Cluster("http://127.0.0.1:1")).tls() is None


@pytest.mark.parametrize(
    "change",
    [
        {"ca": "x"},
        {"insecure": True},
        {"tls_name": "x"},
        {"google": {"project": "x"}},
        {"in_pod": True},
        {"context": "x"},
        {"variables": {"CLOUDSDK_CONFIG": "x"}},
    ],
)
def test_clients_are_not_mixed_up(change: dict[str, JsonValue]) -> None:
    """A client is used again only for a cluster that is reached in the same way."""
    one = Cluster("https://10.0.0.1", variables={"HOME": "/home"})
    other = {**one.to_json(), **change}
    assert client_of(one.to_json()) is client_of(one.to_json())
    assert client_of(other) is not client_of(one.to_json())


@pytest.mark.parametrize(
    ("server", "is_sent"),
    [
        ("http://10.0.0.1", False),
        ("http://127.0.0.1.example", False),
        ("http://cluster.example:8080", False),
        ("http://127.0.0.2:1", True),
        ("http://[::1]:1", True),
        ("http://localhost:1", True),
        ("https://10.0.0.1", True),
    ],
)
def test_no_token_in_the_clear(kubeconfig: Path, server: str, is_sent: bool) -> None:
    """A token is sent over http to this machine only; else neither a call nor an exec is made."""
    client = Client(find_of(kubeconfig, server))
    if is_sent:
        assert client.login.token() == "secret"
        return
    with pytest.raises(ApiError, match="is not https") as raised:
        client.get("api/v1/nodes")
    assert raised.value.status == 401
    with pytest.raises(EOFError, match="is not https"):
        Exec(client, "pod", ["true"])


def find_of(kubeconfig: Path, server: str, **cluster: JsonValue) -> Cluster:
    """Return the cluster of a kubeconfig with a token."""
    write(kubeconfig, {"token": "secret"}, server=server, **cluster)
    return find(TPU)


def test_certificate_that_is_not_verified(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preflight warns of it."""
    resolved = find_of(kubeconfig, "https://10.0.0.1", **{"insecure-skip-tls-verify": True}).to_json()
    monkeypatch.setattr(client_of(resolved), "get", lambda _: None)
    job = SimpleNamespace(resolved={"gke": resolved}, job=SimpleNamespace(output_dir=None))
    warning, _ = check(job, TPU)  # type: ignore[arg-type]
    assert warning.level == "warning"
    assert "is not verified" in warning.message
