"""A job resumes only from output that still exists, and a config whose output a preemption deletes is warned about."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.world import World
from tpux import Section, TpuxError, hookimpl, sh
from tpux.lifecycle import resume_point

TPUX = Path(sys.executable).with_name("tpux")
SPOT = "tpu: {pricing: spot}\n"
TELLS = (
    SPOT + "watch: {verdict_grace: 0}\n"
    "command: {cmd: 'echo $TPUX_STAGE $TPUX_RESUME $TPUX_PREVIOUS_OUTPUT_DIR [$TPUX_RESUME_ARGS];"
    " [ $TPUX_ATTEMPT = 2 ] || sleep 100', stage_args: 'stage ${job.stage}'}"
)


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def preempt(world: World) -> None:
    world.until(lambda: world.state.run.running)
    world.cloud.state, world.cloud.up = "preempted", False


def test_output_on_a_disk_that_is_gone_is_not_resumed_from(world):
    world.cloud.storage = False
    world.create(TELLS)
    preempt(world)
    shutil.rmtree(world.cloud.root / "1")
    assert world.until("succeeded").attempt == 2
    assert world.output(attempt=2) == "0 0 []\n", "it was not resumed, so it is the first stage"


def test_output_that_outlives_the_machines_is_resumed_from(world):
    world.create(TELLS)
    preempt(world)
    world.until("succeeded")
    assert world.output(attempt=2) == f"1 1 {world.path}/cloud/out/attempt-1 [stage 1]\n"


def test_what_a_preemption_without_a_checkpoint_has_cost(world):
    world.create(
        SPOT + "watch: {verdict_grace: 0}\njob: {max_restarts: {program: 1}}\n"
        "command: {checkpoint: ckpt, cmd: 'steps() { for step in $(seq $1); do echo step $step; done; };"
        " case $TPUX_ATTEMPT in 1) steps 7; sleep 100 ;; 2) steps 3; sleep 100 ;; 3) exit 1 ;; *) steps 9 ;; esac'}"
    )
    for attempt, step in ((1, 7), (2, 3)):
        world.until(lambda attempt=attempt, step=step: f"step {step}\n" in world.output(attempt=attempt))
        preempt(world)
        world.until("recovering")
    world.until("succeeded")
    world.request("rerun")
    world.until("running")
    world.until("succeeded")
    events = [event for event, _ in world.controller.record.events()]
    ends = [event for event in events if event.type == "attempt-ended"]
    assert not any(event.resume for event in events if event.type == "attempt-started")
    assert [event.progress.step if event.progress else None for event in ends] == [7, 3, None, 9, 9]
    assert [event.repeated_steps for event in ends] == [0, 7, 0, 3, 0], "the last follows no failure"


def test_output_that_one_worker_has_lost_is_not_resumed_from(world, monkeypatch):
    world.create("job: {output_dir: out, max_restarts: {program: 1}}\ncommand: {cmd: 'echo $TPUX_RESUME; exit 1'}")
    world.until("recovering")
    # The workers here share a disk, on which the directory has one path: worker 1 is made to find nothing.
    monkeypatch.setattr(
        resume_point, "_FIND_OUTPUTS", f"case $PWD in */1/1) exit ;; esac\n{resume_point._FIND_OUTPUTS}"
    )
    world.until("failed")
    assert [world.output(worker, attempt=2) for worker in (0, 1)] == ["0\n", "0\n"]


def test_a_rerun_leaves_nothing_of_earlier_attempts(world):
    world.create(
        "job: {rule: resume, max_restarts: {program: 1}}\n"
        "command:\n"
        "  checkpoint: ckpt\n"
        "  cmd: '[ $TPUX_ATTEMPT -ge 3 ] || touch $TPUX_OUTPUT_DIR/ckpt; [ $TPUX_ATTEMPT != 4 ] || exit 0;"
        " echo $TPUX_STAGE $TPUX_RESUME [$TPUX_PREVIOUS_OUTPUT_DIR] [$TPUX_RESUME_ARGS]; exit 1'\n"
        "  resume_args: --load=${job.previous_output_dir}\n"
        "  stage_args: --stage=${job.stage}\n"
    )
    world.until("failed")
    first = f"{world.path}/cloud/out/attempt-1"
    assert world.output(attempt=2) == f"1 1 [{first}] [--load={first} --stage=1]\n"
    world.request("rerun")
    world.until("recovering")
    assert world.output(attempt=3) == "0 0 [] []\n"
    world.until("succeeded")
    started = [event for event, _ in world.controller.record.events() if event.type == "attempt-started"]
    assert [event.resume for event in started] == [False, True, False, False], "attempt 3 saved no checkpoint"


def test_a_rerun_leaves_nothing_of_earlier_attempts_though_its_machines_are_lost_before_it_starts(world):
    class Preempting:
        @hookimpl
        def setup(self):
            if world.cloud.generation == 2:
                world.cloud.state, world.cloud.up = "preempted", False
            yield sh("exit 1" if world.cloud.generation == 2 else "true")

    world.plugins.add("preempting", Preempting())
    world.create(
        SPOT + "setup: {modules: [preempting], tries: 1}\n"
        "command: {checkpoint: ckpt, cmd: 'touch $TPUX_OUTPUT_DIR/ckpt; echo $TPUX_STAGE $TPUX_RESUME'}"
    )
    world.until("succeeded")
    world.until(lambda: world.state.allocation is None)
    world.request("rerun")
    world.until(lambda: world.state.attempt == 2)
    world.until("succeeded")
    assert world.output(attempt=2) == "0 0\n"
    events = [event for event, _ in world.controller.record.events() if event.type == "state-changed"]
    [restart] = [event for event in events if event.to == "recovering"]
    assert (restart.kind, restart.restart) == ("preempted", "rerun")
    assert restart.why.startswith("rerunning (attempt 2) on new machines")


def test_a_job_that_never_ran_has_nothing_to_resume_from(world):
    class Flaky:
        @hookimpl
        def setup(self):
            yield sh("exit 1" if world.cloud.generation == 1 else "true")

    world.plugins.add("flaky", Flaky())
    world.create(
        SPOT + "job: {max_restarts: {setup: 1}}\nsetup: {modules: [flaky], tries: 1}\n"
        "command: {cmd: 'echo $TPUX_RESUME'}"
    )
    world.until("recovering")
    world.cloud.generation = 2
    world.until("succeeded")
    assert world.output() == "0\n"


def test_a_directory_that_cannot_be_examined_is_not_one_that_is_gone(world):
    world.create("job: {max_restarts: {program: 1}}\ncommand: {cmd: 'echo $TPUX_RESUME; exit 1'}")
    world.until("recovering")
    output = world.cloud.root / "out" / "attempt-1"
    output.rename(output.with_name("aside"))
    output.symlink_to(output)  # as with a mount that has failed, stat does not say that it does not exist
    with pytest.raises(TpuxError, match="cannot search for earlier output"):
        world.until("failed")
    assert world.state.attempt == 1
    output.unlink()
    output.with_name("aside").rename(output)
    world.until("failed")
    assert world.output(attempt=2) == "1\n"


# --- the warning --------------------------------------------------------------------------------


class BucketSection(Section):
    """A mounted bucket."""

    mount_path: str = "/mnt/bucket"

    def durable_paths(self) -> list[str]:
        return [self.mount_path]


class Bucket:
    @hookimpl
    def config_section(self):
        return BucketSection

    @hookimpl
    def check(self):
        yield sh("true")


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        (SPOT, True),
        ("tpu: {pricing: preemptible}\njob: {output_dir: /scratch}\n", True),
        (SPOT + "job: {output_dir: /mnt/bucket/runs}\nsetup: {modules: [bucket]}\nbucket: {}\n", False),
        (SPOT + "job: {output_dir: /mnt/bucket}\nsetup: {modules: [bucket]}\nbucket: {}\n", False),
        (SPOT + "job: {output_dir: /mnt/bucket/../x}\nsetup: {modules: [bucket]}\nbucket: {}\n", True),
        (SPOT + "job: {output_dir: /mnt/buckets}\nsetup: {modules: [bucket]}\nbucket: {}\n", True),
        (SPOT + "job: {output_dir: /mnt/bucket/runs}\nbucket: {}\n", True),  # nothing selects it
        (SPOT + "job: {rule: pass}\n", False),
        ("tpu: {pricing: ondemand}\n", False),
    ],
)
def test_spot_machines_without_a_durable_output_directory(world, capsys, config, warned):
    world.plugins.add("bucket", Bucket())
    world.create(config + "command: {cmd: 'true'}")
    assert ("after a preemption the job starts from scratch" in capsys.readouterr().out) is warned


def test_a_section_that_fails_to_declare_its_paths_is_named(world):
    class Broken(Bucket):
        @hookimpl
        def config_section(self):
            class BrokenSection(BucketSection):
                def durable_paths(self):
                    return "/mnt"

            return BrokenSection

    world.plugins.add("broken", Broken())
    with pytest.raises(
        TpuxError, match=r"plugin broken gave a wrong answer from durable_paths.* expected a list of str, got '/mnt'"
    ):
        world.create(SPOT + "setup: {modules: [broken]}\nbroken: {}\ncommand: {cmd: 'true'}")


@pytest.mark.parametrize(
    ("tpu", "warned"),
    [("local", False), ("hosts", False), ("local}\njob: {output_dir: ~/out", True)],
)
def test_preflight_warns_too_except_where_files_are_kept(tmp_path, monkeypatch, tpu, warned):
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "home"))
    config = tmp_path / "train.yaml"
    config.write_text(f"tpu: {{pricing: spot, allocation_mode: {tpu}}}\nhosts: [127.0.0.1]\ncommand: {{cmd: 'true'}}\n")
    checked = subprocess.run([TPUX, "preflight", config], capture_output=True, text=True, timeout=100, check=False)
    assert ("starts from scratch" in checked.stdout + checked.stderr) is warned, checked.stderr
