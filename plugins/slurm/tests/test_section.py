"""The section `tpu`, and what is found before a job is submitted, without a cluster."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tpux import Denied, ProvisionRequest, Ready, Released, TpuxError, Waiting
from tpux_slurm import allocator, scripts
from tpux_slurm.commands import environment
from tpux_slurm.preflight import check, seconds
from tpux_slurm.section import SlurmTpuSection
from tpux_slurm.states import fields_of, in_words, why_never
from tpux_testing.sandbox import Sandbox


@pytest.mark.parametrize("option", ["--job-name=x", "-Jx", "--comment=a", "--arr=1-3", "-d5", "--requeue", "--wrap=ls"])
def test_options_that_tpux_sets_are_refused_with_their_position(option: str) -> None:
    """The beginning of an option's name counts as well, as for sbatch."""
    with Sandbox() as sandbox, pytest.raises(TpuxError, match=r"tpu\.sbatch\[1\]|tpux sets --"):
        sandbox.job({"tpu": {"allocation_mode": "slurm", "sbatch": ["--constraint=v100", option]}})


@pytest.mark.parametrize("option", ["--clusters=other", "-Mother", "-M", "--cluster", "-HMother"])
def test_another_cluster_is_refused(option: str) -> None:
    """There, neither squeue nor scancel would find the job: it would be submitted again and again."""
    with Sandbox() as sandbox, pytest.raises(TpuxError, match=r"local cluster only"):
        sandbox.job({"tpu": {"allocation_mode": "slurm", "sbatch": ["--constraint=v100", option]}})
    SlurmTpuSection.model_validate({"allocation_mode": "slurm", "sbatch": ["--cluster-constraint=a", "-kHpgpu"]})


def test_the_clusters_of_the_shell_are_not_used() -> None:
    """Neither when a job is created, nor of one that an earlier version has created."""
    given = {"PATH": "/bin", "SLURM_CLUSTERS": "other", "SBATCH_CLUSTERS": "other", "SBATCH_QOS": "q"}
    assert not [name for name in environment(given) if "CLUSTERS" in name]
    assert environment(given)["SBATCH_QOS"] == "q"


