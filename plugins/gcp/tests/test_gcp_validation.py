"""Errors in configs, accounts and the cloud, and the messages for them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from google.auth import compute_engine

from tpux import Denied, Job, Released, UsageError, Waiting
from tpux.model.sections import JobSection
from tpux_emulator.cloud import answers
from tpux_gcp import api, errors
from tpux_gcp import credentials as credentials_module
from tpux_gcp.allocators import tpu_vm
from tpux_gcp.credentials import Place, credentials
from tpux_gcp.disks import DataDisk
from tpux_gcp.errors import CloudError
from tpux_gcp.project import find_login, find_place
from tpux_gcp.section import GcpTpuSection, apply_flags

KEY = "ann:ssh-ed25519 A"


@pytest.fixture
def preflight(drive, tmp_path):
    """Return a function that gives the warnings and errors of preflight for a `tpu` section."""

    def look(**tpu: object) -> list[tuple[str, str, str]]:
        section = drive(**tpu).tpu
        job = Job("000001", "ann", "store", tmp_path, {"job": JobSection(name="x"), "tpu": section})
        job = replace(job, resolved={section.allocation_mode: tpu_vm.resolve(job=job)})
        return [(f.level, f.message, f.hint) for f in tpu_vm.preflight(job=job) if f.level not in {"ok", "note"}]

    return look


@pytest.fixture
def no_credentials(monkeypatch, cloud):
    """Google's own endpoint (never reached), without credentials."""
    monkeypatch.delenv("TPUX_GCP_ENDPOINT")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setattr(credentials_module, "_credentials", {})


@pytest.mark.parametrize(
    ("tpu", "message", "hint"),
    [
        ({"accelerator": None, "flags": ["--accelerator-type=v4-9"]}, "no size 9", "multiple of 8"),
        ({"accelerator": None, "flags": ["--accelerator-type=v99-8"]}, "unknown accelerator 'v99-8'", "known are"),
        ({"accelerator": None}, "tpu.accelerator is not set", "v4-32"),
        ({"zone": None}, "tpu.zone is not set", "us-central2-b"),
        ({"name": "Big_Name"}, "invalid TPU name 'Big_Name'", "lower-case"),
        ({"name": "x" * 64}, "invalid TPU name", "at most 63"),
        ({"name": "x" * 62, "node_count": 8}, "invalid TPU name", "at most 61"),
        ({"labels": {"Team": "x"}}, "invalid label Team=x", "lower-case"),
        ({"tags": ["Web"]}, "invalid tag 'Web' in tpu.tags", "lower-case"),
        ({"tags": [f"t{n}" for n in range(65)]}, "65 tags", "at most 64"),
        ({"metadata": {"a b": "x"}}, "invalid key 'a b' in tpu.metadata", "letters"),
        ({"metadata": {"x" * 129: "x"}}, "invalid key", "at most 128"),
        ({"accelerator": None, "flags": ["--accelerator-type=tpu7x-8"]}, "tpu7x-8 is not available", "GKE only"),
        ({"flags": ["--turbo"]}, "unsupported flag --turbo", "--spot"),
        ({"flags": ["--type=v4"]}, "unsupported flag --type", "tpu.accelerator"),
        ({"topology": "2x2x2"}, "'2x2x2' is not one of v4-8", "the number of chips, 4 for v4-8"),
        ({"flags": ["--topology=2"]}, "'2' is not one of v4-8", "product of the sides"),
        ({"reservation": "projects/p/r1"}, "invalid reservation 'projects/p/r1'", "projects/OWNER/reservations/NAME"),
        ({"reservation": "R 1"}, "invalid reservation 'R 1'", "give its name"),
        ({"flags": ["--network"]}, "needs a value", ""),
        ({"flags": ["--spot=1"]}, "takes no value", ""),
        ({"flags": ["--node-count=two"]}, "--node-count=two", ""),
        ({"flags": ["stray"]}, "is not a flag", ""),
        ({"flags": ["--zone=us-east1-d"]}, "tpu.flags sets 'us-east1-d', but tpu.zone", "keep only tpu.zone"),
        ({"flags": ["--metadata-from-file=x=y"]}, "only startup-script", "tpu.metadata"),
    ],
)
def test_config_errors_fail_before_any_request(drive, preflight, tpu, message, hint):
    job = drive(**tpu)
    failure = job.denied().failure
    assert (failure.kind, message in failure.evidence, hint in failure.hint) == ("config", True, True), failure
    assert [e for e in job.requests() if e.method != "compute.projects.get"] == []
    assert isinstance(job.release_step(), Released)
    assert any(level == "error" and message in text for level, text, _ in preflight(**tpu))


