"""What each signature stands for, and what is no failure: text far from the end, other workers, plain mistakes."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tpux import Attempt, Failure, Worker, events
from tpux_libtpu import LibtpuSection, classify_failure, monitor
from tpux_libtpu.table import own_table
from tpux_testing import attempt, detector_contract, hooks_contract, job, run_job, section_contract, steps_of

JOB = job("command: {cmd: 'true'}")
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\n'
ANYWHERE = [one for one in own_table().signatures if not one.peers and not one.stated and one.context is None]
EXAMPLES = [(one.kind, line) for one in ANYWHERE for line in one.examples]
CHECK = "F0319 10:00:00.123456 42 shape.cc:12] Check failed: shape.rank() == 2 (3 vs. 2)"
NO_LOG = "Could not open the log file '/tmp/tpu_logs/a': Permission denied\nCould not open any log file.\n"
NO_TPU = "RuntimeError: No accelerator found. Please run on a TPU or GPU."
ABORTED = "Fatal Python error: Aborted"
LOST = (
    "F0929 17:42:48.594200 1044 client.h:77] Terminating process because the JAX distributed service detected fatal "
    "errors. This most likely indicates that another task died"
)


def classify(logs, codes=1, config=None) -> list[Failure]:
    return classify_failure(JOB, config, attempt(logs, codes))


def kinds(log: str, code: int = 1) -> list[tuple[str, bool]]:
    return [(one.kind, one.symptom) for one in classify(log, code)]


TEXTS = YAML(typ="safe").load(Path(__file__).with_name("texts.yaml"))
CLASSES = [(expected, line) for expected, lines in TEXTS.items() for line in lines]


@pytest.mark.parametrize(("expected", "line"), CLASSES, ids=lambda text: text[:60])
def test_observed_texts_are_of_the_class_that_the_corpus_says(expected, line):
    for log in (line, f"{TRACEBACK}{line}"):
        found = classify({0: log, 1: ""}, {0: 1, 1: 0})
        kind = found[0].kind if found else "nothing"
        assert kind == {"not-opened": "tpu-busy"}.get(expected, expected), log
        looked = classify_failure(JOB, None, seen(attempt({0: log, 1: ""}, {0: 1, 1: 0}), tpu="free"))
        assert [one.kind == "host-lost" for one in looked] == (
            [expected in {"not-opened", "host-lost"}] if looked else []
        )


def seen(ended: Attempt, **found: str) -> Attempt:
    return replace(ended, collected={0: {"libtpu": {"because": "as seen", **found}}})


BUSY = "ABORTED: The TPU is already in use by another process."


@pytest.mark.parametrize(
    ("found", "repaired", "kind"),
    [
        (None, False, "tpu-busy"),
        (None, True, "tpu-busy"),
        ("unknown", False, "tpu-busy"),
        ("unknown", True, "tpu-busy"),
        ("occupied", False, "tpu-busy"),
        ("occupied", True, "host-lost"),
        ("free", False, "host-lost"),
        ("free", True, "host-lost"),
    ],
)
def test_what_is_found_on_the_worker_decides_whether_a_tpu_is_busy_or_bad(found, repaired, kind):
    ended = replace(attempt(BUSY), repaired=repaired)
    [failure] = classify_failure(JOB, None, seen(ended, tpu=found) if found else ended)
    assert (failure.kind, failure.symptom) == (kind, False)
    assert failure.replacements == (2 if kind == "host-lost" else None)
    assert failure.evidence == BUSY
    assert not found or "as seen" in failure.hint


def tpu_job(root: Path, cmd: str, **others: object) -> dict[str, object]:
    """Return a job on a worker with a device that nothing holds."""
    (root / "tmp").mkdir(exist_ok=True)
    device = root / "accel0"
    if os.geteuid() == 0 and not device.exists():
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    device.touch()
    section = {"devices": [f"{root}/accel*"], "directory": f"{root}/tmp", "ports": []}
    return {"libtpu": section, "job": {"rule": "pre"}, "command": {"cmd": cmd}, **others}


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a holder of another user is visible to root only")


@needs_root
def test_a_stale_lock_is_removed_and_the_job_resumed_on_its_machine(tmp_path):
    lock = tmp_path / "tmp/libtpu_lockfile"
    cmd = f"if [ $TPUX_ATTEMPT = 1 ]; then touch {lock}; echo '{BUSY}'; exit 1; fi; [ ! -e {lock} ]"
    run = run_job(tpu_job(tmp_path, cmd))
    [restart] = [one for one in run.events if isinstance(one, events.StateChanged) and one.to == "recovering"]
    assert (run.state, restart.kind, restart.solve, restart.reapply) == ("succeeded", "tpu-busy", True, False)


@needs_root
def test_a_tpu_that_nothing_holds_is_replaced_twice_and_no_more(tmp_path):
    run = run_job(tpu_job(tmp_path, f"echo '{BUSY}'; exit 1"))
    kinds = [one.kind for one in run.events if isinstance(one, events.StateChanged) and one.to == "recovering"]
    assert (run.state, kinds) == ("failed", ["host-lost", "host-lost"])
    assert run.failure is not None
    assert "replaced 2 times" in run.why


@needs_root
def test_a_tpu_that_is_busy_again_after_the_repair_is_replaced(tmp_path):
    lock = tmp_path / "tmp/libtpu_lockfile"
    cmd = f"[ $TPUX_ATTEMPT -le 2 ] || exit 0; touch {lock}; echo '{BUSY}'; exit 1"
    run = run_job(tpu_job(tmp_path, cmd))
    kinds = [one.kind for one in run.events if isinstance(one, events.StateChanged) and one.to == "recovering"]
    assert (run.state, kinds) == ("succeeded", ["tpu-busy", "host-lost"])


def test_what_cannot_be_seen_is_no_reason_to_replace_a_machine(tmp_path):
    section = {"devices": [f"{tmp_path}/accel*"], "directory": str(tmp_path), "ports": []}
    cmd = f"[ $TPUX_ATTEMPT -gt 3 ] || {{ echo '{BUSY}'; exit 1; }}"
    run = run_job({"libtpu": section, "job": {"rule": "pre"}, "command": {"cmd": cmd}})
    kinds = [one.kind for one in run.events if isinstance(one, events.StateChanged) and one.to == "recovering"]
    assert (run.state, kinds) == ("succeeded", ["tpu-busy"] * 3)


def test_contracts():
    hooks_contract("libtpu")
    section_contract("libtpu")
    detector_contract("libtpu", {line: kind for kind, line in EXAMPLES})


def test_each_signature_has_a_hint_and_an_example_that_only_it_finds_first():
    for signature in own_table().signatures:
        assert signature.hint
        assert signature.examples
        for line in signature.examples:
            [failure, *others] = classify({0: line, 1: ""} if signature.peers else line)
            assert not others
            assert (failure.kind, failure.symptom) == (signature.kind, signature.symptom), line
            assert failure.evidence == line.strip()
            assert "{" not in failure.hint


@pytest.mark.parametrize(
    "log",
    [
        "error",
        "Error: something\nerrors: 3\nERROR",
        "no error, no failure, aborted 0 times",
        "socket closed",
        "RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Read requests'",
        f"{TRACEBACK}NameError: name 'lr' is not defined",
        f"XlaRuntimeError: UNAVAILABLE: Socket closed\nretrying\n{TRACEBACK}RuntimeError: step failed",
        f"RESOURCE_EXHAUSTED: Out of memory; using a smaller batch\n{TRACEBACK}KeyError: 'lr'",
        f"No GPU/TPU found, falling back to CPU.\n{TRACEBACK}ValueError: loss is NaN",
        "Socket closed\n" + "step 1 loss 0.5\n" * 4000,
        f"{CHECK}\n{ABORTED}\n",
        f"heartbeat timeout\n{CHECK}\n{ABORTED}\n",
        f"Socket closed\ndouble free or corruption (out)\n{ABORTED}\n",
        f"Socket closed\n{TRACEBACK}NameError: name 'lr' is not defined\nFatal Python error: Segmentation fault\n",
        f"{ABORTED}\n",
        "Could not open any log file.\nstep 100\n",
        f"HTTPError: 429 Client Error: Too Many Requests; retrying\n{TRACEBACK}RuntimeError: step failed",
        f"Could not open any log file.\n{TRACEBACK}RuntimeError: step failed",
        "WARN: No accelerator found, running on CPU\nstep 100\n",
        f"No accelerator found, falling back to CPU\n{TRACEBACK}RuntimeError: step failed",
    ],
)
def test_what_is_not_a_signature(log):
    assert classify(log, 134 if "Fatal Python error" in log else 1) == []


@pytest.mark.parametrize(
    "log",
    [
        f"{LOST}\n{ABORTED}\n",
        f"fatal: not a git repository\n{LOST}\n{ABORTED}\n",
        f"2024-03-19 10:00:00.123456: F external/xla/client.cc:80] {LOST.partition('] ')[2]}\n{ABORTED}\n",
        f"task:3 heartbeat timeout\n{ABORTED}\n",
        f"{TRACEBACK}XlaRuntimeError: UNAVAILABLE: x\nFatal Python error: Segmentation fault\n",
    ],
)
def test_a_lost_peer_also_where_the_program_is_ended_by_a_signal(log):
    assert kinds(log, 134) == [("infra", True)]


def test_an_abort_without_a_reason_is_a_symptom_only_where_there_are_peers():
    assert classify(ABORTED, 134) == []
    [failure] = classify({0: "", 1: ABORTED}, {0: 137, 1: 134})
    assert (failure.kind, failure.worker, failure.symptom) == ("infra", 1, True)
    assert classify({0: LOST, 1: f"{CHECK}\n{ABORTED}"}, 134)[0].worker == 0


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (f"{TRACEBACK}jaxlib.XlaRuntimeError: UNAVAILABLE: Socket closed\nwandb: bye", ("infra", True)),
        ("The TPU is already in use by process with pid 7\n" + TRACEBACK
         + "RuntimeError: Unable to initialize backend 'tpu': ABORTED", ("tpu-busy", False)),
        (f"heartbeat timeout\n{TRACEBACK}XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes",
         ("out-of-memory", False)),
        (f"{TRACEBACK}ValueError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm", ("out-of-memory", False)),
        (f"RESOURCE_EXHAUSTED: Out of memory; using a smaller batch\n{TRACEBACK}XlaRuntimeError: UNAVAILABLE: x",
         ("infra", True)),
        ("step 9\r\x1b[1mSocket closed\r\n", ("infra", True)),
        (f"{NO_LOG}{TRACEBACK}XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory", ("out-of-memory", False)),
        (f"{NO_LOG}{TRACEBACK}XlaRuntimeError: UNAVAILABLE: Socket closed", ("infra", True)),
        (f"{NO_LOG}{TRACEBACK}RuntimeError: Unable to initialize backend 'tpu': ABORTED", ("tpu-busy", False)),
        (f"{NO_LOG}{TRACEBACK}{NO_TPU}", ("tpu-busy", False)),
        (f"The TPU is already in use by process with pid 7\n{TRACEBACK}{NO_TPU}", ("tpu-busy", False)),
        (f"{TRACEBACK}{NO_TPU}", ("host-lost", False)),
        (f"No accelerator found\n{TRACEBACK}RuntimeError: Unable to initialize backend 'tpu': x", ("host-lost", False)),
    ],
)  # fmt: skip
def test_what_the_program_states_comes_first(log, expected):
    assert kinds(log) == [expected]


def test_only_workers_that_failed_by_themselves_count():
    ended = attempt({0: "Socket closed", 1: "Socket closed", 2: "Socket closed"}, {0: 0, 1: 1, 2: None})
    assert [one.worker for one in classify_failure(JOB, None, ended)] == [1, 2]


def test_a_gigabyte_of_logs_is_classified_without_reading_it():
    ended = attempt(dict.fromkeys(range(64), ""), 1)
    for ending in ended.endings:
        with ending.log.open("wb") as log:
            log.truncate(16 << 20)
            log.seek(0, 2)
            log.write(b"step 1 loss 0.5\n" * 1000 + b"XlaRuntimeError: UNAVAILABLE: Socket closed\n")
    before = _bytes_read()
    found = classify_failure(JOB, None, ended)
    assert [(one.kind, one.worker) for one in found] == [("infra", index) for index in range(64)]
    assert _bytes_read() - before < 64 * 128 * 1024


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_labs_file_comes_first(tmp_path):
    lab = tmp_path / "lab.yaml"
    lab.write_text(
        "signatures:\n- {kind: setup, pattern: 'Socket closed by \\S+', hint: 'ask {job}/{worker}'}\n"
        "program_errors: [ConfigError]\n"
    )
    section = LibtpuSection.model_validate({"signatures": str(lab)})
    [failure] = classify_failure(JOB, section, attempt({3: "Socket closed by fileserver"}))
    assert (failure.kind, failure.hint) == ("setup", f"ask {int(JOB.id)}/3")
    [failure] = classify_failure(JOB, section, attempt("Socket closed"))
    assert failure.kind == "infra"
    assert classify_failure(JOB, section, attempt(f"Allocation type: x\n{TRACEBACK}lab.ConfigError: no model")) == []


def test_a_signature_with_a_context_counts_where_the_program_states_that(tmp_path):
    lab = tmp_path / "lab.yaml"
    lab.write_text("signatures: [{kind: infra, pattern: disk is slow, context: 'loader (died|left)'}]")
    section = LibtpuSection.model_validate({"signatures": str(lab)})

    def found(log: str) -> list[str]:
        return [one.evidence for one in classify_failure(JOB, section, attempt(log))]

    assert found(f"disk is slow\n{TRACEBACK}RuntimeError: loader died") == ["disk is slow"]
    assert found("disk is slow\nfatal: loader left\nbye") == ["disk is slow"]
    assert found(f"loader died, disk is slow\n{TRACEBACK}RuntimeError: loss is NaN") == []
    assert found("step 1\ndisk is slow") == ["disk is slow"], "what the program states itself needs no context"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("signatures:\n- {kind: oom, pattern: x}", ":2:10: signatures.0.kind must be 'preempted', "),
        ("signatures:\n- {kind: preempted, pattern: x}", ":2:10: signatures.0.kind: only the cloud says that "),
        (
            "signatures:\n- kind: infra\n  pattern: '('",
            ":3:12: signatures.0.pattern: not a regular expression",
        ),
        ("signatures:\n- kind: infra\n  pattern: 'x*'", ":3:12: signatures.0.pattern: it matches every line"),
        (
            "signatures:\n- kind: infra\n  patern: x",
            ":3:3: unknown key 'signatures.0.patern'\n  hint: did you",
        ),
        ("- kind: infra", ":1:1: the file must be a mapping (key: value)"),
        ("signatures: [\n", ":2:1: invalid YAML: "),
        ("\xff", "lab.yaml:1:1: not valid UTF-8 (byte 0xff)"),
    ],
)
def test_an_invalid_file_is_an_error_of_the_config(tmp_path, text, message):
    (tmp_path / "lab.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(Exception, match="libtpu") as error:
        job(f"libtpu: {{signatures: {tmp_path}/lab.yaml}}\ncommand: {{cmd: 'true'}}")
    assert message in str(error.value)


def test_a_job_with_a_lost_peer_is_resumed_and_one_out_of_memory_is_not(tmp_path):
    lost = "if [ $TPUX_ATTEMPT = 1 ]; then echo 'UNAVAILABLE: Socket closed'; exit 1; fi; echo ok"
    run = run_job({"job": {"rule": "resume"}, "command": {"cmd": lost}})
    assert (run.state, run.attempts) == ("succeeded", 2)
    (tmp_path / "lab.yaml").write_text("signatures: [{kind: out-of-memory, pattern: 'the replay buffer is full'}]")
    config = {
        "job": {"rule": "resume"},
        "libtpu": {"signatures": str(tmp_path / "lab.yaml")},
        "command": {"cmd": "echo the replay buffer is full; exit 1"},
    }
    run = run_job(config)
    assert run.failure is not None
    assert (run.state, run.attempts, run.failure.kind) == ("failed", 1, "out-of-memory")
    assert run.failure.code == 1


def test_a_failed_check_is_the_programs_own_also_where_the_peers_abort():
    cmd = f"echo '{CHECK}'; echo {ABORTED}; kill -ABRT $$"
    run = run_job({"job": {"rule": "resume"}, "command": {"cmd": cmd}})
    assert run.failure is not None
    assert (run.state, run.attempts, run.failure.kind) == ("failed", 1, "program")
    assert run.failure.evidence == f"exit code 134 (SIGABRT): {CHECK}"
    run = run_job(
        {
            "job": {"rule": "resume"},
            "tpu": {"node_count": 2},
            "command": {"cmd": f"if [ $TPUX_WORKER = 0 ]; then sleep 1; echo '{LOST}'; else {cmd}; fi; exit 134"},
        }
    )
    assert run.failure is not None
    assert (run.state, run.attempts, run.failure.kind, run.failure.worker) == ("failed", 1, "program", 1)
    assert CHECK in run.failure.evidence


def test_a_bad_machine_is_replaced_and_without_end_it_is_not():
    bad = "echo SLICE_FAILURE_CHIP_DRIVER_ERROR; exit 1"
    cmd = f"if [ $TPUX_ATTEMPT = 1 ] && [ $TPUX_SLICE = 1 ]; then {bad}; elif [ $TPUX_ATTEMPT = 1 ]; then sleep 60; fi"
    config = {
        "job": {"rule": "pre"},
        "tpu": {"node_count": 2},
        "command": {"cmd": cmd, "grace_period": 0},
        "watch": {"straggler_grace": 0},
    }
    run = run_job(config)
    [restart] = [one for one in run.events if isinstance(one, events.StateChanged) and one.to == "recovering"]
    assert (run.state, run.attempts) == ("succeeded", 2)
    assert (restart.kind, restart.reapply) == ("host-lost", True)
    assert len([one for one in run.events if isinstance(one, events.Allocated)]) == 2

    limits = {"rule": "pre", "max_restarts": {"host-lost": 1}}
    run = run_job({"job": limits, "command": {"cmd": bad}})
    assert run.failure is not None
    assert (run.state, run.attempts, run.failure.kind) == ("failed", 2, "host-lost")
    assert "1 restart in a row after host-lost" in run.why


def test_a_program_that_runs_on_the_cpu_is_reported_while_it_runs():
    line = "WARNING:absl:No GPU/TPU found, falling back to CPU. (Set TF_CPP_MIN_LOG_LEVEL=0 and rerun for more info.)"
    cmd = f"echo '{line}'; for i in $(seq 40); do echo step $i; sleep 0.2; done"
    run = run_job({"command": {"cmd": cmd}, "tpu": {"accelerator": "v4-8"}, "watch": {"resources_every": "1s"}})
    [found] = [one for one in run.events if isinstance(one, events.Warned) and one.kind == "TPU"]
    assert run.state == "succeeded"
    assert (found.workers, found.text) == ((0,), line)
    whys = [one.why for one in run.events if isinstance(one, events.Waiting)]
    assert any("falling back to CPU" in why for why in whys)


@pytest.mark.parametrize("log", ["Running on TPU v4", "step 1 cpu 4%", ""])
def test_a_program_that_uses_its_tpu_is_not_reported(log):
    made = job("tpu: {accelerator: v4-8}\ncommand: {cmd: 'true'}")
    assert steps_of(monitor(made, None, attempt(log, None), Worker(0))).value == []