@dataclass
class Fake:
    """Slurm's commands as shell scripts, and the allocator's steps with them."""

    directory: Path
    request: ProvisionRequest

    def command(self, name: str, script: str) -> None:
        """Replace a command."""
        path = self.directory / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def provision(self) -> Ready | Waiting | Denied:
        """Take a step, with what the last one has saved."""
        answer = allocator.provision(self.request)
        if not isinstance(answer, Denied) and answer.saved_state is not None:
            self.request = replace(self.request, saved_state=answer.saved_state)
        return answer

    def submitted(self) -> int:
        """Return how often sbatch was called."""
        return len((self.directory / "submitted").read_text().splitlines())


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Return commands of a cluster that has no job, and answers to each sbatch."""
    request = ProvisionRequest(
        name="tpux-1",
        tpu=SlurmTpuSection(),
        section=None,
        labels={"tpux-job": "000001", "tpux-token": "t"},
        public_keys=(),
        directory=tmp_path,
        resolved={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    made = Fake(tmp_path, request)
    made.command("squeue", "")
    made.command("sbatch", f"echo x >>{tmp_path}/submitted; echo 7")
    return made


@pytest.mark.parametrize(
    ("state", "kind"),
    [("CANCELLED", "config"), ("FAILED", "setup"), ("COMPLETED", "setup"), ("NODE_FAIL", "preempted")],
)
def test_a_job_that_ends_before_its_nodes_answer_is_not_submitted_again(fake: Fake, state: str, kind: str) -> None:
    """What somebody cancels is final, and what fails by itself counts: administrators block who submits on and on."""
    assert isinstance(fake.provision(), Waiting)
    fake.command("scontrol", f"echo JobId=7 JobState={state} Reason=None EndTime=2026-01-01T00:00:00")
    answer = fake.provision()
    assert isinstance(answer, Denied)
    assert answer.failure.kind == kind
    assert f"Slurm job 7 is {state}" in answer.failure.evidence
    assert fake.submitted() == 1


def test_an_ended_job_of_which_slurm_knows_nothing_more(fake: Fake) -> None:
    """While the controller is down nothing is submitted; once Slurm has forgotten the job, a new one is."""
    fake.provision()
    fake.command("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    answer = fake.provision()
    assert isinstance(answer, Waiting)
    assert "Slurm does not answer" in answer.why
    assert fake.submitted() == 1
    fake.command("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    fake.provision()
    assert fake.submitted() == 2


@pytest.mark.parametrize(
    ("shown", "word"),
    [("JobName=tpux-1 Comment=other", "RUNNING"), ("JobName=x Comment=tpux:t", "PENDING"), ("JobName=x", "COMPLETING")],
)
def test_a_job_that_squeue_does_not_list_holds_its_nodes(fake: Fake, shown: str, word: str) -> None:
    """Its name was changed, for example: it is ended by its number, and released is said once it has ended."""
    fake.provision()
    fake.command("scontrol", f"echo JobId=7 {shown} JobState={word}")
    fake.command("scancel", f'echo "$*" >>{fake.directory}/ended')
    answers = [allocator.release(fake.request), allocator.release(fake.request)]
    if word == "COMPLETING":
        assert "neither the name nor the comment" in getattr(answers[0], "left", "")
        return
    assert all(isinstance(answer, Waiting) and word in answer.why for answer in answers)
    assert (fake.directory / "ended").read_text().split()[-1] == "7"
    fake.command("scontrol", f"echo JobId=7 {shown} JobState=CANCELLED")
    assert allocator.release(fake.request) == Released()
    fake.command("scontrol", "echo 'slurm_load_jobs error: Unexpected message received' >&2; exit 1")
    assert isinstance(allocator.release(fake.request), Waiting)
    fake.command("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert allocator.release(fake.request) == Released()


def test_a_job_whose_comment_was_changed_is_still_the_jobs(fake: Fake) -> None:
    """No other one is submitted, and a release ends it."""
    fake.provision()
    fake.command("squeue", "echo '7|PENDING|Priority||N/A|changed'; echo '8|PENDING|Priority||N/A|foreign'")
    fake.command("scancel", f'echo "$*" >>{fake.directory}/ended')
    answer = fake.provision()
    assert isinstance(answer, Waiting)
    assert "Slurm job 7 is PENDING" in answer.why
    assert fake.submitted() == 1
    assert isinstance(allocator.release(fake.request), Waiting)
    assert (fake.directory / "ended").read_text() == "7\n"


def test_a_job_of_a_hidden_partition_is_found(fake: Fake) -> None:
    """Slurm's commands say nothing of it without -a; root, who has the cluster of the other tests, sees all."""
    fake.command("squeue", """case " $* " in *" -a "*) echo '7|PENDING|Priority||N/A|tpux:t';; esac""")
    fake.command("scancel", f'echo "$*" >>{fake.directory}/ended')
    assert isinstance(allocator.release(fake.request), Waiting)
    assert (fake.directory / "ended").read_text() == "7\n"
    fake.command("squeue", "")
    fake.provision()
    fake.command(
        "scontrol",
        """case " $* " in *" -a "*) echo "JobId=7 JobName=tpux-1 JobState=PENDING";; *)
        echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; esac""",
    )
    assert isinstance(allocator.release(fake.request), Waiting)
    fake.command(
        "sinfo", """case " $* " in *--version*) echo slurm 23.02;; *" -a "*) echo 'low|4|infinite|(null)';; esac"""
    )
    with Sandbox() as sandbox:
        job = sandbox.job({"tpu": {"allocation_mode": "slurm", "partition": "low"}})
        assert check(replace(job, resolved={"slurm": fake.request.resolved}), SlurmTpuSection(partition="low")) == []


@pytest.mark.parametrize(
    "fault",
    [
        "echo 'Socket timed out on send/recv operation' >&2; exit 1",
        "echo 'Unable to contact slurm controller (receive failure)' >&2; exit 1",
        "echo 'Batch job submission failed: Transport endpoint is not connected' >&2; exit 1",
        "echo 'Batch job submission failed: Message receive failure' >&2; exit 1",
        "kill -9 $$",
    ],
)
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_submission_without_an_answer_may_still_take_effect(fake: Fake, fault: str, is_killed: bool) -> None:
    """It is neither repeated nor called released before the controller can have no such request any more."""
    sent = fake.directory / "slurm-sent"
    fake.command("sbatch", f"echo x >>{fake.directory}/submitted; {fault}")
    fake.provision()
    if is_killed:  # also the supervisor: it has not seen the end
        sent.write_text("")
        os.utime(sent, (1, 1))
    for answer in (fake.provision(), allocator.release(fake.request)):
        assert isinstance(answer, Waiting)
        assert "sbatch was not answered" in answer.why
        assert 60 < (answer.ends_within or 0) <= 120
    fake.command("squeue", "echo '7|PENDING|Priority||N/A|tpux:t'")
    fake.command("scancel", f'echo "$*" >>{fake.directory}/ended')
    assert isinstance(allocator.release(fake.request), Waiting)
    assert (fake.directory / "ended").read_text() == "7\n"
    fake.command("squeue", "")
    assert isinstance(allocator.release(fake.request), Waiting)
    assert fake.submitted() == 1
    os.utime(sent, (1, 1))
    assert allocator.release(fake.request) == Released()
    fake.provision()
    assert fake.submitted() == 2


