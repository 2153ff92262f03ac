"""The config section, and what other plugins are told about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

import tpux_gcsfuse
from tpux import Command, Worker, hookimpl
from tpux_gcsfuse.section import GcsfuseSection
from tpux_testing import attempt, job, steps_of


def section(**keys: object) -> GcsfuseSection:
    return GcsfuseSection.model_validate({"bucket_name": "data", "mount_path": "~/gcs", **keys})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"bucket_name": "gs://data/run 1"}, "write bucket_name: data, options: [--only-dir=run 1]"),
        ({"bucket_name": "My_Bucket"}, "'My_Bucket' is not the name of a bucket"),
        ({"mount_path": "~"}, "cannot be a mount"),
        ({"mount_path": "/"}, "cannot be a mount"),
        ({"mount_path": "a/../.."}, "cannot be a mount"),
        ({"mount_path": "~ann/gcs"}, "another user's directory"),
        ({"mount_path": "a\nb"}, "match pattern"),
        ({"options": ["-o 'ro"]}, "No closing quotation"),
        ({"cache": {"dir": "c", "file_cache_max_size_mb": -2}}, "greater than or equal to -1"),
        ({"extra_mounts": [{"bucket_name": "other", "mount_path": "gcs"}]}, "two buckets have the mount_path gcs"),
        ({"extra_mounts": [{"bucket_name": "other"}]}, "mount_path"),
    ],
)
def test_mistakes(keys, message):
    with pytest.raises(ValidationError) as caught:
        section(**keys)
    assert message in str(caught.value)


def test_a_file_cache_without_a_directory_is_a_warning_and_null_means_not_set():
    cached = {"bucket_name": "other", "mount_path": "other", "cache": {"file_cache_max_size_mb": 5}, "options": None}
    (key,) = section(extra_mounts=[cached], cache={"file_cache_max_size_mb": 0}).warnings()
    assert key == "extra_mounts.0.cache.file_cache_max_size_mb"


def test_the_script_before_a_mount_runs_before_it_and_has_no_secret():
    extra = {"mount_path": "other", "cache": {"dir": "/mnt/ram", "prefix": "sudo mount -t tmpfs tmpfs /mnt/ram\n"}}
    one = job({"gcsfuse": {"bucket_name": "data", "mount_path": "gcs", "extra_mounts": [extra]}})
    steps = [step.script for step in steps_of(tpux_gcsfuse.setup(job=one, config=one.sections["gcsfuse"])).steps]
    (prepared,) = [index for index, script in enumerate(steps) if "sudo mount -t tmpfs tmpfs /mnt/ram" in script]
    mounted = [index for index, script in enumerate(steps) if script.startswith("# mount the bucket data")]
    assert mounted == [prepared - 1, prepared + 1]
    assert {"cache.prefix", "extra_mounts.cache.prefix"} <= section().exposed_keys().keys()


def test_an_extra_mount_without_a_bucket_is_of_the_same_bucket():
    mounts = section(extra_mounts=[{"mount_path": "cached", "bucket_name": None}]).mounts
    assert [mount.bucket_name for mount in mounts] == ["data", "data"]


def test_a_directory_below_a_mount_is_durable():
    extra = {"bucket_name": "models", "mount_path": "/mnt/models/"}
    assert section(extra_mounts=[extra]).durable_paths() == ["~/gcs", "gcs", "/mnt/models"]


def test_the_buckets_are_checked_by_the_allocator():
    extra = {"bucket_name": "models", "mount_path": "m", "allow_cross_region": True}
    first, second = section(extra_mounts=[extra]).buckets()
    assert (first.name, first.where, first.any_region) == ("data", "gcsfuse.bucket_name", False)
    assert (second.name, second.where, second.any_region) == ("models", "gcsfuse.extra_mounts.0.bucket_name", True)


class Docker:
    @hookimpl
    def run(self, command: Command) -> Command:
        return command


@pytest.mark.parametrize("environment", [None, "docker"])
def test_root_in_a_container_sees_the_mount(environment):
    config = {"gcsfuse": {"bucket_name": "data", "mount_path": "gcs"}, "job": {"env_type": environment}}
    one = job(config, plugins={"docker": Docker()})
    taken = steps_of(tpux_gcsfuse.setup(job=one, config=one.sections["gcsfuse"]))
    text, is_shared = "\n".join(step.script for step in taken.steps), environment == "docker"
    assert ("-o allow_other" in text, "# allow mounts for other users" in text) == (is_shared, is_shared)


def test_a_module_without_its_section(tmp_path):
    (finding,) = tpux_gcsfuse.preflight(job=job({}))
    assert (finding.level, "needs the section gcsfuse" in finding.message) == ("error", True)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cat: /home/me/gcs/a: Transport endpoint is not connected", True),
        ("OSError: [Errno 103] Software caused connection abort: '/home/me/gcs/data/shard-00001'", True),
        ("OSError: [Errno 103] Software caused connection abort", False),  # of a socket, perhaps
        ("cat: /home/me/other/a: Transport endpoint is not connected", False),
    ],
)
def test_a_program_that_failed_because_its_mount_died_has_a_failure_of_the_machine(line, found):
    config = {"setup": {"modules": ["gcsfuse"]}, "gcsfuse": {"bucket_name": "data", "mount_path": "~/gcs"}}
    made = job(config)
    failures = tpux_gcsfuse.classify_failure(made, made.sections["gcsfuse"], attempt({0: "ok", 1: f"{line}\n"}, {0: 0}))
    assert [(one.kind, one.worker, one.evidence) for one in failures] == ([("infra", 1, line)] if found else [])


RELATIVE = "OSError: [Errno 107] Transport endpoint is not connected: 'ck/1'"


@pytest.mark.parametrize(
    ("line", "dead", "kind"),
    [
        (RELATIVE, "the bucket data at /home/me/gcs: no answer", "infra"),
        ("OSError: [Errno 5] Input/output error: '/link/a'", "the bucket data at /home/me/gcs: no answer", "infra"),
        ("OSError: [Errno 107] '/container/a'", "the bucket data at /home/me/gcs: no answer", "infra"),
        (RELATIVE, "", None),
        (RELATIVE, None, None),
        ("KeyError: 'x'", "the bucket data at /home/me/gcs: no answer", None),
    ],
)
def test_what_is_found_on_the_worker_decides_where_the_text_does_not_name_the_mount(line, dead, kind):
    made = job("gcsfuse: {bucket_name: data, mount_path: /home/me/gcs}\nsetup: {modules: [gcsfuse]}\ncommand: {cmd: x}")
    section, ended = made.sections["gcsfuse"], attempt({0: f"Traceback (most recent call last):\n{line}\n"})
    steps = tpux_gcsfuse.collect(made, section, ended, Worker(0))
    assert (steps is None) == (kind is None and "Errno" not in line)
    if dead is not None:
        ended = replace(ended, collected={0: {"gcsfuse": {"mounts that do not answer": dead}}})
    found = tpux_gcsfuse.classify_failure(made, section, ended)
    assert [(one.kind, one.worker, one.evidence) for one in found] == ([(kind, 0, line)] if kind else [])


def test_the_worker_is_asked_by_the_step_of_diagnose():
    made = job("gcsfuse: {bucket_name: data, mount_path: /home/me/gcs}\nsetup: {modules: [gcsfuse]}\ncommand: {cmd: x}")
    steps = tpux_gcsfuse.collect(made, made.sections["gcsfuse"], attempt(RELATIVE), Worker(0))
    value = steps_of(steps, answers={"examine": "/home/me/gcs\tTransport endpoint is not connected"}).value
    assert "/home/me/gcs: Transport endpoint is not connected" in value["mounts that do not answer"]


def test_a_job_without_the_section_gets_the_hint_to_look():
    made = job("command: {cmd: x}")
    [found] = tpux_gcsfuse.classify_failure(made, None, attempt(f"Traceback (most recent call last):\n{RELATIVE}\n"))
    assert (found.kind, found.evidence) == ("program", RELATIVE)
    assert f"tpux diagnose {int(made.id)}" in found.hint
    assert tpux_gcsfuse.classify_failure(made, None, attempt("Input/output error\nstep 3")) == []
