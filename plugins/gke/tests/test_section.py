"""The section `tpu` of gke, what GKE calls the slices, and the JobSet that follows."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from pydantic import ValidationError

from tpux import JsonValue, ProvisionRequest, TpuxError
from tpux.config import load
from tpux.errors import ConfigError
from tpux.plugin.manager import Plugins
from tpux_gke.manifest import is_ours, jobset, jobset_name, merged, pod_template
from tpux_gke.objects import parts, text
from tpux_gke.section import GkeTpuSection, slice_of

OWNER = {"tpux-store": "s1", "tpux-user": "A.Smith@example", "tpux-job": "000007", "tpux-token": "abcd"}


def section(**keys: object) -> GkeTpuSection:
    """Return a section of a slice of four hosts."""
    return GkeTpuSection.model_validate({"accelerator": "v6e-16", "image": "python", **keys})


def request(tpu: GkeTpuSection, name: str = "train-000007-abcd", owner: dict[str, str] = OWNER) -> ProvisionRequest:
    """Return a job's request."""
    return ProvisionRequest(name, tpu, None, owner, (), Path("/nowhere"))


@pytest.mark.parametrize(
    ("accelerator", "topology", "chosen"),
    [
        ("v4-32", None, ("tpu-v4-podslice", "2x2x4", 4, 4)),
        ("v5p-8", None, ("tpu-v5p-slice", "2x2x1", 1, 4)),
        ("v5e-16", None, ("tpu-v5-lite-podslice", "4x4", 4, 4)),
        ("v6e-1", None, ("tpu-v6e-slice", "1x1", 1, 1)),
        ("v6e-256", None, ("tpu-v6e-slice", "16x16", 64, 4)),
        ("tpu7x-32", None, ("tpu7x", "2x2x4", 4, 4)),
        ("v5p-384", "4x4x12", ("tpu-v5p-slice", "4x4x12", 48, 4)),
    ],
)
def test_slices(accelerator: str, topology: str | None, chosen: tuple[str, str, int, int]) -> None:
    """Each type has GKE's label, a topology, and as many pods as it has hosts."""
    one = slice_of(accelerator, topology)
    assert (one.label, one.topology, one.hosts, one.chips) == chosen


@pytest.mark.parametrize(
    ("accelerator", "topology", "said"),
    [
        ("v9-8", None, "unknown accelerator"),
        ("v5p-7", None, "no size 7"),
        ("v5p-384", None, "no usual topology"),
        ("v6e-16", "4x8", "has others"),
        ("v6e-24", None, "no usual topology"),
    ],
)
def test_no_such_slice(accelerator: str, topology: str | None, said: str) -> None:
    """What GKE does not have is said with what it has."""
    with pytest.raises(TpuxError, match=said):
        slice_of(accelerator, topology)


def test_single_host_of_eight_chips() -> None:
    """2x4 of v5e is two nodes of four chips, or one of eight."""
    assert slice_of("v5e-8", None).hosts == 2
    assert slice_of("v5e-8", None, 8).hosts == 1


@pytest.mark.parametrize(
    ("keys", "pricing"),
    [
        ({}, "ondemand"),
        ({"capacity": "spot"}, "spot"),
        ({"pricing": "spot"}, "spot"),
        ({"capacity": "flex-start"}, "preemptible"),
        ({"queue": "q"}, "preemptible"),
        ({"capacity": "reservation", "reservation": "r"}, "ondemand"),
    ],
)
def test_pricing(keys: dict[str, object], pricing: str) -> None:
    """Never spot by default; a job that may be preempted resumes by default."""
    assert section(**keys).pricing == pricing


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"capacity": "on-demand", "pricing": "spot"}, "contradicts"),
        ({"capacity": "reservation"}, "belong together"),
        ({"cluster": "c"}, "belong together"),
        ({"cluster": "c", "location": "l", "context": "x"}, "kubeconfig"),
        ({"volumes": {"data": {}}}, "pattern"),
    ],
)
def test_wrong_sections(keys: dict[str, object], said: str) -> None:
    """Keys that contradict each other are errors."""
    with pytest.raises(ValidationError, match=said):
        section(**keys)


