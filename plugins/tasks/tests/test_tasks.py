"""`tpux tasks` as users type it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tpux import api
from tpux_tasks import cli
from tpux_testing import CommandLine, command_contract

CONFIG = "command: {cmd: 'true'}\ntpu: {allocation_mode: local}\n"
FILE = """\
name: lab
config: train.yaml
defaults: {max_jobs: 1, env: {LEVEL: all, SIZE: 1}}
accelerators:
  v4-8:
    env: {SIZE: 2}
    tasks:
      - {id: last, run: 'echo last', depends_on: [first, other]}
      - {id: first, run: 'echo "first $LEVEL $SIZE"', workers: 0}
  v5e-8:
    tasks:
      - {id: other, run: 'pwd; echo other', workdir: ~/, max_retries: 2}
"""


def write(cli: CommandLine, text: str = FILE, config: str = CONFIG) -> str:
    (cli.work / "train.yaml").write_text(config)
    path = cli.work / "tasks.yaml"
    path.write_text(text)
    return str(path)


def status(cli: CommandLine, file: str) -> dict[str, dict[str, object]]:
    found = cli.json("tasks", "status", file)
    assert isinstance(found, list)
    return {one["task"]: one for one in found}


def stored(cli: CommandLine, job: int) -> dict[str, dict[str, object]]:
    found = next(Path(cli.env["TPUX_HOME"]).glob(f"jobs/*/{job:06}/resolved.json"))
    config: dict[str, dict[str, object]] = json.loads(found.read_text())["config"]
    return config


def runs(cli: CommandLine, job: str) -> None:
    for _ in range(600):
        shown = cli.json("show", job)
        assert isinstance(shown, dict)
        if shown["state"] == "running":
            return
    raise AssertionError(f"job {job} does not run")


@pytest.mark.system
def test_one_job_for_each_task_in_the_order_of_their_needs(tpux_cli: CommandLine) -> None:
    file = write(tpux_cli)
    said = tpux_cli("tasks", "run", file).stderr
    assert [line for line in said.splitlines() if "created job" in line] == [
        "tpux: created job 1: first",
        "tpux: created job 2: other",
        "tpux: created job 3: last",
    ]
    tpux_cli("wait", "3")
    assert {one["state"] for one in status(tpux_cli, file).values()} == {"succeeded"}
    assert tpux_cli("logs", "1").stdout == "[0] first all 2\n"
    assert tpux_cli("logs", "2").stdout.endswith("other\n")
    first, other, last = stored(tpux_cli, 1), stored(tpux_cli, 2), stored(tpux_cli, 3)
    assert last["job"]["after"] == [1, 2]
    assert first["tpu"]["accelerator"] == "v4-8"
    assert first["command"]["workers"] == 0
    assert other["tpu"]["accelerator"] == "v5e-8"
    assert other["job"]["max_restarts"] == {"program": 2}
    assert first["job"]["group"] == {"name": "lab-v4-8", "max_running": 1, "priority": 0}
    assert first["job"]["tags"] == ["tasks=lab", "task=first"]


@pytest.mark.system
def test_typed_again_it_continues(tpux_cli: CommandLine) -> None:
    file = write(tpux_cli, FILE.replace("depends_on: [first, other]", "depends_on: [first]"))
    tpux_cli("tasks", "run", file)
    tpux_cli("wait", "2")
    again = tpux_cli("tasks", "run", file).stderr
    assert "each of the 3 tasks has a job" in again
    write(tpux_cli, FILE.replace("echo other", "echo new") + "      - {id: more, run: 'true'}\n")
    again = tpux_cli("tasks", "run", file).stderr
    assert "task other has changed (command.cmd), job 3 has not" in again
    assert "created job 4: more\n" in again
    tpux_cli("wait", "4")


@pytest.mark.system
def test_a_deleted_job_is_created_again_and_waited_for(tpux_cli: CommandLine) -> None:
    text = FILE.replace("run: 'echo \"first $LEVEL $SIZE\"'", "run: 'exit 3'")
    file = write(tpux_cli, text)
    tpux_cli("tasks", "run", file)
    tpux_cli("wait", "1", code=100)
    tpux_cli("delete", "1", "-y")
    assert "created job 4: first\n" in tpux_cli("tasks", "run", file).stderr
    assert stored_after(tpux_cli, 3) == [4, 2]
    tpux_cli("wait", "4", code=100)
    write(tpux_cli)
    assert "job 4 of task first starts again" in tpux_cli("tasks", "reset", "first", "--file", file).stderr
    tpux_cli("wait", "3")
    assert tpux_cli("logs", "4").stdout == "[0] first all 2\n"


def stored_after(cli: CommandLine, job: int) -> object:
    shown = cli.json("show", str(job))
    assert isinstance(shown, dict)
    config = json.loads((Path(cli.env["TPUX_HOME"]) / current_config(cli, job)).read_text())["config"]
    return config["job"]["after"]


def current_config(cli: CommandLine, job: int) -> Path:
    directory = next(Path(cli.env["TPUX_HOME"]).glob(f"jobs/*/{job:06}"))
    return max(directory.rglob("resolved.json"), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.system
def test_reset_takes_back_what_the_file_no_longer_has_and_asks_for_a_job_that_runs(tpux_cli: CommandLine) -> None:
    text = FILE.replace("run: 'pwd; echo other', workdir: ~/", "env: {OLD: 1}, run: 'echo \"old=$OLD\"; sleep 600'")
    file = write(tpux_cli, text)
    tpux_cli("tasks", "run", file)
    runs(tpux_cli, "2")
    write(tpux_cli, text.replace("env: {OLD: 1}, ", "").replace("; sleep 600", ""))
    done = tpux_cli("tasks", "reset", "other", "--file", file, code=2)
    assert "job 2 of task other is running. Stop it and start it again?" in done.stderr
    tpux_cli("tasks", "reset", "other", "--file", file, "-y")
    tpux_cli("wait", "2")
    assert tpux_cli("logs", "2").stdout == "[0] old=\n"


def is_next(cli: CommandLine, job: object) -> None:
    """Wait until a job has asked for its place, before all others that wait."""
    for _ in range(600):
        (path,) = Path(cli.env["TPUX_HOME"]).glob("supervisor/*/groups/*-v4-8.json")
        if json.loads(path.read_text())["waiting"][:1] == [f"{int(str(job)):06}"]:
            return
        time.sleep(0.1)
    raise AssertionError(f"job {job} is not the next one")


@pytest.mark.system
def test_a_change_that_is_cut_off_keeps_no_machines_without_end(
    tpux_cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that waits for another one may hold machines of a former attempt, which then stay for tpu.keep_on_stop."""
    file = write(tpux_cli, FILE.replace("run: 'echo \"first $LEVEL $SIZE\"'", "run: 'exit 3'"))
    tpux_cli("tasks", "run", file)
    for name, value in tpux_cli.env.items():
        monkeypatch.setenv(name, value)

    def cut_off(*_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_tpux", cut_off)
    assert api.job(3).state == "pending"
    with pytest.raises(KeyboardInterrupt):
        cli._change(api.job(3), ["job.after=[1]"])
    shown = tpux_cli.json("show", "3")
    assert isinstance(shown, dict)
    (stopped,) = (event for event in shown["events"] if event.get("action") == "stop")
    assert (shown["state"], stopped["keep"]) == ("stopped", False)


@pytest.mark.system
def test_a_prioritized_task_starts_before_the_others(tpux_cli: CommandLine) -> None:
    waits = f"while [ ! -e {tpux_cli.work}/go ]; do sleep 0.1; done"
    tasks = "".join(f"      - {{id: t{n}, run: 'date +%s.%N >> {tpux_cli.work}/t{n}'}}\n" for n in (1, 2, 3))
    text = f"config: train.yaml\naccelerators:\n  v4-8:\n    tasks:\n      - {{id: t0, run: '{waits}'}}\n{tasks}"
    file = write(tpux_cli, text.removesuffix(tasks))
    tpux_cli("tasks", "run", file)
    runs(tpux_cli, "1")  # before the others exist: while nobody waits, the first one that asks has the place
    write(tpux_cli, text)
    tpux_cli("tasks", "run", file)
    assert "is running" in tpux_cli("tasks", "prioritize", "t0", "-f", file, code=2).stderr
    for name in ("t2", "t3"):
        assert "is the next one" in tpux_cli("tasks", "prioritize", name, "-f", file).stderr
        is_next(tpux_cli, status(tpux_cli, file)[name]["job"])
    (tpux_cli.work / "go").touch()
    for job in "1234":
        tpux_cli("wait", job)
    started = {name: (tpux_cli.work / name).read_text() for name in ("t1", "t2", "t3")}
    assert sorted(started, key=lambda name: started[name]) == ["t3", "t2", "t1"]


@pytest.mark.system
def test_mistakes_have_their_position_and_nothing_is_created(tpux_cli: CommandLine) -> None:
    mistakes = {
        FILE.replace("[first, other]", "[first, none]"): (
            "tasks.yaml:8:58: accelerators.v4-8.tasks.0.depends_on.1: there is no task 'none' in this file"
        ),
        FILE.replace("id: other", "id: first"): "tasks.0.id: there is a task first already",
        FILE.replace("workers: 0", "depends_on: last"): "a cycle: last needs first needs last",
        FILE.replace("workers: 0", "repo: nowhere"): "'nowhere' is neither in repos nor a URL",
        FILE.replace("config: train.yaml\n", ""): "tasks.0: the task has no config",
        FILE.replace("max_retries: 2", "max_retries: -1"): "tasks.yaml:12:",
        FILE.replace("workers: 0", "wrokers: 0"): "unknown key 'accelerators.v4-8.tasks.1.wrokers'",
        FILE.replace("run: 'echo last'", "zone: a"): "run",
    }
    for text, message in mistakes.items():
        file = write(tpux_cli, text)
        assert message in tpux_cli("tasks", "run", file, code=2).stderr
    file = write(tpux_cli, config="command: {cmd: 'true', nonsense: 1}\n")
    assert "task first of" in tpux_cli("tasks", "run", file, code=2).stderr
    file = write(tpux_cli, config="job: {group: {name: mine}}\n" + CONFIG)
    assert "job.group: the file of tasks sets it" in tpux_cli("tasks", "run", file, code=2).stderr
    assert tpux_cli.json("list") == []


@pytest.mark.system
def test_two_files_of_one_name_are_not_mixed(tpux_cli: CommandLine) -> None:
    tpux_cli("tasks", "run", write(tpux_cli))
    tpux_cli("wait", "3")
    (tpux_cli.work / "other.yaml").write_text(CONFIG)
    file = write(tpux_cli, FILE.replace("train.yaml", "other.yaml"))
    assert "of task first has another config" in tpux_cli("tasks", "run", file, code=2).stderr


@pytest.mark.system
def test_command(tpux_cli: CommandLine) -> None:
    file = write(tpux_cli)
    wrong = [["run", "none.yaml"], ["reset"], ["reset", "none", "-f", file], ["reset", "first", "-f", file]]
    wrong += [["prioritize", "none", "-f", file], ["status", "none.yaml"]]
    calls = [["run", file, "--dry-run"], ["status", file], ["status", file, "--json"]]
    command_contract("tasks", *calls, wrong=wrong, cli=tpux_cli)
    assert tpux_cli.json("list") == []


@pytest.mark.system
def test_two_runs_at_once_create_one_job_for_each_task(tpux_cli: CommandLine) -> None:
    write(tpux_cli)
    command = [sys.executable, "-m", "tpux", "tasks", "run", "tasks.yaml"]
    both = [
        subprocess.Popen(command, cwd=tpux_cli.work, env=tpux_cli.env, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [one.communicate(timeout=120)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    jobs = tpux_cli.json("list", "--all")
    assert isinstance(jobs, list)
    assert len(jobs) == 3, said


@pytest.mark.system
def test_values_that_two_processes_change_are_both_kept_and_a_change_that_was_cut_off_is_completed(
    tpux_cli: CommandLine,
) -> None:
    tasks = "".join(f"      - {{id: {name}, run: 'sleep 600'}}\n" for name in ("one", "two", "three"))
    file = write(
        tpux_cli,
        f"name: lab\nconfig: train.yaml\ndefaults: {{max_jobs: 1}}\naccelerators:\n  v4-8:\n    tasks:\n{tasks}",
    )
    tpux_cli("tasks", "run", file)
    while "running" not in (states := {name: one["state"] for name, one in status(tpux_cli, file).items()}).values():
        pass
    first, second = (name for name, state in states.items() if state == "pending")  # on a slow machine any of them runs
    jobs = {name: str(one["job"]) for name, one in status(tpux_cli, file).items()}
    command = [sys.executable, "-m", "tpux", "tasks", "prioritize", "-f", file]
    both = [
        subprocess.Popen([*command, name], cwd=tpux_cli.work, env=tpux_cli.env, stderr=subprocess.PIPE, text=True)
        for name in (first, first, second)
    ]
    said = [one.communicate(timeout=120)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0, 0], said
    assert [status(tpux_cli, file)[name]["state"] for name in (first, second)] == ["pending", "pending"]
    assert min(priority(tpux_cli, jobs[name]) for name in (first, second)) >= 1

    # A process that has stopped a job, and has died before it started it again.
    script = (
        "import sys; from tpux import api; from tpux_tasks.cli import CHANGES as why; api.stop(sys.argv[1], reason=why)"
    )
    subprocess.run([sys.executable, "-c", script, jobs[second]], cwd=tpux_cli.work, env=tpux_cli.env, check=True)
    assert status(tpux_cli, file)[second]["state"] == "stopped"
    tpux_cli("tasks", "run", file)
    assert status(tpux_cli, file)[second]["state"] == "pending"

    # One that the user has stopped remains so.
    tpux_cli("stop", jobs[second])
    tpux_cli("tasks", "run", file)
    assert status(tpux_cli, file)[second]["state"] == "stopped"
    tpux_cli("stop", *jobs.values())


def priority(cli: CommandLine, job: str) -> int:
    config = json.loads((Path(cli.env["TPUX_HOME"]) / current_config(cli, int(job))).read_text())["config"]
    return int(config["job"]["group"]["priority"])
