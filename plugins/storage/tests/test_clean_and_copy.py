"""`tpux storage clean` and `tpux cp --from-job`, with a server of Cloud Storage's API on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from gcsfs.core import GCSFileSystem

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
CONFIG = """
job: {rule: resume, max_restarts: {program: 1}, output_dir: 'gs://runs/a'}
setup: {modules: [bucket]}
command:
  cmd: '[ $TPUX_ATTEMPT = 2 ] || exit 3; until [ -e FILE ]; do sleep 0.1; done'
  checkpoint: 'ckpt-*'
"""


class Cloud:
    """Buckets, and what a test has put there."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        options = {"token": "anon", "endpoint_url": endpoint, "skip_instance_cache": True, "project": "p"}
        self.files = GCSFileSystem(use_listings_cache=False, **options)

    def save(self, directory: str, name: str, *, complete: bool = True, size: int = 10) -> None:
        self.files.pipe_file(f"{directory}/{name}/state/a", name.encode() * size)
        self.files.pipe_file(f"{directory}/{name}/state/b", b"b" * size)
        if complete:
            self.files.pipe_file(f"{directory}/{name}/commit_success.txt", b"ok")

    def names(self, directory: str) -> list[str]:
        self.files.invalidate_cache()
        return sorted({path.removeprefix(f"{directory}/").split("/")[0] for path in self.files.find(directory)})


@pytest.fixture
def cloud(tpux) -> Iterator[Cloud]:
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="runs")
    with server:
        endpoint = f"http://127.0.0.1:{server._api._httpd.server_port}"
        tpux.plugin("tpux-bucket", PLUGIN.replace("ENDPOINT", endpoint), entries="bucket = tpux_bucket")
        tpux.env["TPUX_CLOCK_RATE"] = "10"
        made = Cloud(endpoint)
        made.files.call("POST", "b", json={"name": "other"})
        yield made


@pytest.fixture
def job(tpux, cloud, tmp_path) -> tuple[str, list[str]]:
    """Return a job that has failed once and runs again, and the directories of its attempts."""
    job = tpux.create(CONFIG.replace("FILE", str(tmp_path / "go")))
    tpux.until(lambda: tpux.json("show", job)["attempt"] == 2 and tpux.json("show", job)["state"] == "running")
    return job, directories(tpux, job)


def directories(tpux, job):
    lines = next(tpux.home.glob(f"jobs/*/{job}/events.jsonl")).read_text().splitlines()
    started = [event for event in map(json.loads, lines) if event["type"] == "attempt-started"]
    return [event["output_dir"].removeprefix("gs://") for event in started]


def end(tpux, job, tmp_path):
    (tmp_path / "go").touch()
    tpux("wait", job)


@pytest.mark.system
def test_old_checkpoints_are_shown_and_deleted_and_the_newest_complete_one_is_not(tpux, cloud, job, tmp_path):
    number, (first, second) = job
    end(tpux, number, tmp_path)
    cloud.save(first, "ckpt-100")
    for step in (9, 10, 200, 300):
        cloud.save(second, f"ckpt-{step}", complete=step != 300)
    shown = tpux("storage", "clean", number, "--keep", "2")
    assert "would delete 2 checkpoints, " in shown.stderr
    states = {line.split()[1]: " ".join(line.split()[4:]) for line in shown.stdout.splitlines()[1:6]}
    assert states == {f"ckpt-{step}": "old" for step in (100, 9)} | {
        "ckpt-10": "kept",
        "ckpt-200": "kept",
        "ckpt-300": "kept: not complete",
    }
    assert cloud.names(second) == ["ckpt-10", "ckpt-200", "ckpt-300", "ckpt-9"], "it has only shown them"
    assert "pass -y" in tpux("storage", "clean", number, "--keep", "2", "--delete", code=2).stderr
    done = tpux("storage", "clean", number, "--keep", "2", "--delete", "-y").stderr
    assert "soft delete period" in done
    assert (cloud.names(first), cloud.names(second)) == ([], ["ckpt-10", "ckpt-200", "ckpt-300"])
    tpux("storage", "clean", number, "--keep", "1", "--delete", "-y")
    assert cloud.names(second) == ["ckpt-200", "ckpt-300"], "the newest is not complete, so it does not count"
    tpux("storage", "clean", number, "--keep", "1", "--delete", "-y")
    assert cloud.names(second) == ["ckpt-200", "ckpt-300"]