def test_gcloud_flags_set_their_keys(drive, tmp_path):
    script = tmp_path / "s.sh"
    script.write_text("true\n")
    job = drive(
        flags=[
            "--spot", "--network=n1", "--subnetwork", "s1", "--tags=a,b", "--labels=team=x", "--metadata k=v,l=m=n",
            "--service-account=sa@x", "--internal-ips", "--runtime-version=tpu-vm-base", "--async", "-q",
        ],
    )  # fmt: skip
    job.ready()
    body = job.requests("nodes.create")[0].body
    assert body["schedulingConfig"] == {"spot": True}
    assert body["networkConfig"] == {"network": "n1", "subnetwork": "s1"}
    assert (body["tags"], body["runtimeVersion"]) == (["a", "b"], "tpu-vm-base")
    assert (body["metadata"]["k"], body["metadata"]["l"], body["labels"]["team"]) == ("v", "m=n", "x")
    job.release()
    for flags in (f"--metadata-from-file=startup-script='{script}'", f"--metadata-from-file startup-script={script}"):
        job = drive(flags=[flags], release_if_unattended=0)
        job.ready()
        assert job.requests("nodes.create")[0].body["metadata"]["startup-script"] == "true\n"
        job.release()


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        (["--labels=^:^a=1,2:b=3"], {"labels": {"a": "1,2", "b": "3"}}),
        (["--metadata=^::^x=1:2::y=,"], {"metadata": {"x": "1:2", "y": ","}}),
        (["--tags ^;^a;b"], {"tags": ["a", "b"]}),
        (["--tags=a,b"], {"tags": ["a", "b"]}),
        (["--metadata=x=^2^"], {"metadata": {"x": "^2^"}}),
        (["--scopes=https://a,https://b"], {"scopes": ["https://a", "https://b"]}),
        (["--shielded-secure-boot --description 'a text'"], {"secure_boot": True, "description": "a text"}),
        (["--valid-until-duration=6h"], {"valid_until": 21600.0}),
        (["--provisioning-model=SPOT"], {"pricing": "spot"}),
        (
            ["--data-disk source=one", "--data-disk=source=projects/p/zones/z/disks/two,mode=read-only"],
            {
                "data_disks": [
                    DataDisk(source="one"),
                    DataDisk(source="projects/p/zones/z/disks/two", mode="read-only"),
                ]
            },
        ),
    ],
)
def test_flags_in_gclouds_words(flags, keys):
    section = apply_flags(GcpTpuSection(flags=flags))
    assert {key: getattr(section, key) for key in keys} == keys


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data-disk=one"], "needs source=DISK"),
        (["--data-disk=source=Big"], "'Big' is no disk"),
        (["--data-disk=source=a,mode=rw"], "read-write"),
        (["--provisioning-model=cheap"], "none of standard, spot"),
        (["--valid-until-duration=soon"], "--valid-until-duration=soon in tpu.flags"),
    ],
)
def test_flags_with_values_that_are_not_valid(flags, message):
    with pytest.raises(errors.InvalidConfigError, match=message):
        apply_flags(GcpTpuSection(flags=flags))


