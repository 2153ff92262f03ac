"""Output directories in a bucket: the supervisor looks for checkpoints there, and an error is not an answer."""

from __future__ import annotations

import pytest
from tests.tiers import representative

from tpux import Checkpoint, Finding, TpuxError, hookimpl, sh
from tpux.lifecycle.create import create_job

PLUGIN = """
    from tpux import hookimpl, sh
    from tpux_gcp.credentials import storage_options as options_of
    from tpux_gcp.credentials import Place

    @hookimpl
    def check():
        yield sh("true")

    @hookimpl
    def storage_options(scheme):
        return options_of(Place(storage_endpoint="ENDPOINT")) if scheme == "gs" else None
"""
SAVES = """
job: {rule: resume, max_restarts: {program: 5}, output_dir: 'gs://runs/a'}
setup: {modules: [bucket]}
command:
  cmd: |
    echo $TPUX_RESUME ${TPUX_PREVIOUS_OUTPUT_DIR##*/}
    there=ROOT/${TPUX_OUTPUT_DIR#gs://}
    if [ $TPUX_ATTEMPT = 2 ]; then mkdir -p $there/ckpt-7/state; touch $there/ckpt-7/state/a; fi
    [ $TPUX_ATTEMPT = 4 ] || exit 3
  checkpoint: 'PATTERN'
"""


def config(bucket, pattern="ckpt-*"):
    return SAVES.replace("ROOT", str(bucket.root)).replace("PATTERN", pattern)


def test_a_resume_from_the_last_checkpoint_in_a_bucket(tpux, bucket):
    tpux.plugin("tpux-bucket", PLUGIN.replace("ENDPOINT", bucket.endpoint), entries="bucket = tpux_bucket")
    tpux.env["TPUX_CLOCK_RATE"] = "10"
    tpux("run", tpux.config(config(bucket)))
    expected = ["0", "0", "1 attempt-2", "1 attempt-2"]
    assert [tpux.output("000001", attempt=n).decode().strip() for n in (1, 2, 3, 4)] == expected
    assert not list(tpux.home.rglob("gs:*")), "no directory has the name of a URL"


def resumes(world):
    events = [event for event, _ in world.controller.record.events() if event.type == "attempt-started"]
    return [event.previous_output_dir.rpartition("/")[2] for event in events]


@pytest.mark.parametrize("pattern", ["ckpt-*", "ckpt-[0-9]/state/a", "ckpt-7/state", "*/state/?", None])
def test_patterns_of_checkpoints(world, bucket, pattern):
    text = config(bucket, pattern or "")
    world.create(text if pattern else text.replace("  checkpoint: ''\n", ""))
    world.until("succeeded")
    assert resumes(world) == ["", "", "attempt-2", "attempt-2"]


def test_a_pattern_without_a_match(world, bucket):
    world.create(config(bucket, "other-*/a"))
    world.until("succeeded")
    assert resumes(world) == ["", "", "", ""]


@pytest.mark.parametrize(
    ("mode", "kind"), representative([("forbidden", "auth"), ("silent", "infra"), ("broken", "infra")])
)
def test_a_bucket_that_does_not_answer(world, bucket, monkeypatch, mode, kind):
    """The job waits, never starts from scratch for that, and fails after an hour."""
    monkeypatch.setattr("tpux.lifecycle.checkpoint.SEARCH_TIMEOUT", 0.5 if kind == "infra" else 30.0)
    world.create(config(bucket))
    bucket.mode = mode
    world.until(lambda: "cannot look for checkpoints in gs://runs/a/job-000001-" in world.state.why)
    assert world.state.state == "setting-up"
    world.restart_supervisor()
    world.until("failed")
    failure = world.state.failure
    assert (failure.kind, world.state.attempt) == (kind, 1)
    assert ("as the test wants" if kind == "auth" else "no answer within") in failure.evidence
    world.until(lambda: not world.cloud.up)


def test_a_bucket_that_does_not_exist_is_no_bucket_without_a_checkpoint(world, bucket):
    world.create(config(bucket))
    bucket.root.joinpath("runs").rename(bucket.root / "renamed")
    world.until(lambda: "there is no bucket runs" in world.state.why)
    bucket.root.joinpath("renamed").rename(bucket.root / "runs")
    world.until("succeeded")
    assert resumes(world)[1] == "", "an empty directory of a bucket has no checkpoint"


def test_a_bucket_whose_root_may_not_be_listed_exists(world, bucket):
    """The account's role may be restricted to a directory of the bucket."""
    world.create(config(bucket, "other-*"))
    bucket.mode = "root forbidden"
    world.until("succeeded")
    assert resumes(world) == ["", "", "", ""]


def test_an_empty_bucket_has_no_checkpoint(world, bucket):
    bucket.root.joinpath("runs/readme").unlink()
    world.create(config(bucket, "other-*").replace("mkdir", ": mkdir").replace("touch", ": touch"))
    world.until("succeeded")
    assert resumes(world) == ["", "", "", ""]


