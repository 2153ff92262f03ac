"""Plugins that raise, answer nonsense or lack a hook: what the user of a job sees, and that nothing is left running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tiers import representative

SETUP = "setup: {modules: [note]}\ncommand: {cmd: echo hello, grace_period: 1s}\n"
NOTE = """
from dataclasses import replace
from pathlib import Path
from tpux import Action, Denied, Failure, Finding, MachineStatus, Released, hookimpl, sh
import tpux_local

HERE = Path(__file__).parent


class RefreshError(Exception):  # as google-auth's: no OSError
    pass
"""
LOCAL = """
@hookimpl
def tpu_section(): return tpux_local.tpu_section()
@hookimpl
def provision(request): return tpux_local.provision(request)
@hookimpl
def inspect(request): return tpux_local.inspect(request)
@hookimpl
def release(request): return tpux_local.release(request)
@hookimpl
def connect(worker, job): return tpux_local.connect(worker, job)
"""


def install(tpux, code: str, base: str = "") -> Path:
    """Install a plugin `note`; hooks of `code` replace those of `base`. Return its directory."""
    return tpux.plugin("tpux-note", NOTE + base + "\n" + code, entries="note = tpux_note").parent


def whys(tpux, job: str) -> list[str]:
    return [str(event["why"]) for event in tpux.events(job, "waiting")]


def until_reported(tpux, job: str, message: str) -> None:
    tpux.until(lambda: message in str(tpux.show(job)["why"]), f"for {message!r}: {tpux.show(job)['why']}")


MODULE = {
    "setup raises": (
        "@hookimpl\ndef setup(config): return config.no_such.attribute",
        "plugin note (tpux-note 1.0) failed in setup: AttributeError: 'NoneType' object has no attribute 'no_such'",
    ),
    "setup raises between two steps": (
        "@hookimpl\ndef setup():\n    yield sh('sleep 1.5')\n    raise RuntimeError('no luck')",
        "plugin note (tpux-note 1.0) failed in setup: RuntimeError: no luck",
    ),
    "check raises": (
        "@hookimpl\ndef check():\n    raise KeyError('x')\n    yield",
        "plugin note (tpux-note 1.0) failed in check: KeyError: 'x'",
    ),
    "check returns a list": (
        "@hookimpl\ndef check(): return [sh('true')]",
        "plugin note (tpux-note 1.0) gave a wrong answer from check: expected a generator of steps",
    ),
    "setup yields a str": (
        "@hookimpl\ndef setup(): yield 'true'",
        "plugin note (tpux-note 1.0) gave a wrong answer from setup: step: expected Sh or Put, got 'true'",
    ),
    "setup is cancelled": (
        "import asyncio\n@hookimpl\ndef setup(): raise asyncio.CancelledError('cancelled')",
        "plugin note (tpux-note 1.0) failed in setup: CancelledError: cancelled",
    ),
    "setup does not end when a step has failed": (
        "@hookimpl\ndef setup():\n    try: yield sh('exit 3')\n    except GeneratorExit: yield sh('true')",
        "plugin note (tpux-note 1.0) failed in setup: RuntimeError: generator ignored GeneratorExit",
    ),
    "setup copies a file that does not exist": (
        "from tpux import put\n@hookimpl\ndef setup(): yield put('/nonexistent', 'x')",
        "plugin note (tpux-note 1.0) gave a wrong answer from setup: step.source: expected a file that can be read",
    ),
    "run raises": (
        "@hookimpl\ndef run(): raise ValueError('bad image')",
        "plugin note (tpux-note 1.0) failed in run: ValueError: bad image",
    ),
    "run returns None": (
        "@hookimpl\ndef run(): return None",
        "plugin note (tpux-note 1.0) gave a wrong answer from run: expected Command, got None",
    ),
    "run returns a variable that no shell accepts": (
        "@hookimpl\ndef run(command): return replace(command, env={'a b': 'c'})",
        "plugin note (tpux-note 1.0) gave a wrong answer from run: env: expected names of variables, got 'a b'",
    ),
}


@pytest.mark.parametrize("case", MODULE)
def test_a_failing_module_is_tried_twice_then_the_job_fails(tpux, case):
    code, message = MODULE[case]
    install(tpux, code)
    done = tpux("run", tpux.config("tpu: {accelerator: v4-16}\n" + SETUP), code=100)
    job = tpux.json("list")[0]["id"]
    shown = tpux.show(job)
    assert shown["state"] == "failed"
    assert shown["failure"]["kind"] == "plugin"
    assert shown["failure"]["evidence"].startswith(message)
    assert "tpux-note 1.0" in shown["failure"]["hint"]
    reports = [why for why in whys(tpux, job) if why.startswith(message)]
    assert len(reports) == 1
    assert reports[0].endswith("; retrying, 1 of 2")
    assert message in done.stderr
    if "answer" not in message:
        assert "Traceback" in tpux.log()
    assert tpux.show(job)["release_at"] is None  # local machines cost nothing and are kept for a look


ALLOCATOR = {
    "provision raises": (
        "@hookimpl\ndef provision(): raise RefreshError('reauthenticate')",
        "plugin note (tpux-note 1.0) failed in provision: RefreshError: reauthenticate",
    ),
    "provision raises a TpuxError": (
        "from tpux import TpuxError\n@hookimpl\ndef provision(): raise TpuxError('no reservation')",
        "plugin note (tpux-note 1.0) failed in provision: no reservation",
    ),
    "provision returns a dict": (
        "@hookimpl\ndef provision(): return {'state': 'ready'}",
        "plugin note (tpux-note 1.0) gave a wrong answer from provision: expected Ready, Waiting or Denied, got {",
    ),
    "provision refuses with an unknown kind": (
        "@hookimpl\ndef provision(): return Denied(Failure('oom'))",
        "plugin note (tpux-note 1.0) gave a wrong answer from provision: failure.kind: expected 'preempted',",
    ),
}


@pytest.mark.parametrize("case", ALLOCATOR)
def test_a_failing_allocator_is_tried_twice_then_the_job_fails(tpux, case):
    code, message = ALLOCATOR[case]
    install(tpux, code, LOCAL)
    job = tpux.create("tpu: {allocation_mode: note}\ncommand: {cmd: 'true'}\n")
    tpux("wait", job, code=100)
    shown = tpux.show(job)
    assert shown["failure"]["kind"] == "plugin"
    assert shown["failure"]["evidence"].startswith(message)
    [report] = [why for why in whys(tpux, job) if why.startswith(message)]
    assert report.endswith("; retrying, 1 of 2")
    tpux.until(lambda: tpux.events(job, "released"))  # something may have been created


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "@hookimpl\ndef preflight(): return [Finding('fatal', 'x')]",
            "[0].level: expected 'error', 'warning', 'note' or 'ok'",
        ),
        ("@hookimpl\ndef preflight(): return 'all is well'", "expected a list of Finding or None, got 'all is well'"),
        ("@hookimpl\ndef preflight(): raise RefreshError('who?')", "failed in preflight: RefreshError: who?"),
        ("@hookimpl\ndef resolve(): raise RefreshError('who?')", "failed in resolve: RefreshError: who?"),
        ("@hookimpl\ndef resolve(): return ['zone']", "gave a wrong answer from resolve: expected"),
        ("@hookimpl\ndef config_section(): return dict", "got <class 'dict'>"),
    ],
)
def test_before_a_job_exists_the_command_reports_the_plugin(tpux, code, message):
    install(tpux, code + "\n@hookimpl\ndef check(): yield sh('true')")
    done = tpux("run", tpux.config(SETUP + "note: {key: 1}\n" * ("section" in code)), code=None)
    assert done.returncode in {1, 2}
    assert message in done.stderr
    assert "plugin note (tpux-note 1.0)" in done.stderr
    assert not tpux.json("list")


@pytest.mark.parametrize(
    ("answer", "message"),
    representative(
        [
            ("return [Failure('oom')]", "gave a wrong answer from classify_failure: [0].kind: expected 'preempted',"),
            ("return [Failure('quota', worker=1)]", "[0].worker: expected the number of a worker, less than 1, got 1"),
            ("raise RefreshError('who?')", "failed in classify_failure: RefreshError: who?"),
            ("raise KeyboardInterrupt", "failed in classify_failure: KeyboardInterrupt"),
        ],
        2,
    ),
)
def test_a_failing_detector_is_left_out(tpux, answer, message):
    install(tpux, f"@hookimpl\ndef classify_failure(): {answer}")
    job = tpux.create("command: {cmd: 'exit 3'}\n")
    tpux("wait", job, code=100)
    assert tpux.show(job)["failure"]["kind"] == "program"
    reports = [why for why in whys(tpux, job) if message in why]
    assert "retrying, 1 of 3" in reports[0]
    assert "continuing without it" in reports[-1]
    tpux("resume", job)
    tpux("wait", job, code=100)


def test_a_failing_wrapper_of_detectors_is_reported(tpux):
    install(tpux, "@hookimpl(wrapper=True)\ndef classify_failure():\n    yield\n    raise RefreshError('who?')")
    job = tpux.create("command: {cmd: 'echo \"ValueError: no\"; exit 3'}\n")
    tpux("wait", job, code=100)
    assert tpux.show(job)["failure"]["kind"] == "program"
    reports = [why for why in whys(tpux, job) if "its wrapper of classify_failure of plugin" in why]
    assert reports
    assert all("plugin note (tpux-note 1.0)" in why for why in reports)
    assert "continuing without it" in reports[-1]


def test_a_failure_without_evidence_is_shown_with_its_kind(tpux):
    install(tpux, "@hookimpl\ndef classify_failure(): return [Failure('quota')]")
    job = tpux.create("command: {cmd: 'exit 3'}\n")
    tpux("wait", job, code=100)
    assert tpux.show(job)["why"] == "quota"
    assert tpux("list").stdout.splitlines()[-1].endswith(" quota")


def test_a_failing_solver_is_left_out(tpux):
    install(
        tpux,
        "@hookimpl\ndef classify_failure(): return [Failure('tpu-busy')]\n"
        "@hookimpl\ndef solve():\n    yield sh('true')\n    raise RefreshError('who?')",
    )
    job = tpux.create("job: {rule: resume}\ncommand: {cmd: '[ $TPUX_ATTEMPT = 2 ]'}\n")
    tpux("wait", job)
    reports = whys(tpux, job)
    assert any("failed in solve: RefreshError: who?; retrying, 1 of 3" in why for why in reports), (reports, tpux.log())
    assert any("failed in solve: RefreshError: who?; continuing without it" in why for why in reports), reports


def test_a_failing_rule_plugin_fails_the_job_with_its_own_failure(tpux):
    install(tpux, "@hookimpl\ndef on_preempt(): return Action('restart')")
    job = tpux.create("job: {rule: note}\ncommand: {cmd: 'exit 3'}\n")
    tpux("wait", job, code=100)
    shown = tpux.show(job)
    assert shown["failure"]["kind"] == "program"
    assert "gave a wrong answer from on_preempt: restart: expected" in shown["why"]


def test_inspect_that_raises_ends_no_attempt(tpux):
    place = install(tpux, "@hookimpl\ndef inspect(): raise RefreshError('reauthenticate')", LOCAL)
    job = tpux.create(
        f"tpu: {{allocation_mode: note}}\ncommand: {{cmd: 'until [ -e {place}/go ]; do sleep 0.1; done'}}\n"
    )
    until_reported(tpux, job, "plugin note (tpux-note 1.0) failed in inspect: RefreshError: reauthenticate; retrying")
    (place / "go").touch()
    tpux("wait", job)
    assert len(tpux.events(job, "attempt-started")) == 1


@pytest.mark.system
def test_a_transport_that_raises_ends_no_attempt(tpux):
    code = """