def test_a_file_in_a_list_with_another_delimiter(tmp_path):
    (tmp_path / "a,b.sh").write_text("echo")
    section = apply_flags(GcpTpuSection(flags=[f"--metadata-from-file='^:^startup-script={tmp_path}/a,b.sh'"]))
    assert section.startup_script == tmp_path / "a,b.sh"


def test_no_project(drive, no_credentials):
    failure = drive().denied().failure
    assert "no Google Cloud project" in failure.evidence
    assert "gcloud config set project" in failure.hint
    assert "gcloud auth application-default login" in failure.hint


def test_no_credentials(drive, no_credentials, preflight):
    job = drive(project="p")
    failure = job.denied().failure
    assert failure.kind == "auth"
    assert failure.hint == "gcloud auth application-default login"
    assert ("gcloud auth application-default login") in {hint for _, _, hint in preflight(project="p")}
    answer = job.release_step()  # a TPU may exist: the release stays pending
    assert isinstance(answer, Waiting)
    assert "gcloud auth application-default login" in answer.hint


def test_order_of_project_sources(drive, cloud, monkeypatch, tmp_path):
    home = tmp_path / "gcloud"
    (home / "configurations").mkdir(parents=True)
    (home / "active_config").write_text("work")
    (home / "configurations" / "config_work").write_text("[core]\nproject = of-gcloud\n[compute]\nzone = us-east1-d\n")
    assert find_place() == Place("of-gcloud", "us-east1-d", cloud.url, endpoint_allowed=True)
    monkeypatch.setenv("CLOUDSDK_CORE_PROJECT", "of-sdk")
    assert find_place().project == "of-sdk"
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "of-env")
    assert find_place().project == "of-env"
    assert find_place("given").project == "given"
    job = drive(zone=None, accelerator="v6e-8")
    assert job.ready().allocation.zone == "us-east1-d"
    assert all("/projects/of-env/" in e.path for e in job.requests("nodes"))
    job.release()


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:1"])
def test_a_request_stays_in_its_place_whatever_the_environment_says(drive, monkeypatch, endpoint):
    monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", "us-central2-b")
    job = drive(zone=None)
    monkeypatch.setenv("TPUX_GCP_ENDPOINT", endpoint)  # a supervisor started from another shell
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "another")
    monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", "us-east1-d")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
    assert job.ready().allocation.zone == "us-central2-b"
    assert all("/projects/emulated/" in request.path for request in job.requests("nodes"))
    assert job.inspect().state == "ready"
    job.release()
    assert job.nodes() == []


def test_a_conflict_between_config_and_environment_is_an_error(drive, cloud):
    with pytest.raises(UsageError, match=r"names the endpoint http://other:1, and \$TPUX_GCP_ENDPOINT is http://127"):
        drive(endpoint="http://other:1")
    assert drive(endpoint=f"{cloud.url}/").resolved["endpoint"] == cloud.url


@pytest.mark.parametrize(
    ("endpoint", "resolved"),
    [
        (None, "https://tpu.googleapis.com"),
        ("tpu.googleapis.com", "https://tpu.googleapis.com"),
        ("https://us-central2-tpu.googleapis.com/", "https://us-central2-tpu.googleapis.com"),
        ("https://tpu.googleapis.com.example.org", ""),
        ("https://proxy.example.org", ""),
    ],
)
def test_credentials_are_sent_to_google_and_to_allowed_hosts(drive, no_credentials, monkeypatch, endpoint, resolved):
    if resolved:
        assert drive(endpoint=endpoint).resolved["endpoint"] == resolved
        return
    with pytest.raises(UsageError, match="sent to Google's hosts only") as raised:
        drive(endpoint=endpoint)
    monkeypatch.setenv(*raised.value.hint.split()[-1].split("="))
    assert drive(endpoint=endpoint).resolved["endpoint"] == endpoint