@pytest.mark.system
def test_what_a_live_attempt_resumes_from_is_not_deleted(tpux, cloud, tmp_path):
    job = tpux.create(CONFIG.replace("FILE", str(tmp_path / "go")).replace("exit 3", "{ sleep 8; exit 3; }"))
    tpux.until_state(job, "running")
    [directory] = directories(tpux, job)
    cloud.save(directory, "ckpt-1")
    cloud.save(directory, "ckpt-2")
    tpux.until(lambda: tpux.json("show", job)["attempt"] == 2 and tpux.json("show", job)["state"] == "running")
    second = directories(tpux, job)[1]
    cloud.save(second, "ckpt-3")
    shown = tpux("storage", "clean", job, "--keep", "1", "--delete", "-y").stdout
    assert shown.count("kept: an attempt resumes from here") == 2
    assert cloud.names(directory) == ["ckpt-1", "ckpt-2"]
    end(tpux, job, tmp_path)
    tpux("storage", "clean", job, "--keep", "1", "--delete", "-y")
    assert (cloud.names(directory), cloud.names(second)) == ([], ["ckpt-3"])


def test_nothing_is_deleted_where_it_is_unknown_what_is_complete(tpux, cloud, job, tmp_path):
    number, (_, second) = job
    end(tpux, number, tmp_path)
    for step in (1, 2):
        cloud.save(second, f"ckpt-{step}", complete=False)
    refused = tpux("storage", "clean", number, "--keep", "1", "--delete", "-y", code=1).stderr
    assert "it is unknown which checkpoints are complete" in refused
    assert "--marker NAME" in refused
    assert cloud.names(second) == ["ckpt-1", "ckpt-2"]
    cloud.files.pipe_file(f"{second}/ckpt-1/done", b"")
    cloud.files.pipe_file(f"{second}/ckpt-2/done", b"")
    tpux("storage", "clean", number, "--keep", "1", "--delete", "-y", "--marker", "done")
    assert cloud.names(second) == ["ckpt-2"]


@pytest.mark.system
def test_a_copy_continues_and_is_compared(tpux, cloud, job, tmp_path):
    number, (_, second) = job
    end(tpux, number, tmp_path)
    cloud.save(second, "ckpt-1")
    cloud.save(second, "ckpt-2")
    cloud.save(second, "ckpt-3", complete=False)
    words = ("cp", "--from-job", number, "--checkpoint", "latest", "gs://other/runs")
    asked = tpux(*words, code=2).stderr
    assert f"gs://{second}/ckpt-2 (3 objects, 72 bytes, 72 B) to gs://other/runs/ckpt-2; " in asked
    assert "traffic" in asked
    assert cloud.names("other") == []
    assert "3 copied, 0 were there" in tpux(*words, "-y").stderr
    cloud.files.pipe_file("other/runs/ckpt-2/state/a", b"x" * 60)  # the same size
    cloud.files.rm_file("other/runs/ckpt-2/commit_success.txt")
    assert "2 copied, 1 were there" in tpux(*words, "-y").stderr
    cloud.files.invalidate_cache()
    assert cloud.files.cat_file("other/runs/ckpt-2/state/a") == b"ckpt-2" * 10
    assert "has no complete checkpoint ckpt-3" in tpux(*words[:4], "ckpt-3", words[-1], code=2).stderr
    assert "--from-job takes one URL" in tpux(*words, "x", code=2).stderr


@pytest.mark.system
def test_a_save_of_orbax_that_was_cut_off_in_a_bucket_is_not_complete(tpux, cloud, job, tmp_path):
    """Orbax writes _CHECKPOINT_METADATA into the final directory of a bucket when a save begins."""
    number, (_, second) = job
    end(tpux, number, tmp_path)
    for step in (100, 200, 300):
        cloud.files.pipe_file(f"{second}/ckpt-{step}/_CHECKPOINT_METADATA", b"{}")
        cloud.save(second, f"ckpt-{step}", complete=False)
    words = ("storage", "clean", number, "--keep", "1", "--delete", "-y")
    refused = tpux(*words, code=1).stderr
    assert "it is unknown which checkpoints are complete" in refused
    assert "_CHECKPOINT_METADATA" in refused
    for step in (100, 200):
        cloud.files.pipe_file(f"{second}/ckpt-{step}/commit_success.txt", b"ok")
    cloud.files.pipe_file(f"{second}/ckpt-300/.metadata", b"of something else")
    assert "has no complete checkpoint ckpt-300" in tpux(
        "cp", "--from-job", number, "--checkpoint", "ckpt-300", "gs://other/runs", "-y", code=2
    ).stderr  # fmt: skip
    tpux(*words)
    assert cloud.names(second) == ["ckpt-200", "ckpt-300"]


