"""Finds the cluster of a job once, when it is created: a kubeconfig, a cluster by name, or the pod that tpux runs in.

What `resolve` stores has no secrets: a token is read from where it is each time that it is needed.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import cast

from tpux import JsonValue, TpuxError, plain_reason
from tpux_gke.objects import Object, part, parts, text
from tpux_gke.section import GkeTpuSection

_KEPT = (
    "PATH", "HOME", "USER", "KUBECONFIG", "USE_GKE_GCLOUD_AUTH_PLUGIN",
    "CLOUDSDK_CONFIG", "CLOUDSDK_ACTIVE_CONFIG_NAME", "CLOUDSDK_CORE_ACCOUNT", "CLOUDSDK_CORE_PROJECT",
    "CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT", "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE",
    "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", "CLOUDSDK_PYTHON",
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_QUOTA_PROJECT",
)  # fmt: skip
"""The variables that are stored for an exec plugin: names and paths only. Others, such as
CLOUDSDK_AUTH_ACCESS_TOKEN and CLOUDSDK_PROXY_PASSWORD, may be secrets."""
_NOT_SUPPORTED = {"cluster": ("proxy-url",), "user": ("as", "as-uid", "as-groups", "as-user-extra")}
"""Keys of a kubeconfig by which kubectl would reach the cluster otherwise, or as somebody else."""
POD_FILES = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Cluster:
    """A cluster, and how to log in to it.

    Attributes:
        server: the address of its API.
        ca: the certificates that sign the server's, as PEM; "" for those that this machine trusts.
        insecure: do not verify the server's certificate, as the kubeconfig says.
        namespace: the namespace of the job.
        context: the kubeconfig's context; for `google` the one that gcloud would add.
        kubeconfig: the path, or those that are merged, as in KUBECONFIG; "" without one.
        user: the user's name in it.
        tls_name: the name in the server's certificate, if it is another one than in the address.
        google: log in as the plugin gcp does; its place.
        in_pod: log in with the service account of the pod that tpux runs in.
        variables: the environment of the kubeconfig's exec plugin, PATH among it.
    """

    server: str
    ca: str = ""
    insecure: bool = False
    namespace: str = "default"
    context: str = ""
    kubeconfig: str = ""
    user: str = ""
    tls_name: str = ""
    google: dict[str, JsonValue] = field(default_factory=dict)
    in_pod: bool = False
    variables: dict[str, JsonValue] = field(default_factory=dict)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the fields as JSON data."""
        return {"shown": ["server", "context", "namespace"], **asdict(self)}

    @property
    def key(self) -> str:
        """What tells it from others: all fields, as any of them may change how it is reached."""
        return json.dumps(asdict(self), sort_keys=True)

    def kubectl(self, *words: str) -> str:
        """Return a command that a person can type in any shell, whatever cluster is the current one there."""
        context = ["--context", self.context] if self.context else []
        command = shlex.join(["kubectl", *context, "--namespace", self.namespace, *words])
        if self.google and self.context:
            _, project, location, name = self.context.split("_")
            login = ["gcloud", "container", "clusters", "get-credentials", name, "--location", location]
            return f"{shlex.join([*login, '--project', project])} && {command}"
        return f"KUBECONFIG={shlex.quote(self.kubeconfig)} {command}" if self.kubeconfig else command


def stored(data: Mapping[str, JsonValue]) -> Cluster:
    """Return the cluster that `resolve` has stored.

    Raises:
        TpuxError: there is none.
    """
    known = {one.name for one in fields(Cluster)}
    if not data.get("server"):
        raise TpuxError("no cluster is known", hint="create the job in a shell in which `kubectl get pods` works")
    return Cluster(**{name: value for name, value in data.items() if name in known})  # type: ignore[arg-type]


def find(tpu: GkeTpuSection) -> Cluster:
    """Return the cluster that the config and this shell stand for.

    Raises:
        TpuxError: there is none.
    """
    if tpu.cluster:
        return _by_name(tpu)
    given = tpu.kubeconfig or os.environ.get("KUBECONFIG", "")
    paths = [Path(path).expanduser() for path in given.split(os.pathsep) if path]
    paths = paths or [Path("~/.kube/config").expanduser()]
    if found := [str(path.absolute()) for path in paths if path.is_file()]:
        return _of_kubeconfig(os.pathsep.join(found), tpu)
    if not given and (POD_FILES / "token").is_file():
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        own = _read(POD_FILES / "namespace").strip()
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        return Cluster(server, _read(POD_FILES / "ca.crt"), namespace=tpu.namespace or own, in_pod=True)
    hint = "gcloud container clusters get-credentials CLUSTER --location=LOCATION, or set tpu.cluster and tpu.location"
    raise TpuxError(f"there is no kubeconfig at {paths[0]}", where="tpu", hint=hint)