def test_credentials_are_loaded_from_the_stored_file(drive, no_credentials, monkeypatch, tmp_path):
    file = tmp_path / "adc.json"
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    file.write_text(json.dumps({**user, "account": "ann@example.org"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "paying")
    job = drive(project="p")
    assert {key: value for key, value in job.resolved.items() if not key.startswith(("login_", "shown"))} == {
        "project": "p", "zone": "", "endpoint": "https://tpu.googleapis.com", "endpoint_allowed": True,
        "login": "file", "file": str(file), "account": "ann@example.org", "quota_project": "paying",
        "storage_endpoint": "",
    }  # fmt: skip
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "another")
    place = Place.from_json(job.resolved)
    found = credentials(place)
    assert (found.refresh_token, found.quota_project_id) == ("r", "paying")
    file.write_text(json.dumps({**user, "account": "bob@example.org"}))
    monkeypatch.setattr(credentials_module, "_credentials", {})
    with pytest.raises(CloudError, match=r"is of bob@example.org now; the job was created as ann@example.org"):
        credentials(place)


def test_credentials_of_the_metadata_server(monkeypatch):
    place = Place("p", endpoint_allowed=True, login="metadata-server", quota_project="paying")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
    found = credentials(place)
    assert isinstance(found, compute_engine.Credentials)
    assert found.quota_project_id == "paying"


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
@pytest.mark.parametrize(
    ("status", "message", "kind", "hint"),
    [
        (403, "Cloud TPU API has not been used in project p before or it is disabled.", "auth", "services enable"),
        (403, "Permission 'tpu.nodes.create' denied on resource", "auth", "roles/tpu.admin"),
        (429, "Quota limit 'TPUV4' has been exceeded. Limit: 0 in zone us-central2-b.", "quota", "quota page"),
        (404, "Reservation not found: r1", "config", "tpux tpu"),
        (400, 'The "network" is not there', "config", ""),
    ],
)
def test_failures_carry_the_apis_message_and_a_hint(drive, mode, status, message, kind, hint):
    job = drive(mode=mode)
    job.cloud.error(status, "*.create", message=message)
    failure = job.denied().failure
    assert failure.kind == kind
    assert failure.evidence.endswith(message)
    assert hint in failure.hint


def test_rejected_credentials(drive):
    job = drive()
    job.cloud.error(401)
    failure = job.denied().failure
    assert (failure.kind, failure.hint) == ("auth", "gcloud auth application-default login")


def test_an_immediate_stockout(drive):
    job = drive(accelerator="v6e-8", zone=["us-east1-d", "us-east5-b"])
    job.cloud.error(429, "nodes.create", count=1, message='There is no more capacity in the zone "us-east1-d"')
    assert job.ready().allocation.zone == "us-east5-b"
    job.release()


def test_a_zone_without_the_accelerator(drive, preflight):
    failure = drive(accelerator="v6e-8").denied().failure
    assert "zonal accelerator configurations" in failure.evidence
    [(level, message, hint)] = preflight(accelerator="v6e-8")
    assert (level, message) == ("error", "us-central2-b has no v6e-8")
    assert "tpux tpu types" in hint


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_a_zone_of_the_list_without_the_accelerator_is_left_out(drive, preflight, mode):
    zones = ["us-central1-c", "us-central2-b"]
    (finding,) = preflight(zone=zones)
    assert finding[:2] == ("warning", "us-central1-c has no v4-8, and is left out")
    job = drive(mode=mode, zone=zones)
    assert job.ready().allocation.zone == "us-central2-b"
    assert any("us-central1-c" in message and "zonal accelerator configurations" in message for message in job.messages)
    job.release()


def test_no_zone_of_the_list_has_the_accelerator(drive, preflight):
    zones = ["us-central1-c", "us-east1-d"]
    assert [level for level, _, _ in preflight(zone=zones)] == ["error", "error"]
    failure = drive(zone=zones).denied().failure
    assert (failure.kind, failure.evidence.count("zonal accelerator configurations")) == ("config", 2)


def test_an_unknown_zone(drive, preflight):
    failure = drive(zone="us-central9-z").denied().failure
    assert (failure.kind, "not found or access is unauthorized" in failure.evidence) == ("auth", True)
    assert [message for _, message, _ in preflight(zone="us-central9-z")] == [
        "project emulated has no TPU zone us-central9-z"
    ]
    assert preflight(zone="us-central2-c")[0][2] == "did you mean us-central2-b?"


@pytest.mark.parametrize("status", [429, 503, 0])
def test_what_the_api_does_not_answer_is_not_checked(preflight, cloud, status):
    rule = cloud.error(status) if status else cloud.drop()
    [(level, message, _)] = preflight()
    assert (level, message.startswith("not checked: ")) == ("warning", True)
    cloud.clear(rule)
    api._throttled_until.clear()
    assert preflight() == []


def test_an_unknown_runtime_version(preflight):
    assert preflight(version="tpu-windows")[0][1] == "us-central2-b has no runtime version tpu-windows"


def test_preflight_of_a_valid_config_creates_nothing(drive, preflight):
    job = drive()
    assert preflight(accelerator=["v6e-8", "v4-8"], zone=["us-east1-d", "us-central2-b"]) != []
    assert preflight() == []
    assert [e.method for e in job.requests() if e.verb != "GET"] == []


def test_preflight_warns_of_a_reservation_that_a_node_cannot_select(preflight):
    assert [level for level, _, _ in preflight(reservation="r1")] == ["warning"]
    assert preflight(reservation="r1", mode="queued-resources") == []


def test_a_name_conflict_with_an_invisible_resource(drive):
    job = drive(mode="queued-resources")
    job.cloud.error(409, "queuedResources.create", message="Resource 'x' already exists")
    answer = job.run()
    assert isinstance(answer, Denied)
    assert answer.failure.evidence == "Resource 'x' already exists"
    assert "tpux tpu describe" in answer.failure.hint


def test_a_404_from_a_proxy_is_not_missing():
    assert errors.from_answer(404, "<html>nginx</html>", "p").kind == "transient"
    gone = {"error": {"code": 404, "status": "NOT_FOUND", "message": "Resource 'n' was not found"}}
    assert errors.from_answer(404, json.dumps(gone), "p").kind == "missing"


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (8, 'There is no more capacity in the zone "z"', "stockout"),
        (9, "Insufficient reserved capacity", "stockout"),
        (8, "The zone does not have enough resources available to fulfill the request.", "stockout"),
        (14, "ZONE_RESOURCE_POOL_EXHAUSTED", "stockout"),
        (8, "Quota limit 'x' has been exceeded. Limit: 0", "quota"),
        (8, "Quota limit 'x' has been exceeded. Limit: 0 in region us-east5.", "quota"),
        (8, "Quota 'x' exceeded.  Limit: 0.0 in region us-east5.", "quota"),
        (8, "Quota limit 'x' has been exceeded. Limit: 0.5 in region us-east5.", "quota-used"),
        (8, "Quota limit 'x' has been exceeded. Limit: 32 in region us-east5.", "quota-used"),
        (9, "Quota 'x' exhausted. Limit 20800 in region us-central2", "quota-used"),
        (7, "Quota 'x' exceeded. Limit: 0.0 in region r", "quota"),
        (7, "Cloud TPU API has not been used in project p before or it is disabled.", "disabled"),
        (13, "an internal error has occurred", "stockout"),
        (5, "Reservation not found", "config"),
        (3, "CloudTpu received an invalid AcceleratorType", "config"),
        (7, "... is not found or access is unauthorized", "forbidden"),
        (4, "expired", "stockout"),
    ],
)
def test_classification_of_operation_statuses(code, message, kind):
    assert errors.from_status(code, message).kind == kind


