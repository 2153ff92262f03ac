from __future__ import annotations

import os
import signal
import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpux.errors import HostUnreachableError, TpuxError
from tpux.remote.process import RemoteProcess, poll, probe

if TYPE_CHECKING:
    from conftest import Here

fewer = settings(max_examples=settings.default.max_examples // 2)  # each runs bash
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


def test_a_short_run_is_one_round_trip(here: Here) -> None:
    status = here.start("echo hello; echo there >&2; exit 3")
    assert (status.phase, status.code, status.output, status.more) == ("ended", 3, b"hello\nthere\n", False)
    assert here.host.calls == 1


def test_a_signal_is_reported_as_shells_do(here: Here) -> None:
    assert here.start("kill -9 $$").code == 137
    assert here.start("exit 137", here.run("other")).code == 137


def test_a_run_that_has_ended_is_not_repeated(here: Here) -> None:
    here.start("echo once >>count; echo hello")
    status = here.start("echo once >>count; echo hello", offset=3)
    assert (status.phase, status.code, status.output) == ("ended", 0, b"lo\n")
    assert (here.home / "count").read_text() == "once\n"


def test_ten_parallel_starts_are_one(here: Here) -> None:
    with ThreadPoolExecutor(10) as pool:
        statuses = list(pool.map(lambda _: here.start("echo once >>count; sleep 0.1; echo hello"), range(10)))
    assert {(s.phase, s.code, s.output) for s in statuses} == {("ended", 0, b"hello\n")}
    assert (here.home / "count").read_text() == "once\n"


def test_a_long_run_is_running_and_then_ended(here: Here) -> None:
    status = here.start("echo begun; until [ -e go ]; do sleep 0.02; done; echo done", wait=0.1)
    assert status.phase == "running"
    assert probe(here.host, here.run(), 0).phase == "running"
    (here.home / "go").touch()
    assert here.follow(here.run()) == (0, b"begun\ndone\n")
    assert probe(here.host, here.run(), 6).output == b"done\n"


def test_a_program_that_ends_during_a_poll_loses_no_output(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    run = here.run()
    here.start("echo first; until [ -e go ]; do sleep 0.01; done; echo last", run)
    read, offset = here.host._read, 0

    def end_after(path: str, start: int) -> bytes | None:
        """Read one file; the program ends before the next one is read."""
        found = read(path, start)
        (here.home / "go").touch()
        here.until((here.home / run.exit).exists)
        return found

    here.until(lambda: poll(here.host, run, 0).output == b"first\n")
    output = b""
    monkeypatch.setattr(here.host, "_read", end_after)
    while (status := poll(here.host, run, offset)).phase != "ended":
        output += status.output
        offset = len(output)
    assert output + status.output == b"first\nlast\n"


def test_a_run_that_was_never_started_is_absent(here: Here) -> None:
    assert poll(here.host, here.run(), 0).phase == "absent"
    assert probe(here.host, here.run(), 0).phase == "absent"


def test_the_connection_breaks_between_start_and_answer(here: Here) -> None:
    script = "echo once >>count; until [ -e go ]; do sleep 0.02; done; echo done"
    for here.host.timeout in (0.3, 3.0, 30.0):  # until it has got as far as that on a busy machine too
        with pytest.raises(HostUnreachableError):
            here.start(script, wait=60)
        if (here.home / "count").exists():
            break
    here.host.timeout = None
    here.until((here.home / "count").exists)
    (here.home / "go").touch()
    assert here.start(script).output == b"done\n"
    assert (here.home / "count").read_text() == "once\n"


def test_a_truncated_script_is_not_started(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = here.host.run
    monkeypatch.setattr(here.host, "run", lambda script, stdin, timeout: whole(script, stdin=stdin[:-20]))
    with pytest.raises(TpuxError, match="failed on the worker"):
        here.start("echo hello; echo there", env={"KEY": "secret"})
    monkeypatch.undo()
    assert not (here.home / here.run().directory).exists()
    assert here.start("echo hello; echo there").output == b"hello\nthere\n"


def test_a_recorded_start_is_never_repeated(here: Here) -> None:
    directory = here.home / here.run().directory
    directory.mkdir(parents=True)
    (directory / "lock").touch()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (directory / "started").write_text(f"{boot_id} 1.00\n")
    assert here.start("touch ran").reason == "its runner was killed"
    (directory / "started").write_text("another-boot 1.00\n")
    status = here.start("touch ran")
    assert (status.phase, status.code, status.reason) == ("lost", None, "the machine was restarted")
    assert not (here.home / "ran").exists()


def test_a_killed_runner_is_a_lost_run(here: Here) -> None:
    here.start("echo once >>count; sleep 100", wait=0.05)
    here.until((here.home / "count").exists)
    [runner] = here.pids("/runner\x00")
    os.kill(runner, signal.SIGKILL)
    here.until(lambda: probe(here.host, here.run(), 0).phase == "lost")
    assert here.start("echo once >>count; sleep 100").reason == "its runner was killed"
    assert (here.home / "count").read_text() == "once\n"


def test_the_runner_survives_the_signals_that_end_a_session(here: Here) -> None:
    here.start("until [ -e go ]; do sleep 0.02; done; exit 5", wait=0.05)
    runner = here.runner(here.run())
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        os.kill(runner, number)
    (here.home / "go").touch()
    assert here.follow(here.run())[0] == 5


def test_the_lock_is_not_inherited(here: Here) -> None:
    status = here.start("setsid sleep 100 & echo done")
    assert (status.phase, status.code, status.output) == ("ended", 0, b"done\n")
    here.until(lambda: here.pids("sleep\x00100"))


def test_the_environment_of_a_program(here: Here) -> None:
    here.start(
        "grep -E 'SigIgn|SigBlk' /proc/self/status; umask; ls /proc/self/fd; readlink /proc/self/fd/0;"
        'cut -d" " -f6 /proc/$$/stat | grep -x $$; pwd; echo $TPUX_RUN_ID;'
        'grep -rE --exclude=output "KEY=.?s[e]cret" .tpux',
        env={"KEY": "secret"},
    )
    *known, home, run_id, left = here.follow(here.run())[1].decode().split("\n", 11)
    # The C library's own signals, 32 and 33, are as this machine's init left them.
    masks = {name: int(mask, 16) & ~(3 << 31) for name, mask in (line.split(":\t") for line in known[:2])}
    # What was ignored when the tests began (nohup) stays ignored, but for what Python itself ignores.
    ignored = {n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN}
    ignored -= {signal.SIGPIPE, signal.SIGXFSZ}
    assert masks == {"SigBlk": 0, "SigIgn": sum(1 << (n - 1) for n in ignored)}
    mask = os.umask(0)
    os.umask(mask)
    assert known[2] == f"{mask:04o}"
    assert known[3:8] == ["0", "1", "2", "3", "/dev/null"]  # 3 is the directory that ls reads
    assert known[8].isdecimal(), "its own session"
    assert home == str(here.home)
    assert run_id == "ab12-me-000001/1/command"
    assert left == "", "the environment does not stay on the disk"


def test_other_users_cannot_read_a_run(here: Here) -> None:
    here.start("true")
    run = here.run()
    assert (here.home / ".tpux").stat().st_mode & 0o777 == 0o700
    assert {here.file(run, name).stat().st_mode & 0o777 for name in ("script", "output", "exit")} == {0o600}


@fewer
@given(arguments=st.lists(words, max_size=4), value=words, name=st.text(string.ascii_letters, max_size=5))
def test_arguments_and_variables_are_unchanged(here: Here, arguments: list[str], value: str, name: str) -> None:
    """Without variables they are sent in another way."""
    run = here.run(f"r{os.urandom(6).hex()}")
    script = f'printf "%s\\0" "$V_{name}" "$@"'
    status = here.start(
        value, run, argv=("sh", "-c", script, "-", *arguments), env={f"V_{name}": value} if name else {}
    )
    assert status.output.decode().split("\0")[:-1] == [value if name else "", *arguments]
    assert here.file(run, "script").read_bytes() == value.encode()


def test_what_the_login_shell_exports_is_not_passed_on(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    run = here.host.run
    exported = "export id=1 program=2 script=3 wait=4 runner=5;"
    monkeypatch.setattr(here.host, "run", lambda script, **given: run(f"{exported} {script}", **given))
    status = here.start("#" * 200_000 + "\nenv", env={"KEY": "secret"})
    assert (status.code, status.output.count(b"secret")) == (0, 1)


@pytest.mark.parametrize("script", ["# " + "'" * 30_000, "# " + "语" * 30_000])
def test_a_script_that_is_longer_than_an_argument_when_it_is_quoted(here: Here, script: str) -> None:
    assert here.start(f"{script}\necho done").output == b"done\n"


@fewer
@given(script=st.binary(max_size=200).map(lambda script: script.replace(b"\0", b"\n")))
def test_the_script_arrives_unchanged(here: Here, script: bytes) -> None:
    run = here.run(f"r{os.urandom(6).hex()}")
    assert here.start(script, run, argv=("cat", run.script)).output == script


def test_a_program_that_is_not_there(here: Here) -> None:
    status = here.start("", argv=("no-such-program",))
    assert status.code == 127
    assert b"no-such-program" in status.output


@pytest.mark.parametrize("env", [{"A B": "x"}, {"A": "x\0y"}, {"": "x"}])
def test_invalid_variables(here: Here, env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="variable"):
        here.start("true", env=env)


def test_a_script_with_a_nul_is_not_started(here: Here) -> None:
    with pytest.raises(ValueError, match="NUL"):
        here.start("echo 1\0")


@pytest.mark.parametrize(
    ("job", "name"), [("a/b", "x"), ("a", ".."), ("a", "x y"), ("", "x"), ("a", "x\n"), ("a", "*x")]
)
def test_invalid_names_of_runs(job: str, name: str) -> None:
    with pytest.raises(ValueError, match="not valid in the name"):
        RemoteProcess(job, 1, name)


def test_a_worker_where_no_directory_can_be_created(here: Here) -> None:
    (here.home / ".tpux").write_text("in the way")
    with pytest.raises(TpuxError, match="failed on the worker") as error:
        here.start("true")
    assert error.value.where == "worker 0"


def test_a_worker_without_util_linux(here: Here, tmp_path: Path) -> None:
    for name in ("sh", "mkdir", "rm"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    here.host.path = str(tmp_path)
    with pytest.raises(TpuxError, match="util-linux"):
        here.start("true")


def test_output_of_the_login_shell_is_not_stored(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = here.host.run
    greeting = "echo 'Welcome to your worker!' >&2"
    monkeypatch.setattr(here.host, "run", lambda script, **more: whole(f"{greeting}\n{script}", **more))
    status = here.start("echo hello")
    assert status.output == b"hello\n"


def test_another_shell(here: Here, tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/bash")
    here.host.path = f"{tmp_path}:{here.host.path}"
    status = here.start("echo $V", env={"V": "it's"})
    assert (status.code, status.output) == (0, b"it's\n")
