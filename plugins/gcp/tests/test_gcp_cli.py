"""The commands `tpux tpu`, for nodes and queued resources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.main import get_command

from tpux import TpuxError
from tpux_gcp import cli, lookup
from tpux_gcp.api import Api
from tpux_gcp.cli import app, print_rows, print_tpus
from tpux_gcp.credentials import Place
from tpux_gcp.lookup import FoundTpu
from tpux_gcp.resource import Location, Node, TpuResource
from tpux_gcp.section import GcpTpuSection, apply_flags
from tpux_gcp.zones import full_zone, short_zone

TPUX = str(Path(sys.executable).with_name("tpux"))
LOCATION = Location("emulated", "us-central2-b")
MODE_OF = {"000821": "tpu-vm", "000822": "queued-resources"}


@pytest.fixture
def tpux(cloud, monkeypatch, capsys):
    monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", "us-central2-b")

    monkeypatch.setenv("TPUX_CLOCK_RATE", "20")  # speeds up only the commands' waiting

    def run(*words: str) -> SimpleNamespace:
        """Run a command as core does, within this process."""
        code = 0
        try:
            get_command(app).main(list(words), prog_name="tpux tpu", standalone_mode=False)
        except TpuxError as error:
            sys.stderr.write(str(error))
            code = int(error.exit_code)
        output = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=output.out, stderr=output.err)

    return run


def test_a_table_fits_the_terminal(capsys, monkeypatch):
    row = dict.fromkeys(("zone", "kind", "nodes", "pricing", "job", "user"), "us-central2-b")
    rows = [{"name": "n" * 30, **row, "workers": 4, "accelerator": "", "state": "WAITING_FOR_RESOURCES"}]
    print_rows(rows)
    whole = capsys.readouterr().out.splitlines()
    assert [len(line) > 100 for line in whole] == [True, True]
    assert "…" not in whole[1]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_rows(rows)
    header, line = capsys.readouterr().out.splitlines()
    assert max(len(header), len(line)) <= 80
    assert header.split() == ["NAME", "ZONE", "JOB", "ACCELERATOR", "STATE"]


def test_a_list_says_which_zones_it_lacks(tpux, cloud):
    rule = cloud.unreachable("us-east1-d")
    listed = tpux("list")
    assert "could not reach us-east1-d" in listed.stderr
    assert "no TPUs in the zones that answer of project emulated" in listed.stderr
    assert "no orphans in the zones that answer of project emulated" in tpux("orphans").stderr
    assert "could not reach us-east1-d" in tpux("list", "--zone", "us-east1-d").stderr
    cloud.clear(rule)
    assert "no TPUs in any zone of project emulated" in tpux("list").stderr


def test_node_lifecycle(tpux):
    made = tpux("create", "cli-node", "--type", "v4-8", "--pricing", "spot")
    assert (made.returncode, made.stdout) == (0, "")
    assert "cli-node in us-central2-b is READY" in made.stderr
    [row] = [row for row in json.loads(tpux("list", "--json").stdout) if row["name"] == "cli-node"]
    assert (row["kind"], row["accelerator"], row["workers"], row["pricing"]) == ("node", "v4-8", 1, "spot")
    assert "READY" in tpux("status", "cli-node").stdout
    [node] = json.loads(tpux("describe", "cli-node").stdout)
    assert (node["state"], node["acceleratorType"], "job" in node.get("labels", {})) == ("READY", "v4-8", False)
    assert "is STOPPED" in tpux("stop", "cli-node").stderr
    assert "is READY" in tpux("start", "cli-node").stderr
    refused = tpux("delete", "cli-node")
    assert (refused.returncode, "-y" in refused.stderr) == (2, True)
    assert tpux("delete", "cli-node", "-y").returncode == 0
    gone = tpux("delete", "cli-node", "-y")
    assert (gone.returncode, "no TPU cli-node" in gone.stderr) == (2, True)


def test_multislice_lifecycle(tpux):
    assert tpux("create", "cli-multi", "--type", "v4-16", "--node-count", "2").returncode == 0
    status = json.loads(tpux("status", "cli-multi", "--json").stdout)
    assert (status["kind"], [node["node"] for node in status["nodes"]]) == (
        "queued resource", ["cli-multi-0", "cli-multi-1"])  # fmt: skip
    assert len(json.loads(tpux("describe", "cli-multi").stdout)) == 3
    assert tpux("stop", "cli-multi").returncode == 2
    assert tpux("delete", "cli-multi", "-y").returncode == 0


def test_one_slice_is_deleted_only_with_the_others_and_not_without_a_word(tpux, monkeypatch):
    tpux("create", "cli-slices", "--type", "v4-16", "--node-count", "2")
    asked: list[tuple[str, bool]] = []
    monkeypatch.setattr(cli, "confirm", lambda question, *, yes: asked.append((question, yes)))
    deleted = tpux("delete", "cli-slices-0")
    assert asked == [("Delete cli-slices with its 2 slices in us-central2-b of project emulated?", False)]
    assert "cli-slices-0 is one of the 2 slices of the queued resource cli-slices, " in deleted.stderr
    assert "deleted cli-slices in us-central2-b" in deleted.stderr
    assert tpux("status", "cli-slices").returncode == 2


def test_only_a_404_falls_back_to_nodes(tpux, cloud):
    cloud.error(403, "queuedResources.get", message="Permission denied.")
    answer = tpux("status", "anything")
    assert answer.returncode == 1
    assert "Permission denied." in answer.stderr
    assert "no TPU" not in answer.stderr
    assert [e.method for e in cloud.requests if e.path.endswith("/anything")] == ["queuedResources.get"]


def test_create_reports_a_stockout(tpux, cloud):
    cloud.stockout("us-central2-b")
    answer = tpux("create", "cli-none", "--type", "v4-8")
    assert (answer.returncode, "no more capacity" in answer.stderr) == (1, True)


def test_types_and_versions(tpux):
    rows = json.loads(tpux("types", "--json").stdout)
    assert {"zone": "us-central2-b", "accelerator": "v4-32", "workers": 4} in rows
    assert "tpu-ubuntu2204-base" in tpux("versions").stdout.splitlines()
    assert tpux("types", "--zone", "usc2b").stdout == tpux("types", "--zone", "us-central2-b").stdout


def test_zones_have_short_forms(tpux):
    rows = json.loads(tpux("zones", "--json").stdout)
    [row] = [row for row in rows if row["zone"] == "us-central2-b"]
    assert (row["short"], "v4" in row["generations"]) == ("usc2b", True)
    assert all(full_zone(row["short"]) == row["zone"] for row in rows)
    assert ["us-west4-b", "usw4b", "v5litepod"] in [line.split() for line in tpux("zones").stdout.splitlines()]


@pytest.mark.parametrize(
    ("short", "zone"),
    [
        ("usc2b", "us-central2-b"),
        ("euw4a", "europe-west4-a"),
        ("ase1c", "asia-east1-c"),
        ("asne1b", "asia-northeast1-b"),
        ("asse1b", "asia-southeast1-b"),
        ("saw1a", "southamerica-west1-a"),
        ("mew1c", "me-west1-c"),
        ("uss1a", "us-south1-a"),
    ],
)
def test_short_forms_of_zones(short, zone):
    assert (full_zone(short), short_zone(zone)) == (zone, short)
    assert full_zone(zone) == zone
    section = GcpTpuSection(zone=[short, "us-east5-a"])
    assert section.first_zone() == zone
    assert section.zone == [zone, "us-east5-a"]
    assert apply_flags(GcpTpuSection(flags=[f"--zone={short}"])).zone == zone


@pytest.mark.parametrize("zone", ["", "-", "us", "usx2b", "us-central2", "nowhere-1", "usc2", "global"])
def test_what_is_no_short_form_is_unchanged(zone):
    assert (full_zone(zone), short_zone(zone)) == (zone, "")


def test_a_list_has_the_short_ids_of_jobs(capsys):
    labels = {"tpux-job": "000012", "tpux-user": "ann"}
    node = Node("n", "us-central2-b", "READY", labels=labels, accelerator="v4-8")
    found = FoundTpu("n", Location("p", "us-central2-b"), TpuResource.from_node(node))
    print_tpus([found], json=False, empty="")
    assert capsys.readouterr().out.splitlines()[1].split()[-2:] == ["12", "ann"]
    print_tpus([found], json=True, empty="")
    assert json.loads(capsys.readouterr().out)[0]["job"] == "000012"


@pytest.mark.parametrize(
    "command",
    ["create", "list", "status", "describe", "delete", "start", "stop", "types", "versions", "zones", "orphans"],
)
def test_each_command_has_an_example(command):
    part = get_command(app).commands[command]
    assert f"Example: tpux tpu {command}" in part.epilog
    assert part.help


def _write_job(home: Path, job: str, *events: dict[str, object]) -> None:
    """Make a job active in a store that starts no supervisor."""
    directory = home / "tpux" / "jobs" / "Ann.Lee" / job
    directory.mkdir(parents=True)
    created = {"type": "created", "at": 1.0, "id": job, "user": "Ann.Lee", "name": "x"}
    (directory / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (created, *events)))


def test_orphans_excludes_live_jobs_and_other_stores(tpux, drive, tmp_path):
    def labels(job: str, store: str) -> dict[str, str]:
        return {"tpux-store": store, "tpux-user": "ann-lee", "tpux-job": job}

    orphan, living = drive(mode="queued-resources", job="000801"), drive(job="000802")
    orphan.ready()
    living.ready()
    _write_job(tmp_path, "000802")
    api = Api(Place("emulated", endpoint=os.environ["TPUX_GCP_ENDPOINT"]))
    spec = {"accelerator_type": "v4-8", "runtime_version": "tpu-vm-base", "labels": labels("000803", "other")}
    api.create_node(LOCATION, "of-another-store", spec)
    rows = json.loads(tpux("orphans", "--json").stdout)
    assert [(row["name"], row["job"]) for row in rows] == [("train-000801", "000801")]
    assert tpux("orphans", "--delete").returncode == 2  # there is no terminal for the confirmation
    assert tpux("orphans", "--delete", "-y").returncode == 0
    assert (orphan.nodes(), orphan.queued(), len(living.nodes())) == ([], [], 1)
    living.release()
    tpux("delete", "of-another-store", "-y", "--async")


@pytest.fixture
def live(tmp_path):
    """Return a function that writes a live job to the store."""

    def write(job: str) -> None:
        directory = tmp_path / "tpux" / "jobs" / "Ann.Lee" / job
        directory.mkdir(parents=True)
        created = {"type": "created", "at": 1.0, "id": job, "user": "Ann.Lee", "name": "x"}
        (directory / "events.jsonl").write_text(json.dumps(created) + "\n")

    return write


@pytest.fixture
def taken_over(drive, live):
    """Return a live job that holds the multislice of an ended one."""
    giver, taker = (drive(mode="queued-resources", node_count=2, job=job) for job in ("000811", "000812"))
    giver.ready()
    live(taker.job)
    taker.take_over(giver)
    taker.ready()
    yield taker
    taker.release()


def test_a_running_tpu_that_was_taken_over_is_no_orphan(tpux, taken_over, monkeypatch):
    """Whatever the list of nodes lacks: its queued resource has the labels of the job that has ended."""
    nodes, queued = Api.nodes, Api.queued_resources
    of_queue = [replace(each, state="A_NEW_STATE") for each in queued(*_everywhere(taken_over))]
    for lists in ({"nodes": 0}, {"nodes": 1}, {"nodes": 0, "queued": of_queue}):
        hidden = [f"{taken_over.request.name}-{number}" for number in range(lists["nodes"], 2)]
        with monkeypatch.context() as patch:
            patch.setattr(Api, "nodes", lambda *args, h=hidden: [each for each in nodes(*args) if each.name not in h])
            if "queued" in lists:
                patch.setattr(Api, "queued_resources", lambda *_: of_queue)
            assert json.loads(tpux("orphans", "--json").stdout) == []
            assert lookup.find_orphans([taken_over.resolved]) == []


def test_all_nodes_say_whose_a_tpu_is(tpux, taken_over):
    """The first node is relabelled last, and a crash may come before it."""
    api, location = _everywhere(taken_over)
    first = f"{taken_over.request.name}-0"
    api.update_node(LOCATION, first, "labels", taken_over.previous_owners[0] | {"tpux-user": "ann-lee"})
    taken_over.cloud.wait_for(first, "READY")
    while api.node(LOCATION, first).labels["tpux-job"] == taken_over.job:
        pass
    assert [each.name for each in api.queued_resources(location)] == [taken_over.request.name]
    assert json.loads(tpux("orphans", "--json").stdout) == []


def test_orphans_are_looked_at_again_before_each_deletion(tpux, drive, live, monkeypatch):
    """The answer to the question may come after an hour, and each deletion takes minutes."""
    jobs = {job: drive(mode=mode, job=job) for job, mode in MODE_OF.items()}
    for job in jobs.values():
        job.ready()
    names = {job.request.name: number for number, job in jobs.items()}
    deleted, delete = [], Api.delete

    def resume_the_others(api, location, resource) -> None:
        deleted.append(resource.queued_resource or resource.nodes[0].name)
        if len(deleted) == 1:
            live(next(number for name, number in names.items() if name != deleted[0]))
        delete(api, location, resource)

    monkeypatch.setattr(Api, "delete", resume_the_others)
    said = tpux("orphans", "--delete", "-y").stderr
    assert len(set(deleted)) == 1
    [kept] = set(names) - set(deleted)
    assert f"not deleted: {kept} in us-central2-b is no orphan any more" in said
    assert jobs[names[kept]].nodes()
    jobs[names[kept]].release()


def test_a_new_tpu_of_an_orphans_name_is_not_deleted(tpux, drive, live, monkeypatch):
    """The job may be resumed while its old TPU is deleted: a deletion is repeated, but not of the new one."""
    job = drive(job="000823")
    job.ready()
    delete = Api.delete

    def resume(api, location, resource) -> None:
        delete(api, location, resource)
        monkeypatch.setattr(Api, "delete", delete)
        live(job.job)
        while job.nodes():
            pass
        job.saved_state = {}
        job.ready()

    monkeypatch.setattr(Api, "delete", resume)
    result = tpux("orphans", "--delete", "-y", "--timeout", "20s")
    assert (result.returncode, "READY" in result.stderr) == (1, True)
    assert len(job.requests("nodes.delete")) == 1
    assert job.nodes()
    job.release()


def _everywhere(job) -> tuple[Api, Location]:
    return Api(Place.from_json(job.resolved)), Location("emulated", "-")


def test_help_imports_nothing_heavy():
    heavy = "{'google', 'pydantic', 'grpc', 'requests'}"
    code = f"import sys, tpux_gcp.cli; print({heavy} & {{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_tpux_loads_the_commands_and_prints_their_errors(cloud):
    words = [TPUX, "tpu", "status", "nothing", "--zone", "us-central2-b"]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tpux: error: no TPU nothing in us-central2-b of project emulated")