class Host:
    def __init__(self, host): self._host, self.worker = host, host.worker
    def __getattr__(self, name):
        if (HERE / "broken").exists(): raise RefreshError("reauthenticate")
        return getattr(self._host, name)
    def close(self): pass

@hookimpl
def connect(worker, job):
    if not (HERE / "connected").exists(): raise RefreshError("no tunnel")
    return Host(tpux_local.connect(worker, job))
"""
    place = install(tpux, code, LOCAL.replace("tpux_local.provision(request)", "through_note(request)") + THROUGH_NOTE)
    job = tpux.create(
        "tpu: {allocation_mode: note}\nwatch: {lost_after: 1s, poll_every: 0.2s}\n"
        f"command: {{cmd: 'echo on; until [ -e {place}/go ]; do sleep 0.1; done'}}\n"
    )
    until_reported(tpux, job, "plugin note (tpux-note 1.0) failed in connect: RefreshError: no tunnel; retrying")
    (place / "connected").touch()
    tpux.until_state(job, "running")
    tpux.until(lambda: tpux.output_so_far(job) == b"on\n")
    (place / "broken").touch()
    until_reported(tpux, job, "plugin note (tpux-note 1.0) failed in connect: RefreshError: reauthenticate; retrying")
    log = next(tpux.home.glob("supervisor/*/log"))
    tpux.until(lambda: log.read_text().count("RefreshError: reauthenticate") > 3)
    assert tpux.show(job)["state"] == "running"
    failed = tpux("exec", job, "true", code=None)
    assert "failed in connect: RefreshError: reauthenticate" in failed.stderr
    (place / "broken").unlink()
    (place / "go").touch()
    tpux("wait", job)
    assert len(tpux.events(job, "attempt-started")) == 1


THROUGH_NOTE = """
def through_note(request):
    answer = tpux_local.provision(request)
    return replace(answer, allocation=replace(answer.allocation, transport="note"))
