"""What a terminal shows: a pty, rendered by a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress

import pyte
import pytest

COLUMNS, ROWS = 70, 50
ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C is then a SIGINT for this process
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A command on a pty that is its controlling terminal, unless its stdout is piped.

    Args:
        tpux: the command's store.
        args: the command's arguments.
        term: the type of the terminal.
        pipe: a shell script between the command's stdout and the terminal.
        size: columns and rows.
        command: the command.
    """

    def __init__(
        self,
        tpux,
        *args: str,
        term: str = "xterm-256color",
        pipe: str = "",
        size: tuple[int, int] = (COLUMNS, ROWS),
        command: tuple[str, ...] = (sys.executable, "-m", "tpux"),
    ) -> None:
        self._master, slave = os.openpty()
        self.written = b""
        self.resize(*size, slave)
        self._piped = subprocess.Popen(["sh", "-c", pipe], stdin=subprocess.PIPE, stdout=slave) if pipe else None
        # The end of a session's leader would hang up the terminal of the program behind the pipe.
        start = () if pipe else (sys.executable, "-c", ON_TERMINAL)
        self.process = subprocess.Popen(
            [*start, *command, *args],
            cwd=tpux.work,
            env={name: value for name, value in tpux.env.items() if name != "COLUMNS"} | {"TERM": term},
            stdin=slave,
            stdout=self._piped.stdin if self._piped else slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        if self._piped:
            self._piped.stdin.close()
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)

    def read(self) -> bool:
        """Render what was written meanwhile; False at the end."""
        with suppress(OSError):  # EIO: the other side is closed
            if data := os.read(self._master, 65536):
                self.written += data
                self._stream.feed(data)
                return True
        return False

    def resize(self, columns: int, rows: int, slave: int | None = None) -> None:
        """Change the size of the terminal: the kernel sends SIGWINCH."""
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._master if slave is None else slave, termios.TIOCSWINSZ, size)

    def until(self, pattern: str) -> None:
        deadline = time.monotonic() + 100
        while not re.search(pattern, self.text, re.MULTILINE):
            assert time.monotonic() < deadline, self.text
            assert self.read(), f"no {pattern} in\n{self.text}"

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self) -> int:
        while self.read():
            pass
        os.close(self._master)
        if self._piped:
            self._piped.wait(timeout=60)
        return self.process.wait(timeout=60)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display if line.strip()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def test_the_live_line_tears_no_output(tpux):
    script = "for i in $(seq 12); do echo step $i of 12; sleep 0.2; done; sleep 0.5; printf end"
    terminal = Terminal(tpux, "run", tpux.config(f"command: {{cmd: '{script}'}}\n"))
    terminal.until(r"^  running: attempt 1 … \d")
    assert terminal.end() == 0
    assert [line for line in terminal.lines if not line.startswith("tpux: ")] == [
        *(f"[0] step {number} of 12" for number in range(1, 13)),
        "[0] end",
    ]
    assert "…" not in terminal.text
    assert terminal.screen.cursor.x == 0, "the prompt begins a line"


@pytest.mark.system
def test_nothing_is_glued_to_output_that_another_program_prints(tpux):
    slow = "while IFS= read -r line; do sleep 0.3; printf '%s\\n' \"$line\"; done"
    script = "for i in 1 2 3; do echo step $i; sleep 0.5; done"
    terminal = Terminal(tpux, "run", tpux.config(f"command: {{cmd: '{script}'}}\n"), pipe=slow)
    assert terminal.end() == 0
    assert [line for line in terminal.lines if not line.startswith("tpux: ")] == [f"[0] step {n}" for n in (1, 2, 3)]


@pytest.mark.system
def test_a_line_that_grows_is_redrawn(tpux):
    script = """
    for i in 1 2 3 4; do printf "step $i "; sleep 0.5; done; echo end
    for i in $(seq 0 4 100); do printf "\\r%3d%%|####" $i; sleep 0.1; done; echo
    printf end
    """
    terminal = Terminal(tpux, "run", tpux.config(f"command:\n  cmd: |\n{script}\n"))
    terminal.until(r"^  \[0\] step 1 step 2 .*… \d")
    follow = tpux.popen("logs", "-f", "1")
    terminal.until(r"^  \[0\] +\d+%\|#### … \d")
    assert terminal.end() == 0
    lines = ["[0] step 1 step 2 step 3 step 4 end", "[0] 100%|####", "[0] end"]
    assert [line for line in terminal.lines if not line.startswith("tpux: ")] == lines
    shown = follow.communicate(timeout=60)[0].split(b"\n")
    assert [line[4:] for line in shown[:-1]] == tpux.output("000001").split(b"\n"), "byte for byte elsewhere"
    logs = Terminal(tpux, "logs", "1")
    assert logs.end() == 0
    assert logs.lines == lines