def test_a_submission_that_was_not_sent_is_not_waited_for(fake: Fake) -> None:
    """Nothing can come of it: it is repeated as soon as the controller answers, and released at once."""
    fake.command("sbatch", "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    assert isinstance(fake.provision(), Waiting)
    assert allocator.release(fake.request) == Released()
    fake.command("sbatch", f"echo x >>{fake.directory}/submitted; echo 7")
    fake.provision()
    assert fake.submitted() == 1
    fake.command("scontrol", "echo JobId=7 JobState=CANCELLED")
    assert allocator.release(fake.request) == Released()


def test_a_submission_that_squeue_shows_was_answered(fake: Fake) -> None:
    """When it has ended, nothing else is waited for."""
    fake.command("sbatch", "echo 'Zero Bytes were transmitted or received' >&2; exit 1")
    fake.provision()
    fake.command("squeue", "echo '7|PENDING|Priority||N/A|tpux:t'")
    assert "is PENDING" in getattr(fake.provision(), "why", "")
    fake.command("squeue", "")
    fake.request = replace(fake.request, saved_state={})
    assert allocator.release(fake.request) == Released()


@pytest.mark.parametrize("line", ["7|PENDING|Priority||N/A", "7|STAGE_OUT|None||N/A", "7|RUNNING|None|n0|N/A"])
def test_a_job_that_was_found_by_its_name_and_is_cancelled(fake: Fake, line: str) -> None:
    """Its number is known from then on: it is not submitted again, although the answer of its sbatch was lost."""
    fake.command("squeue", f"echo '{line}|tpux:t'")
    fake.command("srun", "exit 1")
    fake.command("scontrol", 'case "$*" in *hostnames*) echo n0;; *) echo NodeName=n0;; esac')
    assert isinstance(fake.provision(), Waiting)
    fake.command("squeue", "")
    fake.command("scontrol", "echo JobId=7 JobState=CANCELLED")
    answer = fake.provision()
    assert isinstance(answer, Denied)
    assert "cancelled, and not by tpux" in answer.failure.evidence
    assert not (fake.directory / "submitted").exists()


def test_a_cancellation_is_said_until_it_is_stored(fake: Fake) -> None:
    """A supervisor that is killed before it has stored the answer asks again; afterwards a user has resumed the job."""
    fake.provision()
    fake.command("scontrol", "echo JobId=7 JobState=CANCELLED")
    allocator.inspect(fake.request)
    fake.request = replace(fake.request, saved_state={})
    for interrupted in (False, True, True):
        fake.request = replace(fake.request, interrupted=interrupted)
        answer = fake.provision()
        assert isinstance(answer, Denied)
        assert "cancelled, and not by tpux" in answer.failure.evidence
    assert fake.submitted() == 1
    fake.request = replace(fake.request, interrupted=False)
    assert isinstance(fake.provision(), Waiting)
    assert fake.submitted() == 2


def test_a_second_job_while_the_controller_is_down(fake: Fake) -> None:
    """It cannot be cancelled now: that is no error of the plugin."""
    fake.command("squeue", 'for i in 7 8; do echo "$i|PENDING|Priority||N/A|tpux:t"; done')
    fake.command("scancel", "echo 'Unable to contact slurm controller' >&2; exit 1")
    answer = fake.provision()
    assert isinstance(answer, Waiting)
    assert "Slurm does not answer" in answer.why


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("AssocMaxJobsLimit", "a limit of the account"),
        ("QOSMaxJobsPerUserLimit", "a limit of the account"),
        ("QOSMaxCpuPerUserLimit", "a limit of the account"),
        ("MaxGRESPerAccount", "a limit of the account"),
        ("QOSGrpNodeLimit", "a limit of the account"),
        ("QOSResourceLimit", "a limit of the account"),
        ("AssocGrpGRESMinutes", "the budget of the account"),
        ("QOSGrpCPUMinutesLimit", "the budget of the account"),
        ("PartitionDown", "the partition is down"),
        ("ReqNodeNotAvail, Reserved for maintenance", "nodes that it needs are down"),
    ],
)
def test_a_limit_that_passes_by_itself_is_waited_for(fake: Fake, reason: str, words: str) -> None:
    """Other jobs of the account end, or its budget is renewed."""
    fake.command("squeue", f"echo '7|PENDING|{reason}||N/A|tpux:t'")
    answer = fake.provision()
    assert isinstance(answer, Waiting)
    assert words in answer.why
    assert reason.split(",")[0] in answer.why


