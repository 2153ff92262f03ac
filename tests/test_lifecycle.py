"""The lifecycle of a job on machines that cost money: what is kept, released and retried."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.world import World
from tpux import Action, Failure, Finished, HostUnreachableError, TpuxError, Waiting, hookimpl, sh
from tpux.lifecycle import open as opening
from tpux.lifecycle.machines import provision_request
from tpux.lifecycle.programs import command_process
from tpux.remote.process import worker_key
from tpux.supervisor.errors import handle_error
from tpux_testing import run_job

HOUR = 3600.0


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize(("pricing", "keep"), [("spot", HOUR), ("ondemand", 600)])
def test_a_failed_job_keeps_its_machines_for_a_while(world, pricing, keep):
    world.create(f"tpu: {{pricing: {pricing}}}\ncommand: {{cmd: 'exit 1'}}")
    state = world.until("failed")
    assert state.release_at == pytest.approx(world.clock.now() + keep, abs=60)
    assert world.controller.advance() > keep - 60
    assert world.cloud.up
    world.clock.ahead += keep
    world.until(lambda: world.state.done)
    assert not world.cloud.up


def test_a_succeeded_job_releases_them_at_once(world):
    world.create("command: {cmd: 'true'}")
    world.until(lambda: world.state.done)
    assert world.state.state == "succeeded"
    assert not world.cloud.up


@pytest.mark.parametrize(("options", "up"), [({"release": True}, False), ({"keep": True}, True)])
def test_a_stopped_job_releases_or_keeps_them_as_requested(world, options, up):
    world.create("command: {cmd: 'sleep 100', grace_period: 0}")
    world.until("running")
    world.request("stop", **options)
    world.until(lambda: world.state.done)
    assert world.cloud.up is up


def test_delete_releases_kept_machines_before_the_record_is_deleted(world):
    world.create("command: {cmd: 'exit 1'}")
    world.until("failed")
    directory = world.controller.record.directory
    world.request("delete")
    while world.controller.advance() is not None:
        assert directory.exists()
    assert not world.cloud.up
    assert not directory.exists()


def test_release_never_keeps_the_machines(world):
    world.create("tpu: {release: never}\ncommand: {cmd: 'true'}")
    world.until(lambda: world.state.done)
    assert world.cloud.up
    assert world.count("release") == 0


def test_a_stop_while_queued_withdraws_the_request_at_once(world):
    world.cloud.queue = [Waiting("queued", poll_after=15)]
    world.create("command: {cmd: 'true'}")
    world.until(lambda: world.state.why == "queued")
    world.request("stop")
    world.until(lambda: world.state.done)
    assert world.state.state == "stopped"
    assert world.count("release") == 1


def test_an_allocator_that_wants_each_call_at_once_is_called_twice_a_second(world):
    world.cloud.queue = [Waiting("queued", poll_after=0)]
    world.create("command: {cmd: 'true'}")
    world.until(lambda: world.count("provision") == 1)
    delays = [world.controller.advance() for _ in range(30)]
    assert min(delays) == 0.05, "a few steps may follow at once"
    assert delays[25:] == [0.5] * 5
    world.cloud.queue = [Waiting("queued", poll_after=1)]
    assert world.controller.advance() == 1


def test_provisioning_fails_after_the_provision_timeout(world):
    world.cloud.queue = [Waiting("no capacity", poll_after=15)]
    world.create("tpu: {provision_timeout: 10m}\ncommand: {cmd: 'true'}")
    state = world.until("failed")
    assert state.failure.kind == "stockout"
    assert "no capacity" in state.failure.evidence
    world.until(lambda: world.state.done)
    assert world.count("release") == 1


def test_the_saved_state_is_on_disk_before_the_next_step(world):
    world.cloud.queue = [Waiting("zone a", 0.0, {"zone": "a"}), Waiting("zone b", 0.0, {"zone": "b"})]
    world.create("command: {cmd: 'true'}")
    world.until(lambda: world.state.saved_state == {"zone": "a"})
    world.restart_supervisor()
    assert provision_request(world.turn).saved_state == {"zone": "a"}


def test_a_denied_request_fails_with_the_clouds_message(world):
    world.cloud.denied = Failure("quota", evidence="Quota limit 'TPUV4' has been exceeded", hint="ask for more")
    world.create("command: {cmd: 'true'}")
    state = world.until("failed")
    assert state.failure.kind == "quota"
    assert state.failure.hint == "ask for more"


def test_a_program_error_is_restarted_as_often_as_configured(world):
    world.create("job: {max_restarts: {program: 2}}\ncommand: {cmd: 'echo $TPUX_ATTEMPT; exit 3'}")
    state = world.until("failed")
    assert state.attempt == 3
    assert state.stage == 2
    assert world.output(attempt=3) == "3\n"
    assert state.failure.kind == "program"


def test_a_preemption_requests_new_machines(world):
    world.create("tpu: {pricing: spot}\nwatch: {verdict_grace: 0}\ncommand: {cmd: '[ $TPUX_RESUME = 1 ] || sleep 100'}")
    world.until(lambda: world.state.run.running)
    world.cloud.state, world.cloud.up = "preempted", False
    state = world.until("succeeded")
    assert (state.attempt, state.stage, state.preemptions) == (2, 1, 1)
    assert world.cloud.generation == 2


def test_a_preemption_during_setup_is_not_a_setup_failure(world):
    class Slow:
        @hookimpl
        def check(self):
            yield sh("test -e ready || { sleep 0.3; exit 1; }")

        @hookimpl
        def setup(self):
            world.cloud.state, world.cloud.up = "gone", False
            yield sh("touch ready; exit 1")

    world.plugins.add("slow", Slow())
    world.create("tpu: {pricing: spot}\nsetup: {modules: [slow], tries: 1}\ncommand: {cmd: 'true'}")
    world.until("recovering")
    assert world.state.failure.kind == "preempted"


def test_an_unknown_machine_state_ends_nothing_and_deletes_nothing(world):
    world.create("tpu: {pricing: spot}\ncommand: {cmd: 'sleep 1'}")
    world.until(lambda: world.state.run.running)
    world.cloud.state = "error"
    world.until("succeeded")
    assert world.state.attempt == 1


def test_a_looping_job_resumes_after_success_with_a_backoff(world):
    world.create("job: {loop: true}\ncommand: {cmd: 'echo $TPUX_STAGE'}")
    world.until(lambda: world.state.attempt == 3)
    assert world.output(attempt=2) == "1\n"
    events = [event.to_json() for event, _ in world.controller.record.events()]
    delays = [e["until"] - e["at"] for e in events if e.get("kind") == "loop"]
    assert delays == pytest.approx([10, 20], abs=1)


def test_a_silent_job_is_stalled(world):
    world.create("job: {stalled_after: 1m, rule: pass}\ncommand: {cmd: 'echo hi; sleep 1000', grace_period: 0}")
    world.until(lambda: world.state.run.running and "hi" in world.output())
    for _ in range(60):
        world.steps(1)
        world.clock.ahead += 1.5
    assert world.until("failed").failure.kind == "stalled"


@pytest.mark.parametrize("job", ["", "job: {stalled_after: 10s, rule: pass}\n"])
def test_the_other_workers_are_terminated_after_one_failed(world, job):
    """That they are silent until then is not why the attempt ends."""
    world.create(job + "command: {cmd: '[ $TPUX_WORKER = 0 ] && sleep 1000; exit 5', grace_period: 0}")
    world.until(lambda: 1 in world.state.endings)
    for _ in range(60):
        world.steps(1)
        world.clock.ahead += 1
    failure = world.until("failed").failure
    assert (failure.kind, failure.worker) == ("program", 1)


def test_a_resume_uses_the_last_attempt_with_a_checkpoint(world):
    world.create(
        "job: {max_restarts: {program: 3}}\n"
        "command:\n"
        "  checkpoint: ckpt-*\n"
        "  cmd: '[ $TPUX_ATTEMPT = 2 ] && touch $TPUX_OUTPUT_DIR/ckpt-7; echo $TPUX_RESUME $TPUX_RESUME_ARGS; exit 1'\n"
        "  resume_args: --load=${job.previous_output_dir}\n"
    )
    world.until("failed")
    facts = [event for event, _ in world.controller.record.events() if event.type == "attempt-started"]
    assert [event.resume for event in facts] == [False, False, True, True]
    assert facts[3].previous_output_dir.endswith("/attempt-2")


def test_resume_args_stage_args_and_resume_cmd(world):
    world.create(
        "job: {max_restarts: {program: 1}}\n"
        "command:\n"
        "  cmd: ls /nowhere\n"
        "  resume_cmd: echo again\n"
        "  resume_args: --load=${job.previous_output_dir}\n"
        "  stage_args: --stage=${job.stage}\n"
    )
    world.until("succeeded")
    assert world.output(attempt=2) == f"again --load={world.path}/cloud/out/attempt-1 --stage=1\n"


def test_a_script_of_two_commands_has_the_arguments_where_it_names_them(world):
    world.create(
        "job: {max_restarts: {program: 1}}\n"
        "command:\n"
        "  cmd: 'printf \"<%s>\" ${resume_args} ${stage_args} end; exit 1'\n"
        "  resume_args: --load='a b ${job.attempt}'\n"
        "  stage_args: --stage=${job.stage}\n"
    )
    world.until("failed")
    assert [world.output(attempt=attempt) for attempt in (1, 2)] == ["<end>", "<--load=a b 2><--stage=1><end>"]


def test_a_worker_that_the_machines_do_not_have(world):
    world.cloud.workers = 3
    world.create("command: {cmd: 'true', workers: 3}")
    failure = world.until("failed").failure
    assert failure.kind == "config"
    assert "3" in failure.evidence


def test_a_plugin_can_be_the_rule(world):
    class Rule:
        @hookimpl
        def on_preempt(self, failure):
            return Action("rerun", reapply=True) if failure.kind == "program" else Action()

    world.plugins.add("patient", Rule())
    world.create("job: {rule: patient, max_restarts: {program: 1}}\ncommand: {cmd: 'exit 1'}")
    state = world.until("failed")
    assert (state.attempt, state.stage, world.cloud.generation) == (2, 0, 2)
    assert state.why == "1 restart in a row after program; exit code 1"
    assert state.failure.hint.endswith("1 restart in a row after program; raise job.max_restarts.program to allow more")
    world.restart_supervisor()
    assert world.state == state


def test_a_rule_plugin_buys_new_machines_twenty_times_in_a_row(world):
    class Rule:
        @hookimpl
        def on_preempt(self):
            return Action("resume", reapply=True)

    refused = [Failure("quota", evidence="none left"), Failure("config", evidence="no such version")]
    world.plugins.add("patient", Rule())
    world.cloud.denied = refused[0]
    world.create("job: {rule: patient}\ncommand: {cmd: 'true'}")
    world.until(lambda: world.state.reapplied == 7)
    world.cloud.denied = refused[1]
    state = world.until("failed")
    assert state.restarts == {"quota": 7, "config": 13}
    assert state.why == "20 restarts in a row on new machines; no such version"
    assert state.failure.hint == "20 restarts in a row on new machines; set job.max_restarts.config to allow more"
    world.request("resume")
    world.until(lambda: world.state.reapplied == 1)  # a resume by the user starts the count again


def test_the_reported_failure_is_the_root_cause(world):
    class Detector:
        @hookimpl
        def classify_failure(self, attempt):
            kinds = {0: "infra", 1: "out-of-memory"}
            return [Failure(kinds[e.worker], e.worker, e.log.read_text().strip(), at=e.at) for e in attempt.endings]

    world.plugins.add("detector", Detector())
    world.create("command: {cmd: 'echo output of $TPUX_WORKER; exit 1'}")
    failure = world.until("failed").failure
    assert (failure.kind, failure.worker, failure.evidence) == ("out-of-memory", 1, "output of 1")


def test_release_never_still_withdraws_a_queued_request(world):
    world.cloud.queue = [Waiting("queued", poll_after=15)]
    world.create("tpu: {release: never}\ncommand: {cmd: 'true'}")
    world.until(lambda: world.state.why == "queued")
    world.request("stop")
    world.until(lambda: world.state.done)
    assert world.count("release") == 1


def test_an_interrupted_reboot_keeps_the_machines_for_a_limited_time(world):
    world.create("tpu: {keep_on_stop: 0}\ncommand: {cmd: 'sleep 100', grace_period: 0}")
    world.until("running")
    world.request("stop", keep_for=600)
    world.until("stopped")
    world.clock.set_forward = -3600  # a clock that is set back does not prolong it
    world.clock.ahead += world.controller.advance()  # for the resume that follows at once, as a rule
    assert 500 < world.controller.advance() <= 600
    assert world.cloud.up
    world.clock.ahead += 600
    world.until(lambda: world.state.done)
    assert not world.cloud.up


@pytest.mark.system
def test_an_unreachable_worker_before_a_resume_does_not_restart_from_scratch(world, monkeypatch):
    world.create("job: {max_restarts: {program: 1, host-lost: 0}}\ncommand: {cmd: 'exit 1'}")
    world.until("recovering")

    def silent(worker):
        raise HostUnreachableError("no answer")

    monkeypatch.setattr(world.controller.workers, "host", silent)
    assert world.until("failed").failure.kind == "host-lost"
    assert world.state.attempt == 1


def test_an_unreachable_worker_is_reported_at_growing_intervals(world, monkeypatch):
    world.create("command: {cmd: 'sleep 100', grace_period: 0}")
    world.until(lambda: world.state.run.running)
    connect = world.controller.workers.host

    def host(worker):
        if worker.index == 1:
            raise HostUnreachableError("no answer")
        return connect(worker)

    monkeypatch.setattr(world.controller.workers, "host", host)
    for _ in range(60):
        world.controller.advance()
        world.clock.ahead += 1
    reasons = [event.why for event, _ in world.controller.record.events() if event.type == "waiting"]
    assert reasons == [f"attempt 1: worker 1 unreachable for {n} s (no answer)" for n in (5, 10, 20, 40)]
    monkeypatch.setattr(world.controller.workers, "host", connect)
    world.until(lambda: world.state.why == "attempt 1")


def test_the_first_worker_to_end_is_the_cause_also_if_all_ends_are_observed_at_once(world):
    world.cloud.workers = 8
    error = 'Traceback (most recent call last):\\n  File "a", line 1, in b\\nValueError: loss is NaN\\nbye\\n'
    world.create(f"""