"""


def test_release_that_raises_is_repeated_until_it_succeeds(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    code = """
@hookimpl
def release(request):
    if not (HERE / "go").exists(): raise RefreshError("reauthenticate")
    return tpux_local.release(request)
"""
    place = install(tpux, code, LOCAL)
    job = tpux.create("tpu: {allocation_mode: note}\ncommand: {cmd: 'true'}\n")
    tpux("wait", job)
    tpux("stop", job, "--release", "--no-wait")
    until_reported(tpux, job, "plugin note (tpux-note 1.0) failed in release: RefreshError: reauthenticate; retrying")
    (place / "go").touch()
    tpux.until(lambda: tpux.events(job, "released"))


@pytest.mark.system
def test_a_plugin_that_is_broken_when_the_supervisor_starts_fails_no_job_that_has_machines(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    good = "@hookimpl\ndef setup(): yield sh('true')"
    place = install(tpux, good)
    job = tpux.create(SETUP.replace("echo hello", f"'echo up; until [ -e {place}/go ]; do sleep 0.1; done'"))
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    tpux("supervisor", "stop")
    plugin = place / "tpux_note.py"
    text = plugin.read_text()
    plugin.write_text("a syntax error\n")
    tpux("supervisor", "start")
    log = next(tpux.home.glob("supervisor/*/log"))
    tpux.until(lambda: f"job {job}: error 9 in a row: the plugin note is broken" in log.read_text())
    shown = tpux.show(job)
    assert shown["state"] == "running"
    assert "the plugin note is broken: SyntaxError: invalid syntax" in shown["why"]
    assert "repair or reinstall the plugin; retrying" in shown["why"]
    plugin.write_text(text)
    until_reported(tpux, job, "attempt 1")
    (place / "go").touch()
    tpux("wait", job)
    assert len(tpux.events(job, "attempt-started")) == 1


# --- nothing is left running --------------------------------------------------------------------


def alive(tpux, job: str) -> list[str]:
    """Return the processes that work in the home directories of a job's workers."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = (process / "cwd").readlink()
            if where.is_relative_to(tpux.directory(job) / "machines") and tpux.alive(int(process.name)):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_run_that_raises_on_one_worker_leaves_nothing_running_on_the_others(tpux):
    install(
        tpux,
        "@hookimpl\ndef run(command, worker):\n    if worker.index: raise ValueError('bad image')\n    return command",
    )
    job = tpux.create("tpu: {accelerator: v4-16}\n" + SETUP.replace("echo hello", "sleep 1000"))
    tpux("wait", job, code=100)
    assert "  run (note): ValueError: bad image" in tpux("list").stdout
    assert tpux.show(job)["failure"]["worker"] == 1
    assert tpux.show(job)["failure"]["kind"] == "plugin"
    assert alive(tpux, job) == []