def test_ctrl_c_erases_the_live_line(tpux):
    terminal = Terminal(tpux, "run", tpux.config("command: {cmd: 'echo up; sleep 1000', grace_period: 1s}\n"))
    terminal.until(r"^\[0\] up")
    terminal.until(r"^  running: attempt 1 … \d")
    terminal.type(b"\x03")
    assert terminal.end() == 1
    assert "…" not in terminal.text
    assert re.search(r"^tpux: job 1 keeps running", terminal.text, re.MULTILINE)
    tpux("stop", "1")


@pytest.mark.system
def test_a_long_reason_does_not_wrap_the_live_line(tpux):
    tpux.plugin(
        "tpux-never",
        """
        from tpux import Released, Waiting, hookimpl
        @hookimpl
        def provision(request): return Waiting("等待 " * 40 + "\\x1b]52;c;eA==\\x07", 0.2)
        @hookimpl
        def release(request): return Released()
        """,
        entries="never = tpux_never",
    )
    job = tpux.create("tpu: {allocation_mode: never}\ncommand: {cmd: 'true'}\n")
    tpux.until(lambda: "等待" in str(tpux.show(job)["why"]))
    terminal = Terminal(tpux, "logs", "-f", job)
    for seconds in (1, 2, 3):
        terminal.until(rf"… .*{seconds}")
    assert sum("…" in line for line in terminal.lines) == 1
    assert "\x1b" not in tpux("list").stdout + tpux("show", job).stdout
    tpux("stop", job)
    assert terminal.end() == 103
    assert "…" not in terminal.text


def test_logs_f_begins_with_the_current_state(tpux):
    job = tpux.create("job: {name: train}\ncommand: {cmd: 'seq 100; sleep 1000', grace_period: 1s}\n")
    tpux.until(lambda: b"100" in tpux.output_so_far(job))
    follow = tpux.popen("logs", "-f", "-n", "2", job)
    assert [follow.stdout.readline() for _ in range(2)] == [b"[0] 99\n", b"[0] 100\n"]
    assert re.match(rb"tpux: job 1 \(train\): running for [\d.]+ .*: attempt 1\n", follow.stderr.readline())
    tpux("stop", job)
    assert follow.wait(timeout=60) == 103
    assert b"provisioning" not in follow.stderr.read()


@pytest.mark.system
def test_commands_that_wait_say_what_for_and_can_be_interrupted(tpux):
    script = f'trap "" TERM; echo up; until [ -e {tpux.work}/go ]; do sleep 0.1; done'
    job = tpux.create(f"command: {{cmd: '{script}', grace_period: 100s}}\n")
    tpux.until(lambda: b"up" in tpux.output_so_far(job))
    wait = tpux.popen("wait", job)
    assert wait.stderr.readline() == b"tpux: waiting for job 1: running: attempt 1\n"
    said = {
        "stop": "tpux: job 1 is still being stopped: tpux wait 1",
        "wait": "tpux: the jobs continue without this command: tpux wait 1",
    }
    for command, after in said.items():
        terminal = Terminal(tpux, command, job)
        terminal.until("^tpux: waiting for job 1: stopping")
        terminal.type(b"\x03")
        assert terminal.end() == 130
        assert terminal.lines[1:] == ["^C", after]
        assert terminal.screen.cursor.x == 0, "the prompt begins a line"
    (tpux.work / "go").touch()
    assert wait.wait(timeout=60) == 103


@pytest.mark.system
def test_delete_says_what_it_waits_for(tpux):
    job = tpux.create("command: {cmd: 'trap \"\" TERM; echo up; while :; do sleep 0.1; done', grace_period: 5s}\n")
    tpux.until(lambda: b"up" in tpux.output_so_far(job))
    assert "waiting for job 1: stopping" in tpux("delete", job, "-y").stderr