command:
  cmd: |
    until [ -e {world.path}/go ]; do sleep 0.05; done
    if [ $TPUX_WORKER = 5 ]; then printf '{error}'; exit 1; fi
    until [ -e {world.path}/cloud/1/5/.tpux/runs/*/1/command/exit ]; do sleep 0.05; done
    echo Socket closed
    exit 7
""")
    world.until(lambda: world.state.run.running)
    (world.path / "go").touch()
    deadline = time.monotonic() + 60
    while len(list(world.path.glob("cloud/1/*/.tpux/runs/*/1/command/exit"))) < 8:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    failure = world.until("failed").failure
    assert (failure.kind, failure.worker, failure.code, failure.others) == ("program", 5, 1, 7)
    assert failure.evidence == "exit code 1: ValueError: loss is NaN"
    assert failure.hint == "tpux logs 1 --worker 5"


def test_a_worker_that_tpux_ends_is_not_the_cause(world):
    world.create(
        "watch: {straggler_grace: 0}\ncommand: {cmd: 'echo worker $TPUX_WORKER; [ $TPUX_WORKER = 1 ] && exit 3;"
        " sleep 100', grace_period: 0}"
    )
    failure = world.until("failed").failure
    assert (failure.worker, failure.evidence, failure.others) == (1, "exit code 3: worker 1", 0)


def test_a_detector_that_finds_what_core_finds_too_is_shown(world):
    class NotANumber:
        @hookimpl
        def classify_failure(self, attempt):
            ending = attempt.endings[0]
            return [Failure("program", ending.worker, "loss is nan", "lower the learning rate", ending.at)]

    world.plugins.add("nan", NotANumber())
    world.create("command: {cmd: 'exit 1', workers: 0}")
    failure = world.until("failed").failure
    assert (failure.evidence, failure.hint) == ("loss is nan", "lower the learning rate")


# --- a job whose steps keep raising ---------------------------------------------------------------


def until_failed(world):
    """Advance the job as a supervisor does, until it has failed."""
    for _ in range(2000):
        if world.state.state == "failed":
            return world.state
        try:
            world.clock.ahead += min(world.controller.advance() or 0.0, 0.1)
            world.controller.errors.problems = 0
        except (TpuxError, OSError) as error:
            world.clock.ahead += handle_error(world.controller, error)
    raise AssertionError(world.state)


def cannot_start_on_worker_1(world):
    """Run a job whose program runs on worker 0, and cannot be started on worker 1."""
    world.create("watch: {lost_after: 1s}\ncommand: {cmd: 'echo begin; sleep 1000', grace_period: 0}")
    world.until("setting-up")
    key = worker_key(world.turn.job.key, 1)
    (world.path / f"cloud/1/1/.tpux/runs/{key}/1/command/lock").mkdir(parents=True)


def processes(world):
    """Return the commands that run in the workers' home directories."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(world.path / "cloud"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_the_programs_of_a_job_that_fails_because_its_steps_raise_are_terminated(world):
    cannot_start_on_worker_1(world)
    state = until_failed(world)
    assert state.failure.evidence.startswith("8 errors in a row: worker 1: a tpux script failed")
    assert not state.attempt_open
    assert state.release_at is not None
    assert processes(world) == []
    assert world.output(0) == "begin\n"
    world.clock.ahead += HOUR
    world.until(lambda: world.state.done)
    assert not world.cloud.up


def test_a_config_that_is_replaced_while_a_listener_reads_it_is_not_kept(world, monkeypatch):
    world.create("command: {cmd: 'true'}\n")
    world.until("succeeded")
    world.turn.reload()
    reading, replaced = threading.Event(), threading.Event()
    read = opening.open_job

    def read_slowly(*args):
        opened = read(*args)
        reading.set()
        assert replaced.wait(60)
        return opened

    monkeypatch.setattr(opening, "open_job", read_slowly)
    listener = threading.Thread(target=lambda: world.turn.opened)
    listener.start()
    assert reading.wait(60)
    world.turn.reload()  # as a resume with another config does
    replaced.set()
    listener.join()
    assert not world.controller.is_open


def test_a_job_fails_also_if_the_termination_raises(world, monkeypatch):
    def terminate(turn):
        raise TpuxError("no luck")

    cannot_start_on_worker_1(world)
    monkeypatch.setattr("tpux.lifecycle.stop.terminate", terminate)
    state = until_failed(world)
    assert state.failure.evidence.startswith("8 errors in a row: worker 1: a tpux script failed")
    assert "; programs may still run on the workers: no luck" in state.why


def test_a_stop_takes_the_place_of_a_failure_that_is_under_way(world):
    cannot_start_on_worker_1(world)
    while world.controller.errors.failing is None:
        try:
            world.controller.advance()
        except TpuxError as error:
            handle_error(world.controller, error)
    world.request("stop")
    world.until("stopped")
    assert processes(world) == []


def test_a_program_that_finished_before_a_preemption_has_succeeded(world):
    world.create(
        "command: {cmd: 'echo Training complete; sleep 100', finished_by: [log], grace_period: 0}\n"
        "log: {finished: Training complete}\nwatch: {verdict_grace: 0}\n"
    )
    world.until(lambda: "complete" in world.output(0))
    world.cloud.state = "preempted"
    state = world.until("succeeded")
    assert (state.failure, state.preemptions, state.attempt) == (None, 0, 1)


def test_what_detectors_collect_is_stored_and_passed_to_them(world):
    seen = []

    class Detector:
        @hookimpl
        def collect(self, attempt, worker):
            found = yield sh("cat {path}/result; echo on $PWD", path=attempt.output_dir)
            return {"result": found.text.split()[0], "worker": worker.index}

        @hookimpl
        def classify_failure(self, attempt):
            seen.append(attempt.collected)
            return [Finished(f"result {attempt.collected[1]['detector']['result']}")]

    world.plugins.add("detector", Detector())
    world.create("command: {cmd: 'echo $TPUX_ATTEMPT > $TPUX_OUTPUT_DIR/result; exit 3', finished_by: [detector]}")
    world.until(lambda: len(world.state.collected) == 2)
    world.restart_supervisor()
    state = world.until("succeeded")
    expected = {index: {"detector": {"result": "1", "worker": index}} for index in (0, 1)}
    assert state.collected == expected
    assert seen == [expected]
    [end] = [event for event, _ in world.controller.record.events() if event.type == "attempt-ended"]
    assert end.finished == "result 1"


@pytest.mark.parametrize("answer", ["raise ValueError('broken')", "yield 3", "yield sh('exit 4')", "return object()"])
def test_a_collection_that_fails_is_left_out(answer):
    scope = {"hookimpl": hookimpl, "sh": sh}
    exec(f"@hookimpl\ndef collect(self):\n    {answer}\n    yield sh('true')\n", scope)
    detector = type("Detector", (), {"collect": scope["collect"], "classify_failure": hookimpl(lambda self: None)})
    config = {"command": {"cmd": "exit 3", "finished_by": ["detector"]}}
    run = run_job(config, plugins={"detector": detector()})
    assert (run.failure.kind, run.failure.code) == ("program", 3)
    assert "collected" not in {event.type for event in run.events}
    assert "detector" in run.logs["tpu.log"]


def test_a_silent_program_costs_only_reads_until_it_writes_or_ends(world):
    world.cloud.poll_after = 1000
    script = "touch silent; until [ -e write ]; do sleep 0.05; done; echo news; until [ -e end ]; do sleep 0.05; done"
    world.create(f"command: {{cmd: '{script}', grace_period: 0}}")
    world.until(lambda: world.controller.is_quiet)
    homes = [world.cloud.root / f"1/{index}" for index in (0, 1)]
    before = world.controller.workers.threads
    world.controller.workers.threads = None  # no worker is called in a thread
    world.steps(3)
    world.controller.workers.threads = before
    run = homes[1] / f".tpux/runs/{command_process(world.turn, 1).id}"
    (homes[1] / "write").touch()
    _wait_for(run / "output", "news\n")
    world.steps(1)
    assert world.output(1) == "news\n", "the next step has it"
    world.until(lambda: world.controller.is_quiet)
    (homes[1] / "end").touch()
    _wait_for(run / "exit", "0")
    world.steps(1)
    assert 1 in world.state.endings
    (homes[0] / "write").touch()
    (homes[0] / "end").touch()
    world.until("succeeded")


def _wait_for(path: Path, content: str) -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text().startswith(content)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