def test_run_that_raises_does_not_prevent_a_stop(tpux):
    place = install(
        tpux,
        "@hookimpl\ndef run(command):\n    if (HERE / 'broken').exists(): raise ValueError('bad image')\n"
        "    return command",
    )
    job = tpux.create(SETUP.replace("echo hello", "sleep 1000"))
    tpux.until_state(job, "running")
    tpux.until(lambda: tpux.events(job, "attempt-running"))
    (place / "broken").touch()
    tpux("stop", job)
    tpux("wait", job, code=103)
    assert alive(tpux, job) == []


@pytest.mark.parametrize("passed", ["", "*(f'{name}={value}' for name, value in command.env.items()), "])
def test_stop_ends_every_process_of_an_environment_that_clears_variables(tpux, passed):
    install(
        tpux,
        f"@hookimpl\ndef run(command):\n"
        f"    return replace(command, argv=('env', '-i', {passed}'PATH=/usr/bin:/bin', 'bash', command.script))",
    )
    script = "setsid sleep 1000 & (setsid bash -c 'sleep 1001; true' & sleep 1002) & echo on; trap '' TERM; sleep 1003"
    text = "setup: {modules: [note]}\ncommand:\n  cmd: |\n    " + script + "\n  grace_period: 1s\n"
    job = tpux.create(text)
    tpux.until(lambda: tpux.output_so_far(job) == b"on\n")
    tpux.until(lambda: len([line for line in alive(tpux, job) if line.startswith("sleep")]) == 4)
    tpux("stop", job)
    tpux("wait", job, code=103)
    assert alive(tpux, job) == []


