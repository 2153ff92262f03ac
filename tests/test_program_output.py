"""Unusual programs, and commands that are hard to quote: the job's log is exactly the program's output."""

from __future__ import annotations

import hashlib
import os
import subprocess
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

FRAGMENTS = st.sampled_from(
    [
        "'",
        '"',
        "\\",
        "$",
        "${",
        "}",
        "$HOME",
        "`",
        "\n",
        " ",
        "\t",
        "é",
        "漢",
        "😀",
        "a",
        "%s",
        "!",
        "#",
        "*",
        "~",
        "&",
        ";",
        "|",
        "<<E",
    ]
)
TEXTS = st.lists(FRAGMENTS, max_size=12).map("".join)
PROGRAM = """
shown() { printf '[%s]' "$@"; printf '\\n'; }
x=plain; a=(one two)
shown TEXT "${x:-else}" "${a[1]}" "$(printf '%s' inner)" "${#a[@]}" $((1 + 2))
"""


def quoted(text: str) -> str:
    """Quote a text for bash as $'...', unlike shlex.quote, whose quoting is tested."""
    return "$'" + "".join(f"\\x{byte:02x}" for byte in text.encode()) + "'" if text else "''"


@pytest.mark.system
@pytest.mark.timeout(600)
def test_the_log_equals_the_output_of_the_shell(tpux):
    """Each program prints twelve texts, since starting a job is expensive."""
    numbers = count(1)

    @settings(
        max_examples=6,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        derandomize=True,
    )
    @given(st.lists(TEXTS, min_size=12, max_size=12), st.booleans())
    def property_(texts: list[str], literal: bool) -> None:
        single = [text.replace("'", "'\\''") for text in texts]
        script = "".join(
            PROGRAM.replace("TEXT", f"'{one}'" if literal else quoted(raw))
            for one, raw in zip(single, texts, strict=True)
        )
        block = "".join(f"    {line}\n" for line in script.split("\n"))
        number = next(numbers)
        tpux("run", tpux.config(f"command:\n  cmd: |2\n{block}", f"c{number}.yaml"))
        (tpux.work / "script").write_text(script)
        here = subprocess.run(["bash", tpux.work / "script"], capture_output=True, check=True)
        assert tpux.output(f"{number:06d}") == here.stdout + here.stderr

    property_()


def test_twenty_megabytes_at_once(tpux):
    script = "for i in 1 2 3 4 5; do head -c 4000000 /dev/urandom | tee -a $HOME/../all; done"
    job = tpux.create(f"command: {{cmd: '{script}'}}\n")
    tpux("wait", job)
    expected = (tpux.machines(job) / "all").read_bytes()
    assert hashlib.sha256(tpux.output(job)).digest() == hashlib.sha256(expected).digest()
    assert len(expected) == 20_000_000


def test_a_program_that_truncates_its_output(tpux):
    """A file that was opened again with O_TRUNC is fetched from its new start, also by another supervisor."""
    steps = ["seq 3000", "echo step 1 >/dev/stderr", "echo step 2 >/dev/stderr", "seq 9 | tee /dev/stderr", "seq 7 9"]
    steps += ["seq 2000", "seq 5000 9000 >/dev/stdout"]  # at once longer than what was fetched
    waits = [f"until [ -e $HOME/../{number} ]; do sleep 0.05; done" for number in range(len(steps))]
    script = "; ".join(part for wait, step in zip(waits, steps, strict=True) for part in (wait, step))
    job = tpux.create(f"command: {{cmd: 'echo up; {script}; until [ -e $HOME/../end ]; do sleep 0.05; done'}}\n")
    expected = b"up\n"
    tpux.until(lambda: tpux.output_so_far(job) == expected, "for the first line")
    for number, step in enumerate(steps):
        if number == 2:
            tpux.kill_supervisor()
        (tpux.machines(job) / str(number)).touch()
        if number == 2:
            tpux("supervisor", "start")
        expected += subprocess.run(["sh", "-c", step.partition(" >")[0].partition(" |")[0]], capture_output=True).stdout
        tpux.until(lambda expected=expected: tpux.output_so_far(job) == expected, f"for the output of {step}")
    (tpux.machines(job) / "end").touch()
    tpux("wait", job)
    assert tpux.output(job) == expected
    assert (tpux.directory(job) / "logs/tpu.log").read_text().count("worker 0: the program truncates its output") == 1