@pytest.mark.parametrize(
    ("reason", "key"),
    [
        ("AssocMaxWallDurationPerJobLimit", "tpu.time"),
        ("QOSMaxNodePerJobLimit", "tpu.nodes"),
        ("QOSMaxGRESPerNode", "tpu.gres"),
        ("AssocMaxCpuMinutesPerJobLimit", "tpu.time"),
        ("QOSMinCpuNotSatisfied", "tpu.qos"),
        ("QOSTimeLimit", "tpu.time"),
        ("AccountNotAllowed", "tpu.account"),
        ("QOSNotAllowed", "tpu.qos"),
    ],
)
def test_a_limit_that_the_job_exceeds_by_itself_is_denied(fake: Fake, reason: str, key: str) -> None:
    """It would wait forever. sbatch says the same where limits are enforced at once."""
    fake.command("squeue", f"echo '7|PENDING|{reason}||N/A|tpux:t'")
    policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    for _ in range(2):
        answer = fake.provision()
        assert isinstance(answer, Denied)
        assert answer.failure.kind == "config"
        assert reason in answer.failure.evidence
        assert key in answer.failure.hint
        fake.command("squeue", "")
        said = f"sbatch: error: {reason}\nsbatch: error: Batch job submission failed: {policy}"
        fake.command("sbatch", f'printf "%s\\n" "{said}" >&2; exit 1')


@pytest.mark.parametrize(
    ("low", "is_final"),
    [
        ("MaxNodes=UNLIMITED TotalNodes=4", False),
        ("MaxNodes=4 TotalNodes=8", False),
        ("MaxNodes=UNLIMITED TotalNodes=3", True),
        ("MaxNodes=3 TotalNodes=8", True),
        ("MinNodes=5 MaxNodes=8 TotalNodes=8", True),
        ("MinNodes=4 MaxNodes=8 TotalNodes=8", False),
    ],
)
def test_nodes_that_are_down_are_waited_for(fake: Fake, low: str, is_final: bool) -> None:
    """Slurm has the same reason for a partition that is too small, and for one whose nodes are down."""
    fake.request = replace(fake.request, tpu=SlurmTpuSection(nodes=4))
    fake.command("squeue", "echo '7|PENDING|(PartitionNodeLimit)||N/A|tpux:t'")
    job = "JobId=7 JobState=PENDING Partition=low,tiny"
    others = "PartitionName=tiny MaxNodes=1 TotalNodes=1\nPartitionName=big MaxNodes=UNLIMITED TotalNodes=99"
    text = f"PartitionName=low {low}\n{others}"
    fake.command("scontrol", f"""case "$*" in *partition*) printf '{text}\n';; *) echo "{job}";; esac""")
    answer = fake.provision()
    if is_final:
        assert isinstance(answer, Denied)
        assert "tpu.nodes" in answer.failure.hint
    else:
        assert isinstance(answer, Waiting)
        assert "down or drained" in answer.why


def test_a_submit_limit_is_waited_for(fake: Fake) -> None:
    """Other jobs of the user end."""
    policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    fake.command("sbatch", f'printf "sbatch: error: AssocMaxSubmitJobLimit\\nsbatch: error: {policy}\\n" >&2; exit 1')
    answer = fake.provision()
    assert isinstance(answer, Waiting)
    assert "AssocMaxSubmitJobLimit" in answer.why


@pytest.mark.parametrize(
    "said",
    [
        "Required partition not available (inactive or drain)",
        "Requested partition configuration not available now",
        "Required node not available (down, drained or reserved)",
        "Slurm backup controller in standby mode",
        "Controller is in standby mode, try a different controller",
        "Requested operation is presently disabled",
        "I/O error writing script/environment to file",
        "Requested nodes are busy",
        "Slurm temporarily unable to accept job, sleeping and retrying",
    ],
)
def test_a_refusal_that_may_pass_is_repeated(fake: Fake, said: str) -> None:
    """Only what is known to be final ends a job: the cluster is maintained, or its disk is full."""
    fake.command("sbatch", f'echo "sbatch: error: Batch job submission failed: {said}" >&2; exit 1')
    answer = fake.provision()
    assert isinstance(answer, Waiting)
    assert said in answer.why
    assert answer.poll_after == 30
    assert "sinfo" in answer.hint
    assert allocator.release(fake.request) == Released()