def test_daemons_of_a_program_that_ended_are_found_by_the_variables_in_its_command(tpux):
    install(
        tpux,
        "@hookimpl\ndef run(command):\n"
        "    kept = [f'{name}={value}' for name, value in command.env.items()]\n"
        "    return replace(command, argv=('env', '-i', *kept, 'PATH=/usr/bin:/bin', 'bash', command.script), env={})",
    )
    job = tpux.create(SETUP.replace("echo hello", "(setsid sleep 1000 &)"), "command.allow_left=[sleep]")
    tpux("wait", job)
    assert alive(tpux, job) == []


# --- a module without a check -------------------------------------------------------------------


def test_a_module_without_a_check_is_ready_where_it_was_set_up(tpux):
    install(tpux, "@hookimpl\ndef setup():\n    yield sh('echo done >> set-up')")
    job = tpux.create("setup: {modules: [note]}\ncommand: {cmd: cat set-up; exit 1}\n")
    tpux("wait", job, code=100)
    assert tpux.output(job) == b"done\n"
    tpux("check", job)
    tpux("rerun", job)
    tpux("wait", job, code=100)
    assert tpux.output(job, attempt=2) == b"done\n"
    (tpux.machines(job) / "worker-0/.tpux/ready/note").unlink()
    done = tpux("check", job, "--json", code=1)
    assert "not set up" in json.dumps(json.loads(done.stdout))


# --- a transport's connections ------------------------------------------------------------------


@pytest.mark.system
def test_a_wrong_result_of_a_connection_is_reported_and_ends_no_attempt(tpux):
    code = """
class Host:
    def __init__(self, host): self._host, self.worker = host, host.worker
    def close(self): pass
    def __getattr__(self, name):
        if (HERE / f"no-{name}").exists(): return lambda *_, **__: None
        return getattr(self._host, name)

@hookimpl
def connect(worker, job): return Host(tpux_local.connect(worker, job))
"""
    place = install(tpux, code + THROUGH_NOTE, LOCAL.replace("tpux_local.provision(request)", "through_note(request)"))
    (place / "no-run").touch()
    job = tpux.create(
        "tpu: {allocation_mode: note}\nwatch: {lost_after: 1s, poll_every: 0.2s}\n"
        f"command: {{cmd: 'until [ -e {place}/go ]; do sleep 0.1; done; echo done'}}\n"
    )
    until_reported(
        tpux, job, "plugin note (tpux-note 1.0) gave a wrong answer from Host.run: expected Result, got None"
    )
    (place / "no-run").unlink()
    tpux.until(lambda: tpux.events(job, "attempt-running"))
    (place / "no-read").touch()
    until_reported(
        tpux, job, "plugin note (tpux-note 1.0) gave a wrong answer from Host.read: expected a list of bytes"
    )
    (place / "no-follow").touch()
    failed = tpux("exec", job, "true", code=255)
    assert "plugin note (tpux-note 1.0) gave a wrong answer from Host.follow: expected int, got None" in failed.stderr
    (place / "no-read").unlink()
    (place / "go").touch()
    tpux("wait", job)
    assert len(tpux.events(job, "attempt-started")) == 1
    assert tpux.output(job) == b"done\n"


# --- commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "{}['zone']",
            "command note (tpux-note 1.0): KeyError: 'zone'\n  hint: a bug in the command: report it to the",
        ),
        ("raise TpuxError('no zone', hint='set one')", "error: no zone\n  hint: set one"),
        ("open('/nonexistent/file')", "error: /nonexistent/file: No such file or directory"),
    ],
)
def test_an_exception_in_a_command_of_a_plugin_names_the_command_and_its_dist(tpux, body, message):
    head = "from tpux import TpuxError\nfrom tpux.api import new_app\napp = new_app()\n@app.command()\n"
    tpux.plugin("tpux-note", f"{head}def note(): {body}", entries="note = tpux_note:app", group="tpux.commands")
    done = tpux("note", code=1)
    assert message in done.stderr
    if "tpux-note" in message:
        assert "KeyError" in Path(done.stderr.split()[-1]).read_text()