def test_a_bucket_that_answers_again(world, bucket, monkeypatch):
    monkeypatch.setattr("tpux.lifecycle.checkpoint.REPORT_AFTER", 0.0)
    world.create(config(bucket))
    bucket.mode = "silent"
    world.until(lambda: "looking for checkpoints in gs://runs/a/job-000001-" in world.state.why)
    bucket.mode = "forbidden"
    world.until(lambda: "cannot look for checkpoints" in world.state.why)
    bucket.mode = "ok"
    world.until("succeeded")
    assert resumes(world) == ["", "", "attempt-2", "attempt-2"]


@pytest.mark.parametrize(
    ("url", "message"),
    representative(
        [
            ("file:///data", "file:// would be a directory of this machine"),
            ("nothing://bucket/a", "unknown scheme nothing://"),
            ("gs:/bucket/a", "would be a directory of that name on the workers"),
            ("gs://", "names no bucket"),
            ("gs:///a", "names no bucket"),
            ("https://bucket/a", "nothing can be stored at https://"),
            ("gs://bucket/a", "the library for gs:// is not installed"),
        ],
        4,
    ),
)
def test_a_url_that_cannot_be_used_is_an_error_at_create(tpux, url, message):
    site = tpux.work / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.modules['gcsfs'] = None\n")
    tpux.env["PYTHONPATH"] = str(site)
    done = tpux("create", tpux.config(f"job: {{output_dir: '{url}'}}\ncommand: {{cmd: 'true'}}\n"), code=2)
    assert message in done.stderr
    if "library" in message:
        assert "gcsfs" in done.stderr.partition("hint:")[2]
    assert tpux.json("list") == []


def test_a_url_that_no_installed_plugin_can_search_is_refused(tpux):
    tpux.env["TPUX_DISABLED_PLUGINS"] = "storage"
    done = tpux("create", tpux.config("job: {output_dir: 'gs://runs/a'}\ncommand: {cmd: 'true'}\n"), code=2)
    assert "no installed plugin looks for checkpoints in gs://" in done.stderr
    assert "pip install tpux-plugin-storage" in done.stderr


def test_a_job_waits_whose_plugin_for_checkpoints_is_gone(world, bucket):
    world.create(config(bucket))
    world.until(lambda: world.state.attempt == 1)
    found = world.controller.plugins._found
    storage = found.pop("storage")
    world.until(lambda: "no installed plugin can open it" in world.state.why)
    assert (world.state.state, world.state.attempt) == ("setting-up", 1)
    found["storage"] = storage
    world.until("succeeded")
    assert resumes(world) == ["", "", "attempt-2", "attempt-2"]


class Searches:
    """Serves zz:// with an answer that the test chooses; its word sorts after `storage`."""

    def __init__(self, answer):
        self.answer = answer

    @hookimpl
    def preflight(self, job):
        return [] if job.job.output_dir.startswith("zz://") else [Finding("error", "only zz://")]

    @hookimpl
    def find_checkpoint(self, directories):
        return self.answer(directories)


def zz_config():
    return (
        "job: {output_dir: 'zz://runs/a', rule: pre, max_restarts: {program: 1}}\n"
        "command: {cmd: exit 1, checkpoint: '*.pt', grace_period: 0}\n"
    )


def test_a_plugin_after_storage_is_asked_for_its_own_scheme(world):
    world.plugins.add("zzstore", Searches(lambda directories: Checkpoint(directories[0])))
    world.create(zz_config())
    world.until("failed")
    assert resumes(world) == ["", "attempt-1"]


def test_a_directory_that_is_none_of_those_is_a_wrong_answer_of_the_plugin(world):
    world.plugins.add("zzstore", Searches(lambda directories: Checkpoint(f"{directories[0]}/ckpt-3")))
    world.create(zz_config())
    world.until(lambda: "gave a wrong answer from find_checkpoint" in world.state.why)
    assert "zzstore" in world.state.why


@pytest.mark.parametrize("judges", [True, False])
def test_a_url_that_nobody_serves_is_refused_beside_other_searches(world, judges):
    plugin = Searches(lambda _: None)
    if not judges:
        plugin = type("Silent", (), {"find_checkpoint": Searches.find_checkpoint, "answer": lambda self, _: None})()
    world.plugins.add("zzstore", plugin)
    with pytest.raises(TpuxError, match=r"foo://|only zz://"):
        world.create("job: {output_dir: 'foo://runs/a'}\ncommand: {cmd: 'true'}\n")


def test_a_selected_plugin_that_searches_is_checked_once(world):
    class Bucket(Searches):
        asked = 0

        @hookimpl
        def check(self):
            yield sh("true")

        @hookimpl
        def preflight(self, job):
            self.asked += 1
            return [Finding("warning", "zz is slow")]

    warnings, plugin = [], Bucket(lambda _: Checkpoint(""))
    world.plugins.add("zzstore", plugin)
    config = world.path / "job.yaml"
    config.write_text("setup: {modules: [zzstore]}\n" + zz_config())
    create_job(world.store, config, ["tpu.allocation_mode=cloud"], warn=warnings.append, plugins=world.plugins)
    assert plugin.asked == 1
    assert [text for text in warnings if "zz" in text] == ["warning: zz is slow"]