def test_a_log_that_lost_its_end_after_the_program_had_truncated_its_output(tpux):
    """After a power loss the log may be shorter than the offset that was recorded for it, which is synced."""
    wait = "until [ -e $HOME/../{} ]; do sleep 0.05; done"
    script = f"echo one; {wait.format('go')}; echo two >/dev/stderr; {wait.format('end')}; echo three"
    job = tpux.create(f"command: {{cmd: '{script}'}}\n")
    tpux.until(lambda: tpux.output_so_far(job) == b"one\n", "for the first line")
    (tpux.machines(job) / "go").touch()
    tpux.until(lambda: tpux.output_so_far(job) == b"one\ntwo\n", "for the second line")
    tpux.kill_supervisor()
    log = tpux.directory(job) / "logs/attempt-1/command_worker_0.log"
    os.truncate(log, 2)
    tpux("supervisor", "start")
    tpux.until(lambda: len(log.read_bytes()) > 2, "for another poll")
    (tpux.machines(job) / "end").touch()
    tpux("wait", job)
    assert log.read_bytes() == b"ontwo\nthree\n"


@pytest.mark.parametrize(
    ("script", "output", "code"),
    [
        pytest.param("exec >&- 2>&-; sleep 0.3; exit 5", b"", 100, id="closes its output"),
        pytest.param("printf 'no end'", b"no end", 0, id="no newline"),
        pytest.param("printf '\\000\\377\\200\\r\\n\\033[31m'", b"\0\xff\x80\r\n\x1b[31m", 0, id="binary"),
        pytest.param("kill -9 $$", b"", 100, id="kills itself"),
        pytest.param("cat; echo end", b"end\n", 0, id="reads stdin"),
        pytest.param("echo a; exec 2>&1; echo b >&2", b"a\nb\n", 0, id="both streams in order"),
        pytest.param("cd /; rm -rf $HOME/.tpux/runs/*/*/command/script; echo on", b"on\n", 0, id="removes its script"),
        pytest.param("ulimit -f 0; echo x > $HOME/file; echo on", None, None, id="file size limit of 0"),
    ],
)
def test_an_unusual_program(tpux, script, output, code):
    block = f"command:\n  cmd: |\n    {script}\n"
    done = tpux("run", tpux.config(block), code=code)
    if output is not None:
        assert tpux.output("000001") == output
    if code == 100:
        assert "ended: exit code" in done.stderr


def test_the_environment_variables_of_a_job(tpux):
    script = "env | grep ^TPUX_ | sort"
    text = f"tpu: {{accelerator: v4-16, node_count: 2}}\ncommand: {{cmd: '{script}', workers: [1, 2]}}\n"
    tpux("run", tpux.config(text))
    variables = dict(line.split("=", 1) for line in tpux.output("000001", 2).decode().splitlines())
    expected = {
        "JOB_ID": "000001",
        "ATTEMPT": "1",
        "STAGE": "0",
        "RESUME": "0",
        "WORKER": "2",
        "NUM_WORKERS": "2",
        "SLICE": "1",
        "NUM_SLICES": "2",
    }
    assert {name: variables[f"TPUX_{name}"] for name in expected} == expected
    assert variables["TPUX_PREVIOUS_OUTPUT_DIR"] == ""


def test_exec_prints_a_long_line_whole(tpux):
    job = tpux.create("command: {cmd: 'echo up; sleep 1000', grace_period: 0}\n")
    tpux.until(lambda: tpux.output_so_far(job) == b"up\n")
    size = 20_000_000
    done = tpux("exec", job, f"head -c {size} /dev/zero | tr '\\0' x; echo; echo end")
    assert done.stdout == f"[0] {'x' * size}\n[0] end\n"
    tpux("stop", job)