def kubeconfig(paths: str) -> Object:
    """Return the content of kubeconfigs as kubectl merges them: the first that has a name, or a context, wins.

    Args:
        paths: as in KUBECONFIG. The paths in the files are relative to each file; in the result they are not.

    Raises:
        TpuxError: one cannot be read.
    """
    current, found = "", {kind: dict[str, JsonValue]() for kind in ("context", "cluster", "user")}
    for path in map(Path, paths.split(os.pathsep)):
        content = _yaml(path)
        current = current or text(content, "current-context")
        for kind, known in found.items():
            for one in parts(content, f"{kind}s"):
                known.setdefault(text(one, "name"), {**one, kind: _absolute(part(one, kind), path.parent)})
    return {"current-context": current, **{f"{kind}s": [*known.values()] for kind, known in found.items()}}


def entry(config: Object, kind: str, name: str) -> Object:
    """Return the entry of a kubeconfig's list, such as the user with a name; an empty one if there is none."""
    return next((part(one, kind) for one in parts(config, f"{kind}s") if one.get("name") == name), {})


def file_content(owner: Object, name: str) -> str:
    """Return what `NAME-data`, or the file that `NAME` names, has.

    Args:
        owner: the user or cluster.
        name: such as certificate-authority.

    Raises:
        TpuxError: it cannot be read.
    """
    if data := text(owner, f"{name}-data"):
        try:
            return base64.b64decode(data).decode()
        except ValueError as error:
            raise TpuxError(f"{name}-data of the kubeconfig is not base64") from error
    path = text(owner, name)
    return _read(Path(path)) if path else ""


def _yaml(path: Path) -> Object:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(_read(path))
    except YAMLError as error:
        raise TpuxError(f"{path} is not YAML: {plain_reason(error)}") from error
    if not isinstance(content, dict | None):
        raise TpuxError(f"{path} is not a kubeconfig")
    return content or {}


def _absolute(owner: Object, directory: Path) -> dict[str, JsonValue]:
    """Return a user or a cluster with the paths of its files from the root on."""
    found = dict(owner)
    for name in ("certificate-authority", "client-certificate", "client-key", "tokenFile"):
        if text(owner, name):
            found[name] = str(directory / text(owner, name))
    if "/" in (command := text(owner, "exec", "command")):
        found["exec"] = {**part(owner, "exec"), "command": str(directory / command)}
    return found


def _of_kubeconfig(paths: str, tpu: GkeTpuSection) -> Cluster:
    config = kubeconfig(paths)
    name = tpu.context or text(config, "current-context")
    context = entry(config, "context", name)
    cluster = entry(config, "cluster", text(context, "cluster"))
    if not text(cluster, "server"):
        known = ", ".join(text(one, "name") for one in parts(config, "contexts")) or "none"
        hint = f"contexts: {known}; choose one with tpu.context or kubectl config use-context"
        raise TpuxError(f"{paths} has no context {name!r} with a cluster", where="tpu.context", hint=hint)
    user = text(context, "user")
    for kind, owner in (("cluster", cluster), ("user", entry(config, "user", user))):
        if key := next((one for one in _NOT_SUPPORTED[kind] if owner.get(one)), ""):
            hint = "choose a context without it with tpu.context, or tpu.kubeconfig"
            message = f"tpux does not support {key}, which the {kind} {text(context, kind)} of {paths} has"
            raise TpuxError(message, where="tpu.context", hint=hint)
    return Cluster(
        text(cluster, "server").rstrip("/"),
        file_content(cluster, "certificate-authority"),
        insecure=cluster.get("insecure-skip-tls-verify") is True,
        namespace=tpu.namespace or text(context, "namespace") or "default",
        context=name,
        kubeconfig=paths,
        user=user,
        tls_name=text(cluster, "tls-server-name"),
        variables={
            one: os.environ[one] for one in _KEPT if one in os.environ and entry(config, "user", user).get("exec")
        },
    )


def _by_name(tpu: GkeTpuSection) -> Cluster:
    """Return the cluster as GKE's own API describes it, with the login of the plugin gcp."""
    from tpux_gcp.credentials import call
    from tpux_gcp.errors import CloudError, InvalidConfigError
    from tpux_gcp.project import find_place

    place = find_place(tpu.project)
    try:
        project = place.required_project()
        name = f"projects/{project}/locations/{tpu.location}/clusters/{tpu.cluster}"
        answer = call(place, "GET", f"https://container.googleapis.com/v1/{name}")
    except CloudError as error:
        raise TpuxError(error.problem.message, where="tpu.cluster", hint=error.problem.hint) from error
    except InvalidConfigError as error:
        raise TpuxError(str(error), where="tpu.project") from error
    found = cast("Object", answer.json()) if answer.ok else {}
    if not text(found, "endpoint"):
        hint = "gcloud container clusters list"
        raise TpuxError(f"{name}: HTTP {answer.status_code} {answer.reason}", where="tpu.cluster", hint=hint)
    ca = base64.b64decode(text(found, "masterAuth", "clusterCaCertificate")).decode()
    server, context = f"https://{text(found, 'endpoint')}", f"gke_{project}_{tpu.location}_{tpu.cluster}"
    return Cluster(server, ca, namespace=tpu.namespace or "default", context=context, google=place.to_json())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TpuxError(f"cannot read {path}: {plain_reason(error)}") from error