@pytest.mark.system
def test_the_newest_is_what_was_written_last_and_not_what_has_the_greatest_name(tpux, cloud, tmp_path):
    config = CONFIG.replace("FILE", str(tmp_path / "go")).replace("'ckpt-*'", "'*.ckpt'")
    number = tpux.create(config)
    tpux.until(lambda: tpux.json("show", number)["attempt"] == 2 and tpux.json("show", number)["state"] == "running")
    second = directories(tpux, number)[1]
    end(tpux, number, tmp_path)
    names = [f"loss=0.{loss}-step={step}.ckpt" for loss, step in ((90, 100), (50, 200), (30, 300))]
    for name in names:
        cloud.files.pipe_file(f"{second}/{name}", b"x")
    tpux("storage", "clean", number, "--keep", "1", "--delete", "-y")
    assert cloud.names(second) == names[2:]
    cloud.files.pipe_file(f"{second}/{names[0]}", b"x")  # written again: is it the newest?
    refused = tpux("storage", "clean", number, "--keep", "1", "--delete", "-y", code=1).stderr
    assert "it is unknown which checkpoint is the newest" in refused
    copy = ("cp", "--from-job", number, "gs://other/runs", "-y", "--checkpoint")
    assert "it is unknown which checkpoint is the newest" in tpux(*copy, "latest", code=1).stderr
    tpux(*copy, names[2])
    assert cloud.names("other/runs") == names[2:]
    assert cloud.names(second) == sorted([names[0], names[2]])


def test_a_path_with_a_space_is_one_path(tpux, cloud, tmp_path):
    config = CONFIG.replace("FILE", str(tmp_path / "go")).replace("gs://runs/a", "gs://runs/a b")
    number = tpux.create(config)
    tpux.until(lambda: tpux.json("show", number)["attempt"] == 2 and tpux.json("show", number)["state"] == "running")
    second = directories(tpux, number)[1]
    end(tpux, number, tmp_path)
    cloud.files.pipe_file("runs/a", b"of somebody else")
    for name in ("ckpt-1", "ckpt-1 old", "ckpt-2"):
        cloud.save(second, name)
    shown = tpux.json("storage", "clean", number, "--keep", "1")
    assert [one["path"] for one in shown] == [f"{second}/{name}" for name in ("ckpt-1", "ckpt-1 old", "ckpt-2")]
    tpux("storage", "clean", number, "--keep", "1", "--delete", "-y")
    assert cloud.names(second) == ["ckpt-2"]
    assert cloud.files.cat_file("runs/a") == b"of somebody else"


@pytest.mark.system
def test_a_copy_does_not_replace_another_checkpoint_of_the_same_name(tpux, cloud, job, tmp_path):
    number, (_, second) = job
    end(tpux, number, tmp_path)
    cloud.save(second, "ckpt-2")
    words = ("cp", "--from-job", number, "--checkpoint", "latest", "gs://other/runs", "-y")
    cloud.save("other/runs", "ckpt-2", size=20)
    assert "other/runs/ckpt-2 is another checkpoint" in tpux(*words, code=2).stderr
    cloud.files.rm_file("other/runs/ckpt-2/commit_success.txt")
    cloud.files.pipe_file("other/runs/ckpt-2/state/c", b"c")
    assert "has objects that the checkpoint has not, such as other/runs/ckpt-2/state/c" in tpux(*words, code=2).stderr
    cloud.files.invalidate_cache()
    assert cloud.files.cat_file("other/runs/ckpt-2/state/b") == b"b" * 20
    cloud.files.rm_file("other/runs/ckpt-2/state/c")
    assert "3 copied, 0 were there" in tpux(*words).stderr, "without its marker it is a copy that was cut off"