@pytest.mark.parametrize(
    "said",
    [
        "Batch job submission failed: Invalid partition name specified",
        "Batch job submission failed: Invalid account or account/partition combination specified",
        "Batch job submission failed: Requested node configuration is not available",
        "Batch job submission failed: User's group not permitted to use this partition",
        "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
        "Batch job submission failed: Access/permission denied",
        "Memory specification can not be satisfied",
        "No partition specified or system default partition",
        "Access denied to requested reservation",
        "Requested GRES option unsupported by configured SelectType plugin",
        "sbatch: unrecognized option '--colour=red'",
    ],
)
def test_a_refusal_that_stays_is_final(fake: Fake, said: str) -> None:
    """The same request would be refused again."""
    fake.command("sbatch", f'echo "sbatch: error: {said}" >&2; exit 1')
    answer = fake.provision()
    assert isinstance(answer, Denied)
    assert said in answer.failure.evidence


def test_a_keeper_does_not_wait_for_its_own_search(tmp_path: Path) -> None:
    """It ends once no process of the job is found, and the programs that search have the job's variables."""
    [running] = [line for line in scripts._KEEPER.splitlines() if line.startswith("running()")]
    script = f"""
dir={tmp_path} TPUX_MACHINE_DIR={tmp_path}; export TPUX_MACHINE_DIR
{running}
for try in 1 2 3 4 5; do printf '%s' "$(running)"; done
sleep 60 & until [ "$(running)" ]; do :; done
[ "$(running)" = $! ] && echo "found $TPUX_MACHINE_DIR"
kill $!
"""
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"found {tmp_path}\n"


def test_other_mistakes() -> None:
    """Slices, memory of whole nodes, and words that are no options."""
    for wrong in ({"node_count": 2}, {"mem": "1G"}, {"sbatch": ["v100"]}, {"time": "soon"}, {"partition": "-x"}):
        with pytest.raises(ValueError, match=r"node_count|exclusive|not an option|time|partition"):
            SlurmTpuSection.model_validate({"allocation_mode": "slurm", **wrong})


def test_storage_is_durable_and_home_is_not() -> None:
    """Only the directory that all nodes share outlives them."""
    assert SlurmTpuSection(storage="/shared").durable_paths() == ["/shared"]
    assert SlurmTpuSection().durable_paths() == []
    assert SlurmTpuSection(nodes=3).count_workers() == 3


def test_time_limits() -> None:
    """Minutes, with seconds, hours or days."""
    limits = {
        "90": 5400,
        "1:30": 90,
        "2:00:00": 7200,
        "1-0": 86400,
        "1-02:30": 95400,
        "infinite": None,
        "UNLIMITED": None,
    }
    assert {text: seconds(text) for text in limits} == limits


def test_words_for_reasons_and_fields() -> None:
    """A reason is explained, or is one that never ends; values may have blanks."""
    assert "in use" in in_words("Resources")
    assert in_words("SomethingNew") == "SomethingNew"
    assert "tpu.nodes" in why_never("PartitionNodeLimit")
    fields = fields_of("JobId=1 Comment=a b JobState=RUNNING Reason=None")
    assert (fields["Comment"], fields["JobState"]) == ("a b", "RUNNING")


def test_no_slurm_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says where to create the job."""
    from tpux_slurm.commands import SlurmError, checked

    with pytest.raises(SlurmError, match="sinfo is not in PATH") as raised:
        checked({"PATH": str(tmp_path)}, ["sinfo"])
    assert "login node" in raised.value.hint


def test_munge_and_a_controller_that_is_down(tmp_path: Path) -> None:
    """Both are errors for people, with a remedy where there is one."""
    from tpux_slurm.commands import SlurmError, checked

    for said, expected in {
        "sbatch: error: Munge encode failed: Failed to access socket": "munged must run",
        "Unable to contact slurm controller (connect failure)": "",
    }.items():
        (tmp_path / "squeue").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
        (tmp_path / "squeue").chmod(0o755)
        with pytest.raises(SlurmError) as raised:
            checked({"PATH": f"{tmp_path}:/usr/bin:/bin"}, ["squeue"])
        assert expected in raised.value.hint