@pytest.mark.parametrize(
    "keys",
    [
        "pod: {spec: {containers: [{name: main, env: [{name: KEY, value: '${env:MY_KEY}'}]}]}}",
        "volumes: {/data: {csi: {driver: d, volumeAttributes: {key: '${env:MY_KEY}'}}}}",
    ],
)
def test_secret_in_the_jobset(keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in what becomes part of the JobSet is refused: others can read it there."""
    monkeypatch.setenv("MY_KEY", "secret-value")
    path = tmp_path / "job.yaml"
    path.write_text(f"tpu: {{allocation_mode: gke, accelerator: v6e-8, image: i, {keys}}}\ncommand: {{cmd: 'true'}}\n")
    with pytest.raises(ConfigError) as raised:
        load(path, plugins=Plugins())
    (problem,) = raised.value.problems
    assert "cannot have the secret" in problem.message
    assert "secretKeyRef" in problem.hint


CLAIM: dict[str, object] = {"persistentVolumeClaim": {"claimName": "data"}}


@pytest.mark.parametrize(
    ("volume", "lasts"),
    [
        (CLAIM, True),
        ({"nfs": {"server": "s", "path": "/"}}, True),
        ({"csi": {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": {"bucketName": "secrets"}}}, True),
        ({"gcePersistentDisk": {"pdName": "d"}}, True),
        ({"emptyDir": {}}, False),
        ({"ephemeral": {"volumeClaimTemplate": {}}}, False),
        ({"hostPath": {"path": "/mnt"}}, False),
        ({"projected": {"sources": []}}, False),
        ({"secret": {"secretName": "s"}}, False),
        ({"configMap": {"name": "c"}}, False),
        ({"downwardAPI": {"items": []}}, False),
        ({"image": {"reference": "r"}}, False),
        ({"csi": {"driver": "secrets-store-gke.csi.k8s.io"}}, False),
        ({"csi": {"driver": "csi.cert-manager.io"}}, False),
        ({"csi": {"driver": "csi.spiffe.io"}}, False),
    ],
)
def test_volumes_that_outlive_the_pods(volume: dict[str, object], lasts: bool) -> None:
    """Checkpoints last on claims, NFS and the like; what a pod or a node has of its own ends with it."""
    assert section(volumes={"/data": volume}).durable_paths() == (["/data"] if lasts else [])
    own = section(volumes={"/data": volume}, storage="/data/runs")
    assert own.durable_paths()[:1] == (["/data/runs"] if lasts else [])


def test_storage_on_a_volume_in_another() -> None:
    """The volume that is mounted deepest counts; one of `tpu.pod` is not known."""
    volumes = {"/data": CLAIM, "/data/tmp": {"emptyDir": {}}}
    assert section(volumes=volumes, storage="/data/tmp/a").durable_paths() == ["/data"]
    assert section(volumes=volumes, storage="/data/tmpfile").durable_paths() == ["/data/tmpfile", "/data"]
    assert section(storage="/other").durable_paths() == ["/other"]


@pytest.mark.parametrize("path", ["/tpux/home", "/tpux/home/runs", "/dev/shm/runs"])
def test_storage_on_a_volume_of_every_pod(path: str) -> None:
    """The home directory and the shared memory are emptyDirs, unless the config mounts something there."""
    assert section(storage=path).durable_paths() == []
    assert section(storage=path).passing_volume(path) == "emptyDir"
    assert section(storage=path, volumes={"/tpux/home": CLAIM, "/dev/shm": CLAIM}).durable_paths()[0] == path


def test_volume_at_the_home_directory() -> None:
    """It takes the place of the emptyDir: Kubernetes refuses two at one path."""
    tpu = section(volumes={"/tpux/home": CLAIM})
    (container,) = parts(pod_template(tpu, {}), "spec", "containers")
    mounts = {text(one, "mountPath"): text(one, "name") for one in parts(container, "volumeMounts")}
    assert len(mounts) == len(parts(container, "volumeMounts")) == 2
    claims = [text(one, "name") for one in parts(pod_template(tpu, {}), "spec", "volumes") if "emptyDir" not in one]
    assert claims == [mounts["/tpux/home"]]


def test_slices_is_an_alias() -> None:
    """The number of slices has core's name as well."""
    assert section(slices=2).count_workers() == 8
    assert section(node_count=2).count_workers() == 8


def test_jobset() -> None:
    """Slices are Jobs, hosts are pods; the queue is a label of the JobSet, the capacity a selector of the pods."""
    tpu = section(slices=2, queue="q", priority="high", capacity="spot", volumes={"/data": {"emptyDir": {}}})
    made = jobset(request(tpu), tpu)
    assert text(made, "metadata", "labels", "kueue.x-k8s.io/queue-name") == "q"
    assert text(made, "metadata", "labels", "kueue.x-k8s.io/priority-class") == "high"
    (job,) = parts(made, "spec", "replicatedJobs")
    assert (text(job, "replicas"), text(job, "template", "spec", "parallelism")) == ("2", "4")
    pod = cast("dict[str, dict[str, JsonValue]]", job["template"])["spec"]["template"]
    spec = cast("dict[str, dict[str, JsonValue]]", pod)["spec"]
    assert spec["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-spot": "true",
    }
    assert "priorityClassName" not in spec
    (container,) = parts(spec, "containers")
    assert text(container, "resources", "limits", "google.com/tpu") == "4"
    assert "/data" in [text(one, "mountPath") for one in parts(container, "volumeMounts")]


def test_pod_is_merged_last() -> None:
    """`tpu.pod` may change anything: lists of named items by name, and null removes."""
    change = {"spec": {"hostNetwork": True, "tolerations": None, "containers": [{"name": "main", "tty": True}]}}
    tpu = section(pod=change)
    (job,) = parts(jobset(request(tpu), tpu), "spec", "replicatedJobs")
    spec = cast("dict[str, dict[str, dict[str, dict[str, JsonValue]]]]", job["template"])["spec"]["template"]["spec"]
    assert spec["hostNetwork"] is True
    assert "tolerations" not in spec
    (container,) = parts(spec, "containers")
    assert (container["tty"], container["image"]) == (True, "python")
    assert merged([{"name": "a"}], [{"name": "b"}]) == [{"name": "a"}, {"name": "b"}]


def test_names() -> None:
    """Long names are shortened, with what tells them apart; all fit the names of pods."""
    tpu = section()
    long = [jobset_name(request(tpu, f"{'x' * 60}-{end}")) for end in "ab"]
    assert len({*long}) == 2
    assert max(map(len, long)) <= 36
    assert jobset_name(request(tpu)) == "train-000007-abcd"
    assert jobset_name(request(tpu, "7.Ab_")) == "t-7-ab"


def test_owner() -> None:
    """A JobSet of another token is not the job's, whatever its name."""
    tpu = section()
    made = jobset(request(tpu), tpu)
    assert is_ours(made, request(tpu))
    assert not is_ours(made, request(tpu, owner={**OWNER, "tpux-token": "other"}))
    assert text(made, "metadata", "labels", "tpux-user") == "A.Smith-example"