@pytest.mark.parametrize("module", ["click", "typer"])
def test_ctrl_c_during_the_imports_prints_no_traceback(tpux, module):
    tpux.create("command: {cmd: 'true'}\n")
    stub = tpux.work / "stubs"
    stub.mkdir()
    # No timing: the interrupt comes while this module is imported.
    (stub / f"{module}.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    env = {**tpux.env, "PYTHONPATH": str(stub)}
    done = subprocess.run([sys.executable, "-m", "tpux", "list"], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode in {1, 130, -signal.SIGINT}
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_ctrl_c_before_and_after_the_command_prints_no_traceback(tpux):
    interrupt = "os.kill(os.getpid(), signal.SIGINT) or time.sleep(60)"
    imports = "import atexit, os, signal, time, tpux.__main__, typer.main"
    for line in (f"typer.main.get_command = lambda app: {interrupt}", f"atexit.register(lambda: {interrupt})"):
        command = [sys.executable, "-c", f"{imports}\n{line}\ntpux.__main__.main()", "--version"]
        done = subprocess.run(command, env=tpux.env, capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_name_that_several_jobs_share(tpux):
    text = "job: {name: train}\ncommand: {cmd: 'echo $TPUX_JOB; exit 0'}\n"
    for _ in range(2):
        tpux("run", tpux.config(text))
    done = tpux("show", "train")
    assert "job:          2 train" in done.stdout
    assert "2 jobs are called train: 1 (succeeded), 2 (succeeded); using job 2" in done.stderr
    tpux("rerun", "1", code=0)
    tpux("wait", "1")
    for command in (["stop"], ["delete", "--dry-run"]):
        said = tpux(*command, "train").stderr
        assert "2 jobs are called train: 1 (succeeded), 2 (succeeded); using job 2" in said
    live = tpux.create(
        text.replace("exit 0", "sleep 1000")
        .replace("}\n", ", grace_period: 1s}\n", 2)
        .replace("train, grace_period: 1s}", "train}")
    )
    tpux("run", tpux.config(text))
    for command in (["show"], ["logs"], ["exec"]):
        tpux.until_state(live, "running")
        done = tpux(*command, "train", *(["true"] if command == ["exec"] else []))
        assert "using job 3" in done.stderr
    tpux("stop", live)


def test_worker_lists_and_the_tail_of_logs(tpux):
    text = "tpu: {accelerator: v4-32}\ncommand: {cmd: 'seq 5'}\n"
    tpux("run", "-d", tpux.config(text))
    tpux("wait", "1")
    assert tpux("logs", "1", "--worker", "1-2", "-n", "1").stdout == "[1] 5\n[2] 5\n"
    assert tpux("logs", "1", "--worker", "3", "--tail", "2").stdout == "4\n5\n"
    assert tpux("logs", "1", "--worker", "0", "--worker", "3", "-n", "9").stdout.count("\n") == 10
    assert tpux("logs", "1", "-n", "0").stdout == ""
    assert "3-x" in tpux("logs", "1", "--worker", "3-x", code=2).stderr
    assert "workers 0, 1, 2, 3" in tpux("logs", "1", "--worker", "2-7", code=2).stderr


def test_run_detached(tpux):
    done = tpux("run", "--detach", tpux.config("command: {cmd: 'sleep 1000', grace_period: 1s}\n"))
    assert done.stdout == "1\n"
    assert "created job 1" in done.stderr
    tpux("stop", "1")


def test_exec_needs_no_dashes(tpux):
    job = tpux.create("tpu: {accelerator: v4-16}\ncommand: {cmd: 'sleep 1000', grace_period: 1s}\n")
    tpux.until_state(job, "running")
    done = tpux("exec", "1", "printf", "%s.", "-la", "--worker")
    assert sorted(done.stdout.splitlines()) == ["[0] -la.--worker.", "[1] -la.--worker."]
    assert tpux("exec", "--worker", "1", "1", "printf", "-", "--", "-x").stdout == "[1] -\n"
    assert tpux("exec", "1", "--worker", "1", "--", "echo", "a  b").stdout == "[1] a  b\n"
    assert tpux("exec", "1", "--workers", "0", "echo a  b").stdout == "[0] a b\n"
    assert "has no worker 2" in tpux("exec", "1", "--worker", "1-2", "true", code=2).stderr
    endless = tpux.popen("exec", "1", "while :; do echo x; sleep 0.1; done")
    assert endless.stdout.readline().endswith(b"] x\n")
    endless.stdout.close()  # `| head -1`
    assert endless.stderr.read() == b""
    assert endless.wait(timeout=60) == 1
    tpux("stop", job)


def test_a_declined_confirmation_changes_nothing(tpux):
    job = tpux.create("command: {cmd: 'true'}\n")
    tpux("wait", job)
    terminal = Terminal(tpux, "delete", job)
    terminal.until("Delete job 1 and all its logs")
    terminal.type(b"n\n")
    assert terminal.end() == 1
    assert "tpux: cancelled: nothing was changed" in terminal.text
    assert tpux.show(job)["state"] == "succeeded"


def colours_of(terminal: Terminal, text: str) -> set[str]:
    """Return the colours in which a text is shown, wherever it is."""
    shown = set()
    for row, line in enumerate(terminal.screen.display):
        for found in re.finditer(re.escape(text), line):
            shown |= {terminal.screen.buffer[row][column].fg for column in range(*found.span())}
    return shown


def test_states_failures_and_workers_are_coloured(tpux):
    del tpux.env["NO_COLOR"]
    good = tpux.create("job: {name: good}\ntpu: {accelerator: v4-16}\ncommand: {cmd: 'echo out $TPUX_WORKER'}\n")
    bad = tpux.create("job: {name: bad}\ncommand: {cmd: 'exit 3'}\n")
    tpux("wait", good, bad, code=None)

    def shown(*words: str) -> Terminal:
        terminal = Terminal(tpux, *words)
        terminal.end()
        return terminal

    listed = shown("list")
    assert (colours_of(listed, "succeeded"), colours_of(listed, " failed ")) == ({"green"}, {"red", "default"})
    assert colours_of(listed, "good") == {"default"}
    assert "red" in colours_of(shown("show", bad), "program on worker 0")
    logs = shown("logs", good)
    assert (colours_of(logs, "[0]"), colours_of(logs, "[1]"), colours_of(logs, "out")) == (
        {"cyan"},
        {"brown"},
        {"default"},
    )
    for no_color, term in (("1", "xterm-256color"), ("", "dumb")):
        tpux.env["NO_COLOR"] = no_color
        terminal = Terminal(tpux, "list", term=term)
        terminal.end()
        assert colours_of(terminal, "failed") == {"default"}
    assert "\x1b" not in tpux("list").stdout + tpux("show", bad).stdout + tpux("logs", good).stdout


def test_a_list_fits_the_terminal(tpux):
    name = "the-name-of-a-job"
    job = tpux.create(
        f"job: {{name: {name}}}\ntpu: {{accelerator: v4-16}}\ncommand: {{cmd: 'echo {'x' * 90}; exit 3'}}\n"
    )
    tpux("wait", job, code=None)
    terminal = Terminal(tpux, "list")
    terminal.end()
    header, row = terminal.lines[:2]
    assert "FOR" in header
    assert "ZONE" not in header
    assert "STAGE" not in header
    assert name in row
    assert row.endswith("…")
    assert len(terminal.lines) == 2
    whole = tpux("list").stdout
    assert "x" * 90 in whole
    assert "…" not in whole


def test_the_plugins_fit_the_terminal(tpux):
    terminal = Terminal(tpux, "plugins", "list", size=(COLUMNS, 100))  # more rows than there are plugins and commands
    terminal.end()
    lines = terminal.lines
    assert lines[0].split() == ["NAME", "KIND", "VERSION", "STATUS", "ADDS"]
    rows = {line.split()[0]: line for line in reversed(lines[1:]) if line}
    assert rows["venv"].split()[1:6] == ["environment", "0.1.0", "ok", "Runs", "the"]
    assert rows["sweep"].split()[1:5] == ["command", "0.1.0", "ok", "Create"]
    assert rows["venv"].endswith("…")
    assert rows.keys() == {row["name"] for row in tpux.json("plugins", "list")}


def test_the_rules_fit_the_terminal(tpux):
    terminal = Terminal(tpux, "rules")
    assert terminal.end() == 0
    assert re.search(r"^FAILURE +PRE +RESUME +REAPPLY +RERUN +RESTARTS$", terminal.text, re.MULTILINE)
    assert re.search(r"^preempted +reapply, +pass +reapply, +reapply, +no limit$", terminal.text, re.MULTILINE)
    assert "reapply, then resume  pass" in tpux("rules").stdout


def test_show_says_what_one_can_do_next_in_local_time(tpux):
    tpux.env["TZ"] = "UTC-5"
    job = tpux.create("command: {cmd: 'exit 3'}\n")
    tpux("wait", job, code=None)
    shown = tpux("show", job)
    assert shown.stdout.splitlines()[-1] == "next: tpux logs 1 -n 50; tpux resume 1; tpux rerun 1; tpux delete 1"
    updated = tpux.show(job)["updated_at"]  # the time of the last line, which may be in another minute than the first
    hour = (int(updated[11:13]) + 5) % 24  # type: ignore[index]
    assert f" {hour:02}:{updated[14:16]}:" in shown.stdout  # type: ignore[index]