def test_a_command_of_a_plugin_that_typer_cannot_make_names_the_command_and_its_dist(tpux):
    head = "from tpux.api import new_app\napp = new_app()\n"
    tpux.plugin("tpux-note", head, entries="note = tpux_note:app", group="tpux.commands")
    for words in (("note",), ("note", "--help")):
        done = tpux(*words, code=1)
        assert (
            "command note (tpux-note 1.0): RuntimeError: Could not get a command for this Typer instance" in done.stderr
        )
        assert "hint: a bug in the command: report it to the authors of tpux-note with " in done.stderr


# --- output -------------------------------------------------------------------------------------


def test_output_of_child_processes_of_a_hook_does_not_reach_stdout(tpux):
    install(
        tpux,
        "import os, subprocess\nsubprocess.run(['echo', 'from the import'])\n"
        "@hookimpl\ndef resolve(): os.system('echo from resolve')\n"
        "@hookimpl\ndef preflight():\n    subprocess.run(['echo', 'from preflight'])\n    os.write(1, b'written')\n"
        "@hookimpl\ndef check(): yield sh('true')",
    )
    done = tpux("create", tpux.config(SETUP), "--json")
    job = json.loads(done.stdout)["id"]
    for text in ("from the import", "from resolve", "from preflight", "written"):
        assert text in done.stderr
    tpux("wait", job)


def test_an_exception_whose_text_is_no_unicode_is_reported(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    install(tpux, "@hookimpl\ndef setup(): raise ValueError(b'no file \\xff'.decode(errors='surrogateescape'))")
    job = tpux.create(SETUP)
    tpux("wait", job, code=100)
    assert "failed in setup: ValueError: no file \udcff" in tpux.show(job)["failure"]["evidence"]


def test_only_a_broken_plugin_that_may_find_machines_is_named_where_none_are_found(tpux):
    tpux.env["TPUX_DISABLED_PLUGINS"] = "tpu-vm,queued-resources"
    tpux.plugin(
        "tpux-misspelt",
        "from tpux import hookimpl\n@hookimpl\ndef no_hook(): ...\n",
        entries="misspelt = tpux_misspelt",
    )
    missing = "tpux: error: there is no job nope, and no TPU of that name"
    for command in (["exec", "nope", "--", "ls"], ["diagnose", "nope"]):
        assert f"{missing}\n" in tpux(*command, code=2).stderr
    code = "from tpux import hookimpl\nimport no_such_module\n@hookimpl\ndef find_machines(request): ...\n"
    tpux.plugin("tpux-cloud", code, entries="cloud = tpux_cloud")
    done = tpux("exec", "nope", "--", "ls", code=2)
    assert f"{missing} (not asked, because broken: cloud)\n" in done.stderr
    assert done.stderr.endswith("; tpux plugins list\n")
    assert "no_such_module" in tpux("plugins", "list").stderr


BROKEN = "import no_such_library\n# on_event classify_failure\n"


def test_a_broken_detector_is_named_before_the_job_and_under_its_failure(tpux):
    """It would be skipped otherwise, and what it knows would be missing without a word."""
    tpux.plugin("tpux-oom", BROKEN, entries="oom = tpux_oom")
    message = "the plugin oom is broken: the module 'no_such_library' is not installed"
    config = tpux.config("command: {cmd: exit 3}\njob: {rule: pass}\n")
    assert tpux("preflight", config).stderr.count(f"warning: {message}; jobs do without it") == 1
    done = tpux("run", config, code=100)
    assert done.stderr.count(f"warning: {message}; jobs do without it") == 1
    job = tpux.json("list")[0]["id"]
    assert [why for why in whys(tpux, job) if why.startswith(message)] == [f"{message}; continuing without it"]
    assert tpux.show(job)["failure"]["hint"].endswith("; not asked, because broken: oom (tpux plugins list)")
    assert "not asked, because broken: oom" in tpux("show", job).stdout
    assert message in tpux("supervisor", "status").stdout
    assert tpux.json("supervisor", "status")["broken_plugins"] == {"oom": message}
    unaffected = tpux.config("plugins: {disabled: [oom]}\ncommand: {cmd: exit 3}\njob: {rule: pass}\n", "other.yaml")
    assert "oom" not in tpux("run", unaffected, code=100).stderr


def test_a_broken_search_for_checkpoints_is_named_before_the_job(runner):
    runner.plugin("tpux-oom", "import no_such_library\n# find_checkpoint\n", entries="oom = tpux_oom")
    done = runner("preflight", runner.config("command: {cmd: 'true'}\n"))
    assert done.stderr.count("warning: the plugin oom is broken: the module 'no_such_library' is not installed") == 1