KINDS = {
    "no-capacity": "stockout",
    "no-reserved-capacity": "stockout",
    "no-resources": "stockout",
    "pool-exhausted": "stockout",
    "quota-exceeded-zone": "quota-used",
    "quota-exceeded-region": "quota-used",
    "quota-exhausted-zone": "quota-used",
    "quota-exhausted-region": "quota-used",
    "no-addresses": "quota-used",
    "wrong-state": "busy",
    "no-such-type": "config",
    "no-such-type-before-2024": "config",
    "no-such-zone": "forbidden",
    "zone-not-allowed": "forbidden",
}
FIELDS = {
    "zone": "us-central2-b", "region": "us-central2", "project": "p", "accelerator": "v4-8",
    "quota": "TPUV5sLitepodServing", "verb": "update", "state": "PREEMPTED",
}  # fmt: skip


@pytest.mark.parametrize("name", answers.known())
def test_each_error_that_was_seen_is_classified(name):
    """As the answer of a request, and in an operation or a queued resource."""
    error = answers.error(name, limit=4, **FIELDS)
    answered = errors.from_answer(error.http_status, json.dumps(error.body()), "p")
    failed = errors.from_status(error.code, error.message, "p")
    assert (answered.kind, failed.kind) == (KINDS[name], KINDS[name])
    assert answered.message == error.message
    assert errors.lacks_type(error.message) is name.startswith("no-such-type")
    assert ("gcloud compute tpus locations list" in answered.hint) is (KINDS[name] == "forbidden")
    if "quota" in name:
        assert errors.from_status(error.code, answers.status(name, limit=0, **FIELDS).message).kind == "quota"


