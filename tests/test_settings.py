"""Settings: defaults below every config, aliases for words of the command line, and the commands that change them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from benchmarks.startup import fill

from tpux.store import Store

CONFIG = "command: {cmd: 'echo ${args}'}\n"


@pytest.fixture
def settings(tpux):
    path = tpux.work / "own/config.yaml"
    tpux.env["TPUX_CONFIG"] = str(path)
    return path


def test_settings_are_set_shown_with_their_origin_and_removed(tpux, settings):
    tpux("config", "set", "defaults.tpu.zone", "us-central2-b")
    settings.write_text(f"# my own\n{settings.read_text()}")
    tpux("config", "set", "aliases.lr", "config.training.learning_rate")
    assert settings.read_text().startswith("# my own\n")
    assert tpux("config", "get", "defaults.tpu.zone").stdout == "us-central2-b\n"
    shown = tpux("config", "list", "--origin").stdout
    assert f"defaults.tpu.zone=us-central2-b  {settings}:4:" in shown
    assert tpux.json("config", "list")["aliases.lr"]["value"] == "config.training.learning_rate"
    tpux("config", "unset", "defaults.tpu.zone")
    assert "is not set" in tpux("config", "get", "defaults.tpu.zone", code=2).stderr
    assert "is not set" in tpux("config", "unset", "defaults.tpu.zone", code=2).stderr
    assert "for example defaults.tpu.zone" in tpux("config", "set", "tpu.zone", "a", code=2).stderr
    before = settings.read_text()
    assert "must stand for a key" in tpux("config", "set", "aliases.x", "[1]", code=2).stderr
    assert "invalid YAML" in tpux("config", "set", "defaults.tpu.zone", "[1", code=2).stderr
    assert settings.read_text() == before


def test_defaults_are_below_the_config_and_errors_have_their_place(tpux, settings):
    settings.parent.mkdir()
    settings.write_text("defaults:\n  job: {name: mine, max_restarts: {infra: 3}}\n  tpu: {zone: a, release: never}\n")
    shown = tpux.json("config", "show", tpux.config(f"job: {{max_restarts: {{program: 1}}}}\n{CONFIG}"))
    assert shown["job"] == {"name": "mine", "max_restarts": {"infra": 3, "program": 1}}
    assert shown["tpu"] == {"release": "never"}, "the allocator local has no zones"
    assert tpux.json("config", "show", tpux.config(CONFIG), "job.name=x")["job"]["name"] == "x"
    settings.write_text("defaults:\n  job: {nmae: mine}\n")
    assert f"{settings}:2:9: unknown key 'job.nmae'" in tpux("config", "check", tpux.config(CONFIG), code=2).stderr
    settings.write_text("colour: never\n")
    assert "unknown setting 'colour'" in tpux("config", "check", tpux.config(CONFIG), code=2).stderr


def test_settings_decide_how_data_are_displayed(tpux, settings):
    assert f"no settings in /etc/tpux/config.yaml or {settings}" in tpux("config", "list", "--origin").stderr
    fill(Store(Path(tpux.env["TPUX_HOME"]), tpux.env.get("TPUX_USER")), 1)
    for name in ("NO_COLOR", "TZ"):
        tpux.env.pop(name, None)
    tpux("config", "set", "display.columns", "[id, state]")
    tpux("config", "set", "display.colours", "always")
    for command in (["list"], []):
        assert tpux(*command).stdout.splitlines()[0].split() == ["ID", "STATE"]
        assert "\x1b[32msucceeded" in tpux(*command).stdout
    assert tpux("list", "-c", "name").stdout.splitlines()[0].split() == ["NAME"]
    tpux.env["NO_COLOR"] = "1"
    assert "\x1b" not in tpux("list").stdout, "the environment precedes"
    created = datetime.fromisoformat(tpux.json("list")[0]["created_at"])
    tpux("config", "set", "display.time_zone", "Asia/Kolkata")
    assert f"{created + timedelta(hours=5.5):%Y-%m-%d %H:%M:}" in tpux("show", "1").stdout
    tpux.env["TZ"] = "UTC"
    assert f"{created:%Y-%m-%d %H:%M:}" in tpux("show", "1").stdout
    before = settings.read_text()
    for key, value in (("time_zone", "Mars/Base"), ("colours", "some"), ("colour", "never")):
        assert f"display.{key}: {value} is not valid" in tpux("config", "set", f"display.{key}", value, code=2).stderr
    assert settings.read_text() == before
    tpux("config", "set", "display.columns", "[nmae]")
    assert "unknown column 'nmae'" in tpux("list", code=2).stderr
    tpux("config", "unset", "display.columns")
    settings.write_text("display: [")
    assert "succeeded" in tpux("list").stdout, "what is wrong is said by the commands that need the rest of it"


def test_a_job_keeps_what_the_settings_were(tpux, settings):
    settings.parent.mkdir()
    settings.write_text("defaults: {job: {tags: [mine]}}\naliases: {lr: optim.lr, t: job.name}\n")
    done = tpux("create", tpux.config("command: {cmd: 'echo ${args}; exit 3'}\n"), "lr=1", "t=short")
    assert "arguments of the program: optim.lr=1\n" in done.stderr
    job = done.stdout.strip()
    tpux("wait", job, code=100)
    assert tpux.output("000001") == b"--optim.lr=1\n"
    assert (tpux.show(job)["tags"], tpux.show(job)["name"]) == (["mine"], "short")
    settings.unlink()
    shown = tpux("config", "show", job, "--origin").stdout
    assert "command.args.optim.lr=1  argument 'optim.lr=1'\n" in shown
    assert f'job.tags=["mine"]  {settings}:1:' in shown
    assert f"command.cmd=echo ${{args}}; exit 3  {tpux.work / 'job.yaml'}:1:" in shown
    origins = tpux.json("config", "show", "short", "--origin")
    assert origins["job.name"]["value"] == "short"
    assert "there is no file and no job nothing.yaml" in tpux("config", "show", "nothing.yaml", code=2).stderr
    tpux("rerun", job, "bs=2")
    tpux("wait", job, code=100)
    assert tpux.output("000001", attempt=2) == b"--optim.lr=1 --bs=2\n"
    stored = json.loads(next(tpux.directory("000001").glob("configs/*/resolved.json")).read_text())
    assert stored["config"]["job"]["tags"] == ["mine"]
