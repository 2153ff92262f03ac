"""`tpux sweep` as users type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpux_testing import CommandLine, command_contract

CONFIG = "command: {cmd: 'echo step 1 loss ${args}; true', args_style: '{key}={value}'}\n"


def write(cli: CommandLine, text: str = CONFIG) -> str:
    path = cli.work / "train.yaml"
    path.write_text(text)
    return str(path)


def points(cli: CommandLine, *words: str) -> list[dict[str, str]]:
    found = cli.json("sweep", *words)
    assert isinstance(found, list)
    return [one["point"] for one in found]


@pytest.mark.system
def test_it_says_what_it_will_cost_and_creates_nothing_without_a_yes(tpux_cli: CommandLine) -> None:
    config = write(tpux_cli)
    done = tpux_cli("sweep", config, "lr=1,2", "bs=3,4", code=2)
    assert "4 jobs; at most 1 at once, on machines of local" in done.stderr
    assert "pass -y to confirm" in done.stderr
    done = tpux_cli("sweep", config, "lr=1,2", "tpu.accelerator=v4-32", "--max-parallel", "5", "--dry-run")
    assert (
        "2 jobs; at most 2 at once: 2 x v4-32, price per hour unknown (prices.yaml has none for v4-32)" in done.stderr
    )
    assert done.stdout == "would create: lr=1\nwould create: lr=2\n"
    prices = tpux_cli.work / "p.yaml"
    prices.write_text("v4-32 spot: 9.5\n")
    words = ("tpu.accelerator=v4-32", "tpu.pricing=spot", "tpu.node_count=2", "--max-parallel", "2")
    done = tpux_cli("sweep", config, "lr=1,2,3", *words, "--prices", str(prices), "--dry-run")
    assert "at most 2 at once: 4 x v4-32 spot, 38.00 per hour" in done.stderr
    prices.write_text("v4-32 spot: 9.5\nv4-32 spot us-central2-b: 8\n")
    words = (*words, "tpu.allocation_mode=tpu-vm", "tpu.zone=[us-central2-b,us-east5-b]", "--prices", str(prices))
    done = tpux_cli("sweep", config, "lr=1,2,3", *words, "--dry-run")
    assert "4 x v4-32 spot, 32.00 per hour" in done.stderr, "that of the first zone"
    assert tpux_cli.json("list") == []


@pytest.mark.system
def test_one_job_for_each_point_and_typed_again_what_is_missing(tpux_cli: CommandLine) -> None:
    config = write(tpux_cli)
    done = tpux_cli("sweep", config, "lr=1,2", "bs=[3,4]", "-y", "--tag", "t", "--max-parallel", "2")
    assert "created job 1: lr=1\n" in done.stderr
    for job in ("1", "2"):
        tpux_cli("wait", job)
    shown = tpux_cli.json("show", "2")
    assert isinstance(shown, dict)
    assert shown["tags"] == ["t"]
    assert shown["name"] == "train-lr2"
    assert shown["arguments"]["args"] == {"lr": "2", "bs": "[3,4]"}
    group = json.loads(next(Path(tpux_cli.env["TPUX_HOME"]).glob("jobs/*/000002/resolved.json")).read_text())["config"][
        "job"
    ]["group"]
    assert group == {"name": "t", "max_running": 2}
    done = tpux_cli("sweep", config, "lr=1,2,5", "bs=[3,4]", "-y", "--tag", "t")
    assert "3 jobs, 2 of which exist" in done.stderr
    assert "created job 3: lr=5\n" in done.stderr
    assert points(tpux_cli, config, "lr=1,2,5", "bs=[3,4]", "--tag", "t") == [
        {"lr": value, "bs": "[3,4]"} for value in "125"
    ]
    tpux_cli("wait", "3")
    tpux_cli("delete", "1", "-y")
    tpux_cli("sweep", config, "lr=1,2,5", "bs=[3,4]", "-y", "--tag", "t")
    assert sorted(point["lr"] for point in points(tpux_cli, "--tag", "t")) == ["1", "2", "5"]
    tpux_cli("wait", "4")


@pytest.mark.system
def test_the_table_has_the_last_values_and_the_best(tpux_cli: CommandLine) -> None:
    config = write(tpux_cli, "command: {cmd: 'f() { echo \"step: 7, loss: ${1#*=}\"; }; f ${args}'}\n")
    tpux_cli("sweep", config, "x=0.5,0.25,nan", "-y")
    for job in ("1", "2", "3"):
        tpux_cli("wait", job)
    shown = tpux_cli("sweep", "--tag", "sweep-train").stdout
    assert [line.split()[:3] for line in shown.splitlines()[:2]] == [["ID", "X", "STATE"], ["1", "0.5", "succeeded"]]
    assert "best by loss: job 2: x=0.25, step 7, loss 0.25" in shown
    assert "best by step: job 1: x=0.5" in tpux_cli("sweep", "--tag", "sweep-train", "--metric", "step").stdout


def test_a_point_that_is_not_valid_is_an_error_before_anything_is_created(tpux_cli: CommandLine) -> None:
    config = write(tpux_cli)
    done = tpux_cli("sweep", config, "job.rule=nonsense,pass", "-y", code=2)
    assert "rule 'nonsense'" in done.stderr
    assert tpux_cli.json("list") == []
    assert "missing argument CONFIG" in tpux_cli("sweep", code=2).stderr


def test_it_says_what_each_kind_of_machines_costs(tpux_cli: CommandLine) -> None:
    config = write(tpux_cli)
    prices = tpux_cli.work / "p.yaml"
    prices.write_text("v4-8: 2\nv4-32: 8\n")
    words = ("tpu.accelerator=v4-8,v4-32", "lr=1,2", "--max-parallel", "3", "--prices", str(prices))
    done = tpux_cli("sweep", config, *words, code=2)
    assert "4 jobs, of which at most 3 at once:\n" in done.stderr
    assert "  tpu.accelerator=v4-8: at most 2 at once: 2 x v4-8, 4.00 per hour\n" in done.stderr
    assert "  tpu.accelerator=v4-32: at most 2 at once: 2 x v4-32, 16.00 per hour\n" in done.stderr


def stored(cli: CommandLine, job: int) -> dict[str, dict[str, object]]:
    found = next(Path(cli.env["TPUX_HOME"]).glob(f"jobs/*/{job:06}/resolved.json"))
    config: dict[str, dict[str, object]] = json.loads(found.read_text())["config"]
    return config


@pytest.mark.system
def test_a_failed_point_holds_no_machines_unless_the_user_says_so(tpux_cli: CommandLine) -> None:
    config = write(tpux_cli)
    tpux_cli("sweep", config, "lr=1,2", "-y")
    assert stored(tpux_cli, 1)["tpu"]["keep_on_failure"] == 0
    assert points(tpux_cli, "--tag", "sweep-train") == [{"lr": "1"}, {"lr": "2"}]
    assert "2 of which exist" in tpux_cli("sweep", config, "lr=1,2", "--dry-run").stderr
    tpux_cli("sweep", config, "lr=3,4", "tpu.keep_on_failure=60", "-y")
    assert stored(tpux_cli, 3)["tpu"]["keep_on_failure"] == 60
    for job in "1234":
        tpux_cli("wait", job)


@pytest.mark.system
def test_another_config_of_the_same_name_needs_a_tag_of_its_own(tpux_cli: CommandLine) -> None:
    config = write(tpux_cli)
    tpux_cli("sweep", config, "lr=1,2", "-y")
    other = tpux_cli.work / "other" / "train.yaml"
    other.parent.mkdir()
    other.write_text(CONFIG)
    done = tpux_cli("sweep", str(other), "lr=1,2", "-y", code=2)
    assert f"the jobs with the tag sweep-train are of another config, {config}" in done.stderr
    assert "--tag NAME" in done.stderr
    tpux_cli("sweep", str(other), "lr=1,2,3", "-y", "--tag", "sweep-train")
    assert len(points(tpux_cli, "--tag", "sweep-train")) == 3
    for job in "123":
        tpux_cli("wait", job)


def test_a_config_with_a_group_of_its_own_is_refused(tpux_cli: CommandLine) -> None:
    config = write(tpux_cli, f"job: {{group: {{name: mine}}}}\n{CONFIG}")
    assert "job.group: a sweep sets the group of its jobs" in tpux_cli("sweep", config, "lr=1,2", "-y", code=2).stderr
    assert tpux_cli.json("list") == []


def test_command(tpux_cli: CommandLine) -> None:
    config = write(tpux_cli)
    wrong = [[config], [config, "lr"], [config, "lr=1,1"], ["none.yaml", "lr=1,2"], [config, "lr=1,2", "--tag", "a b"]]
    command_contract("sweep", [config, "lr=1,2", "--dry-run"], ["--tag", "x", "--json"], wrong=wrong, cli=tpux_cli)