def test_a_node_that_is_preempted_while_it_is_created_is_requested_again(drive):
    job = drive()
    preempted = answers.status("wrong-state", **FIELDS)
    job.cloud.fail_operation("nodes.create", code=preempted.code, message=preempted.message, count=1)
    assert job.ready().allocation.workers
    assert len(job.requests("nodes.create")) == 2
    job.release()


@pytest.mark.parametrize("mode", ["tpu-vm", "queued-resources"])
def test_addresses_that_are_used_up_concern_one_region(drive, mode):
    job = drive(mode=mode, accelerator="v6e-8", zone=["us-east1-d", "us-east5-b"])
    full = answers.status("no-addresses", **FIELDS)
    method = "nodes.create" if mode == "tpu-vm" else "queuedResources.create"
    job.cloud.fail_operation(method, code=full.code, message=full.message, count=1)
    assert job.ready().allocation.zone == "us-east5-b"
    job.release()


def test_a_zone_that_the_organization_forbids_is_left_out(drive):
    job = drive(accelerator="v6e-8", zone=["us-east1-d", "us-east5-b"])
    job.cloud.forbid("us-east1-d", form="policy")
    assert job.ready().allocation.zone == "us-east5-b"
    assert any("Permission denied on 'locations/us-east1-d'" in message for message in job.messages)
    job.release()


def test_a_type_that_is_listed_and_not_there_concerns_one_zone(drive, cloud):
    """The list of types of asia-east1-a has v6e-1, and its creation is refused."""
    lacking = answers.status("no-such-type", **FIELDS)
    job = drive(accelerator="v6e-8", zone=["us-east1-d", "us-east5-b"])
    cloud.error(400, "nodes.create", count=1, message=lacking.message)
    assert job.ready().allocation.zone == "us-east5-b"
    job.release()


def test_generated_names_are_valid(drive):
    from dataclasses import replace

    from tpux_gcp.labels import check_name, tpu_name

    for name in ("2024-run-000012", f"{'long-' * 20}-000012", "-000012", "train-000012"):
        job = drive(node_count=10)
        labels = {"tpux-job": "000012", "tpux-token": "3fa9"}
        made = tpu_name(replace(job.request, name=f"{name}-3fa9", labels=labels))
        check_name(made, 61)
        assert made.endswith("-000012-3fa9")


