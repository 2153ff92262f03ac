"""jobman's configs, as its users run them: from another directory, many times, with keys of all its versions."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[1] / "core/tests/configs"


def test_a_relative_path_counts_from_the_configs_directory_then_from_the_current_one(tpux):
    (tpux.work / "configs").mkdir()
    (tpux.work / "assets").mkdir()
    config = "configs/train.yaml"
    (tpux.work / config).write_text(
        "venv: {requirements_file: assets/r.txt}\njob: {env_type: venv}\ncommand: {cmd: x}\n"
    )
    missing = tpux("config", "check", config, code=2).stderr
    places = f"{tpux.work}/configs/assets/r.txt, nor {tpux.work}/assets/r.txt"
    assert f"train.yaml:1:27: venv.requirements_file: file not found: {places}\n" in missing
    (tpux.work / "assets/r.txt").write_text("")
    shown = tpux("config", "check", config).stderr
    here, beside = tpux.work / "assets/r.txt", tpux.work / "configs/assets/r.txt"
    assert f"warning: {config}:1:27: assets/r.txt is read from {here}; {beside} does not exist" in shown
    beside.parent.mkdir()
    beside.write_text("")
    assert f"assets/r.txt is read from {beside}; {here} exists too" in tpux("config", "check", config).stderr


def test_a_file_below_the_current_directory_is_copied_to_the_job(tpux):
    (tpux.work / "configs").mkdir()
    (tpux.work / "configs/train.yaml").write_text("recipe: {config_file: env.yaml}\ncommand: {cmd: cat $FILE}\n")
    tpux.plugin(
        "tpux-recipe",
        """
        from tpux import Section, hookimpl
        from tpux.fields import LocalFile

        class RecipeSection(Section):
            config_file: LocalFile

        @hookimpl
        def config_section():
            return RecipeSection

        @hookimpl
        def check(config):
            assert config.config_file.read_text() == "a: 1"
            yield from ()

        @hookimpl
        def setup(config):
            yield from ()
        """,
        entries="recipe = tpux_recipe",
    )
    (tpux.work / "env.yaml").write_text("a: 1")
    job = tpux.json("create", "configs/train.yaml", "setup.modules=[recipe]", "command.cmd=echo fine")["id"]
    (tpux.work / "env.yaml").unlink()
    tpux("wait", job)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_the_configs_of_its_documents_are_valid_with_the_plugins_of_this_repository(tpux):
    (tpux.work / "assets").mkdir()
    for name in ("id_rsa", "id_ed25519_github"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tpux.work / name], check=True)
    for name in ("assets/fms.yaml", "assets/requirements.txt"):
        (tpux.work / name).touch()
    for config in sorted(CONFIGS.glob("jobman-*.yaml")):
        text = re.sub(r"(~|/u/yx1168)/\.ssh", str(tpux.work), config.read_text())
        shown = tpux("config", "check", tpux.config(text)).stdout
        assert re.search("modules: .*ssh.*docker", shown), shown
        assert "environment: docker" in shown


def test_a_command_may_be_a_plain_string(tpux):
    config = tpux.config("command: |\n  echo one\n  echo two\n")
    assert "[0] one\n[0] two\n" in tpux("run", config).stdout
    assert "three" in tpux("run", config, "command.cmd=echo three").stdout
    shown = tpux("config", "show", config, "command.=echo four", "command.grace_period=1s").stdout
    assert "  cmd: echo four\n  grace_period: 1s\n" in shown
    assert "'command.=7': command.cmd" in tpux("config", "check", config, "command.=7", code=2).stderr


def test_the_environment_of_a_job(tpux):
    job = tpux.create(
        "tpu: {name: mine}\n"
        "job: {name: env, environment: {TPU_PREFIX: '${tpu.name}', DEBUG: true, RATE: 0.5, AT: 'n${job.attempt}'}}\n"
        "command: {cmd: 'echo $TPU_PREFIX ${tpu.name} $DEBUG $RATE $AT'}\n"
    )
    tpux("wait", job)
    assert tpux.output(job) == b"mine mine true 0.5 n1\n"


def test_worker_num_is_a_suffix_of_names(tpux):
    text = "job: {name: queue, worker_num: 2}\ntpu: {name: pool}\ncommand: {cmd: 'echo ${tpu.name} ${job.name}'}\n"
    job = tpux.create(text)
    tpux("wait", job)
    assert (tpux.show(job)["name"], tpux.output(job)) == ("queue-2", b"pool-2 queue-2\n")
    assert tpux.show(tpux.create(text, "job.worker_num=auto"))["name"] == "queue"


def test_keys_without_effect_are_reported(tpux):
    text = (
        "job:\n"
        "  queue: {enabled: true, config: tasks.yaml}\n"
        "ssh: {public_key: ~/.ssh/id.pub}\n"
        "setup: {modules: []}\n"
        "command: {cmd: 'true'}\n"
    )
    for command in ("preflight", "run"):
        shown = tpux(command, tpux.config(text)).stderr
        assert "warning: job.yaml:2:10: job.queue has no effect: this job runs its own command" in shown
        assert "job.yaml:3:19: ssh.public_key has no effect: the private key contains it" in shown
    found = json.loads(tpux("preflight", "--json", tpux.config(text)).stdout)
    assert [one["where"].rpartition("/")[2] for one in found][:2] == ["job.yaml:2:10", "job.yaml:3:19"]
    off = tpux("config", "check", tpux.config(text.replace("enabled: true", "enabled: false"))).stderr
    assert "queue" not in off


def test_a_worker_of_the_task_queue_is_one_error_that_names_the_file_of_the_tasks(runner):
    text = (
        "job:\n"
        "  loop: true\n"
        "  queue: {enabled: true, config: queue/tasks.yaml, prefix: [{name: a, workers: 0, run: echo}]}\n"
        "tpu: {acceleratorType: v6e-64, name: 'qw-${tpu.accelerator}'}\n"
    )
    shown = runner("config", "check", runner.config(text), code=2).stderr
    assert "error: job.yaml:3:34: the commands of this config are the tasks of queue/tasks.yaml" in shown
    assert "no plugin for task queues is installed\n  hint: create a job for each task" in shown
    assert len(re.findall("job.yaml:", shown)) == 1
    assert "acceleratorType" not in runner("config", "check", runner.config(text), "command.cmd=x").stderr


def test_keys_of_its_first_and_its_small_version_have_their_meaning(runner):
    text = (
        "loop: true\ntpu: {acceleratorType: v4-8, name: 'a-${tpu.accelerator}'}\ncommand: {cmd: 'echo ${tpu.name}'}\n"
    )
    shown = runner("config", "show", runner.config(text)).stdout
    assert "loop: true" in shown.partition("job:")[2].partition("tpu:")[0]
    assert "accelerator: v4-8" in shown
    assert "name: a-v4-8" in shown
    twice = runner("config", "check", runner.config(f"job: {{loop: false}}\n{text}"), code=2).stderr
    assert "unknown section 'loop'\n  hint: did you mean 'job.loop'?" in twice


def test_the_names_of_two_jobs_of_one_config_differ_although_their_stores_are_different(tpux):
    job = tpux.create("command: {cmd: 'echo ${tpu.name}'}\n")
    tpux("wait", job)
    created = json.loads((tpux.directory(job) / "events.jsonl").read_text().splitlines()[0])
    assert len(created["token"]) == 4
    assert tpux.output(job).decode() == f"job-{job}-{created['token']}\n"


def test_commands_of_the_other_tools(tpux):
    job = tpux.create("job: {name: known}\ncommand: {cmd: sleep 1000, grace_period: 0s}\n")
    for words in (["ls"], ["ps"], ["status"], ["status", "-a"], ["status", job], ["describe", "known"]):
        assert "known" in tpux(*words).stdout, words
    assert "machines:" in tpux("status", job).stdout, "what show prints, also before the job has machines"
    helped = " ".join(tpux("describe", "--help").stdout.split())
    assert "`tpux describe` is the same command; `tpux show` prints a job's state" in helped
    tpux("kill", job)
    assert tpux.show(job)["state"] == "stopped"
    assert "tpux tasks run tasks.yaml" in tpux("queue", "tasks.yaml", code=2).stderr
    assert "\n  kill" not in tpux("--help").stdout
