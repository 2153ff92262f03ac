"""Arguments of resumed attempts that would not reach the program are errors when the job is created."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpux.config.script import insert_arguments, is_one_command

ONE_COMMAND = [
    "python train.py",
    "python train.py\n\n",
    "  exec python train.py",
    "python train.py \\\n  --steps 1",
    "python train.py > log 2>&1",
    "python train.py &> log < input",
    "python -c 'a | b\nc'",
    'python "${x:-a}" "$(nproc) | \\"; $x"',
    "python train.py --host $(hostname) $HOME/${#x} $#",
    "A=1 B='x y' python train.py --tag=run#1",
    "! time -p python train.py \\; a\\'b",
    "bash train.sh",
    "./a.sh -c",
]
SCRIPTS = [
    "cd src && python train.py",
    "export A=1; python train.py",
    "module load x\npython train.py",
    "python train.py 2>&1 | tee log",
    "python train.py |& tee log",
    "python train.py || exit 1",
    "python train.py &",
    "python train.py \\",
    "python train.py \\\\\nwait",
    "python train.py # the training",
    "# the training\npython train.py",
    "python train.py >#log",
    "for i in 1 2; do python train.py; done",
    "( python train.py )",
    "x=(a b)",
    "python train.py < <(cat list)",
    "bash <<EOF\nit's\nEOF",
    "python <<< a",
    "python train.py >",
    "echo it's",
    'python "$(echo "it\'s")" ; echo \'a\'',
    "python `nproc`",
    "python $'it\\'s; a'",
    "bash -c 'python train.py'",
    "A='1 2' exec /bin/sh -o pipefail -ec 'python train.py'",
    "srun 'bash' -c 'python train.py'",
    "eval 'python train.py | tee log'",
]
PLACED = [
    "python train.py ${resume_args} | tee log",
    "cd src && python train.py ${resume_args}",
    "bash -c 'python train.py ${resume_args}'",
    "python train.py $TPUX_RESUME_ARGS | tee log",
    "for i in 1; do python train.py ${TPUX_RESUME_ARGS}; done",
    "cd src; export TPUX_RESUME_ARGS; python train.py",
    "echo 'run #1' \"run # 2\" \\# $# ${#x} a#b ${resume_args} | tee log",
    "# flags: don't\npython train.py ${resume_args}",
    "echo it's ${resume_args}",
]
NOT_PLACED = [
    "# add ${resume_args} here\npython train.py &",
    "python train.py | tee log  # $TPUX_RESUME_ARGS",
    "echo 'a' \"b\";# ${resume_args}",
    "python train.py \\${resume_args} | tee log",
    "python train.py $MY_TPUX_RESUME_ARGS ${resume_args:-} | tee log",
    "python train.py ${stage_args} | tee log",
]


def config(script: str, key: str = "resume_args") -> str:
    return f"command:\n  cmd: {json.dumps(script)}\n  {key}: --load=${{job.previous_output_dir}}\n"


@pytest.mark.parametrize("script", [*ONE_COMMAND, *PLACED])
def test_arguments_that_reach_the_program(read, script):
    read(config(script))


@pytest.mark.parametrize("script", [*SCRIPTS, *NOT_PLACED])
def test_arguments_that_might_be_lost(problems, script):
    [problem] = problems(config(script))
    where = "c.yaml:3:16: command.resume_args cannot be appended to command.cmd: it is not one simple command"
    assert problem.startswith(where)
    assert "write ${resume_args} in it where the arguments belong" in problem


def test_scripts_without_arguments_may_be_anything(read):
    for script in SCRIPTS:
        read(f"command: {{cmd: {json.dumps(script)}}}\n")


def test_the_script_that_is_resumed_is_the_one_that_counts(read, problems):
    read(config("python train.py | tee log") + "  resume_cmd: python resume.py\n")
    [problem] = problems(config("python train.py") + "  resume_cmd: python resume.py &\n")
    assert "command.resume_args cannot be appended to command.resume_cmd" in problem
    assert len(problems(config("a &", "stage_args") + "  resume_cmd: b &\n")) == 2


def test_each_key_has_its_own_place(read, problems):
    both = "  stage_args: --stage=${job.stage}\n"
    [problem] = problems(config("a ${resume_args} | b") + both)
    assert ":4:15: command.stage_args cannot be appended" in problem
    assert "write ${stage_args} in it" in problem
    read(config("a ${resume_args} ${stage_args} | b") + both)
    read(config("a $TPUX_RESUME_ARGS | b") + both)


def test_a_misspelled_variable_of_the_job_is_an_error(problems):
    [problem] = problems("command: {cmd: 'python train.py --load=${job.previous_outputdir}'}\n")
    assert "unknown variable ${job.previous_outputdir} | did you mean ${job.previous_output_dir}?" in problem


@pytest.mark.parametrize(
    ("script", "arguments", "text"),
    [
        ("a\n", {"resume_args": "-r", "stage_args": "-s"}, "a -r -s"),
        ("a\n", {"resume_args": "", "stage_args": "-s"}, "a -s"),
        ("a ${resume_args} | b\n", {"resume_args": "-r 'x y'"}, "a -r 'x y' | b\n"),
        ("a ${resume_args} | b", {"resume_args": ""}, "a  | b"),
        ("a ${resume_args}", {"resume_args": "-r", "stage_args": "-s"}, "a -r -s"),
        ("a ${stage_args} ${resume_args}", {"resume_args": "-r", "stage_args": ""}, "a  -r"),
        ("a $TPUX_RESUME_ARGS", {"resume_args": "-r", "stage_args": "-s"}, "a $TPUX_RESUME_ARGS"),
        ("resume_args=1; a ${resume_args}", {}, "resume_args=1; a ${resume_args}"),
        ("a \\${resume_args} $${resume_args}", {"resume_args": "-r"}, "a \\${resume_args} $${resume_args} -r"),
    ],
)
def test_where_the_arguments_are(script, arguments, text):
    assert insert_arguments(script, arguments) == text


BASH = shutil.which("bash") or "/bin/bash"
PIECES = st.sampled_from([*"a '\"\\$(){}#|&;<>\n`1"])


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES, max_size=12).map("".join))
def test_what_counts_as_one_command_gets_the_arguments(tmp_path: Path, rest: str) -> None:
    """As bash sees it: the program runs once, and the last of its arguments is what was appended."""
    script = f"prog x{rest}"
    if not is_one_command(script):
        return
    program = 'prog() { printf "%s\\n" "${@: -1}" >>"$CALLS"; }\n'
    calls = tmp_path / "calls"
    calls.unlink(missing_ok=True)
    (tmp_path / "a").touch()
    command = f"{program}{insert_arguments(script, {'resume_args': '--load'})}"
    variables = {"CALLS": str(calls), "PATH": "/nowhere"}
    done = subprocess.run([BASH, "-c", command], cwd=tmp_path, env=variables, capture_output=True, check=False)
    if done.returncode == 0:
        assert calls.read_text() == "--load\n", script
    else:  # bash refuses it, with and without the arguments
        assert not calls.exists(), (script, done.stderr)