def test_a_startup_script_set_twice(drive, tmp_path):
    script = tmp_path / "s.sh"
    script.write_text("true\n")
    failure = drive(startup_script=str(script), metadata={"startup-script": "x"}).denied().failure
    assert "both set" in failure.evidence


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://example.com", "https://googleapis.com.example.com", "https://evilgoogleapis.com", "example.com:443",
        "https://tpu.googleapis.com@example.com", "https://example.com\\@tpu.googleapis.com",
        "https://example.com#.googleapis.com", "https://example.com?.googleapis.com",
    ],
)  # fmt: skip
def test_credentials_are_not_sent_to_other_hosts(monkeypatch, endpoint):
    monkeypatch.delenv("TPUX_GCP_ENDPOINT", raising=False)
    with pytest.raises(UsageError, match=r"invalid endpoint|Google's hosts only"):
        find_place("p", endpoint)


@pytest.mark.parametrize("user", ["ann lee", "ann;reboot", "", "-ann", "a" * 33])
def test_an_invalid_login_user_is_refused_before_any_request(drive, user):
    job = drive(keys=(f"{user}:ssh-ed25519 A",))
    failure = job.denied().failure
    assert failure.kind == "config"
    assert f"invalid user {user!r}" in failure.evidence
    assert "job.remote_user" in failure.hint
    assert job.requests() == []


@pytest.mark.parametrize(
    ("user", "account", "chosen"),
    [
        ("ann", "Ann.Lee@example.com", ""),
        ("ann lee", "Ann.Lee@example.com", "ann_lee"),
        ("root", "7up@example.com", "g7up"),
        ("root", f"{'a' * 40}@example.com", "a" * 32),
        ("root", "", ""),
    ],
)
def test_the_login_user_is_gclouds_where_the_local_one_cannot_be_used(monkeypatch, tmp_path, user, account, chosen):
    configurations = tmp_path / "configurations"
    configurations.mkdir()
    (tmp_path / "active_config").write_text("default")
    (configurations / "config_default").write_text(f"[core]\naccount = {account}\n")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setattr("getpass.getuser", lambda: user)
    assert find_login(Place()) == chosen
    emulated = Place(endpoint="http://127.0.0.1:1")
    assert find_login(emulated) == chosen or ("tpux" if user == "root" else "")


def test_root_may_not_log_in(drive, preflight):
    job = drive(keys=("root:ssh-ed25519 A",))
    failure = job.denied().failure
    assert job.requests() == []
    assert failure.kind == "config"
    assert "root" in failure.evidence
    assert "job.remote_user" in failure.hint


@pytest.mark.parametrize(
    "tpu", [{"accelerator": "v5e-8"}, {"accelerator": None, "flags": ["--accelerator-type=v5e-8"]}]
)
def test_v5e_is_v5litepod(drive, tpu):
    job = drive(zone="us-west4-a", **tpu)
    job.ready()
    assert job.requests("nodes.create")[0].body["acceleratorType"] == "v5litepod-8"
    job.release()


@pytest.mark.parametrize(
    ("key", "value", "warned"),
    [("wandb-api-key", "x", True), ("note", "hf_" + "a" * 34, True), ("HF_TOKEN", "x", True), ("note", "hf", False)],
)
def test_preflight_warns_of_a_secret_in_the_metadata(preflight, key, value, warned):
    findings = preflight(metadata={key: value})
    assert [level for level, _, _ in findings] == ["warning"] * warned
    assert all(f"tpu.metadata.{key}" in message and value not in message.split() for _, message, _ in findings)


def test_preflight_warns_of_internal_addresses(preflight):
    [(level, message, hint)] = preflight(internal_ips=True)
    assert (level, "no external addresses" in message, "unreachable" in hint) == ("warning", True, True)
