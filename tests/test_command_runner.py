"""A command in the test's process is what it is in a process of its own (`tests/command_runner.py`)."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tpux.plugin import stdout

ZOO = """
    import os, subprocess, sys, threading, time
    import typer
    from tpux import TpuxError, api

    app = api.new_app()

    @app.command()
    def main(how: str) -> None:
        print(how, os.environ["ANIMAL"], os.environ.get("HIDDEN"), time.tzname, os.getcwd(), sys.argv[1:])
        subprocess.run("echo child; echo its error >&2", shell=True)
        print("warned", file=sys.stderr)
        os.environ["LEFT"] = "1"
        if how == "read":
            print(sys.stdin.read(), sys.stdin.isatty(), sys.stdout.isatty())
        elif how == "exit":
            raise typer.Exit(7)
        elif how == "system":
            sys.exit(9)
        elif how == "error":
            raise TpuxError("no food", hint="buy some")
        elif how == "interrupt":
            raise KeyboardInterrupt
        elif how == "thread":
            threading.Timer(0.3, print, ["later"]).start()
"""
PRINTS = """
    import subprocess
    print("printed by the import")
    subprocess.run(["echo", "by its child"])
    from tpux import hookimpl
    @hookimpl
    def setup(): yield from ()
"""


@pytest.fixture
def zoo(runner, tpux, monkeypatch):
    """Install a command for both kinds of `tpux`, which share a store and a directory."""
    monkeypatch.setenv("HIDDEN", "only in the test's process")
    for one in (runner, tpux):
        one.plugin("tpux-zoo", ZOO, entries="zoo = tpux_zoo:app", group="tpux.commands")
        one.env |= {"ANIMAL": "gnu", "TZ": "ZOO-5"}
        one.env.pop("HIDDEN", None)
    return runner, tpux


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["zoo", "plain"], 0),
        (["zoo", "read"], 0),
        (["zoo", "exit"], 7),
        (["zoo", "system"], 9),
        (["zoo", "error"], 1),
        (["zoo", "interrupt"], 130),
        (["zoo", "thread"], 0),
        (["zoo"], 2),
        (["--help"], 0),
        (["config", "check", "none.yaml"], 2),
        (["create", "bad.yaml"], 2),
        (["rules", "--json"], 0),
        (["list"], 0),
        (["show", "7"], 2),
        (["--version"], 0),
    ],
)
def test_it_has_the_code_and_the_streams_of_a_process(zoo, args, code):
    runner, tpux = zoo
    runner.config("command: {cmd: [1]}\n", "bad.yaml")
    here, there = (one(*args, code=code, stdin="fish\n") for one in (runner, tpux))
    assert (here.stdout, here.stderr) == (there.stdout, there.stderr)
    assert here.stdout + here.stderr
    if args[0] == "zoo" and len(args) > 1:
        assert ("child\n" in here.stdout, "its error\n" in here.stderr) == (True, True)


def test_what_a_plugin_prints_is_no_data(runner, tpux):
    for one in (runner, tpux):
        one.plugin("tpux-loud", PRINTS, entries="loud = tpux_loud")
    text = "setup: {modules: [loud]}\ncommand: 'true'\n"
    here, there = (one("config", "check", one.config(text)) for one in (runner, tpux))
    assert (here.stdout, here.stderr) == (there.stdout, there.stderr)
    assert "by its child" in here.stderr


def test_it_leaves_the_process_as_it_was(zoo, capfd):
    runner, _ = zoo

    def files():
        return {path.name: path.readlink() for path in Path("/proc/self/fd").iterdir() if path.exists()}

    def state():
        streams = (sys.stdin, sys.stdout, sys.stderr, stdout._descriptor.kept)
        return streams, dict(os.environ), Path.cwd(), sys.argv, sys.path, time.tzname, "tpux_zoo" in sys.modules

    before = state()
    runner("list")  # opens what is opened once
    opened = files()
    runner("zoo", "exit", code=7)
    assert (state(), files()) == (before, opened)
    sys.stdout.write("still here\n")
    os.write(2, b"and here\n")
    assert capfd.readouterr() == ("still here\n", "and here\n")


def test_it_sees_a_plugin_that_has_changed(runner):
    for text in ("first", "second one"):
        code = f"from tpux import api\napp = api.new_app()\n@app.command()\ndef main(): print({text!r})\n"
        runner.plugin("tpux-zoo", code, entries="zoo = tpux_zoo:app", group="tpux.commands")
        assert runner("zoo").stdout == f"{text}\n"


def test_it_sees_a_plugin_that_is_new_in_a_directory_whose_time_is_the_same(runner):
    code = "from tpux import api\napp = api.new_app()\n@app.command()\ndef main(): print(__name__)\n"
    site = runner.plugin("tpux-zoo", code, entries="zoo = tpux_zoo:app", group="tpux.commands").parent
    assert runner("zoo").stdout == "tpux_zoo\n"
    before = site.stat()
    runner.plugin("tpux-park", code, entries="park = tpux_park:app", group="tpux.commands")
    os.utime(site, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert runner("park").stdout == "tpux_park\n"


def test_a_command_that_would_start_a_supervisor_fails_the_test(runner):
    with pytest.raises(AssertionError, match=r"create job\.yaml starts a supervisor"):
        runner("create", runner.config("command: 'true'\n"), code=None)
