"""Arguments of resumed attempts that would not reach the program are errors when the job is created."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpux.config.script import is_one_command, places_arguments

ACCEPTED = [
    "python train.py",
    "python train.py\n\n",
    "python train.py > log 2>&1",
    "python train.py &> log",
    "python train.py < input >> log",
    "python -c 'a | b; c'",
    'echo "a # b"',
    "python train.py \\\n  --steps 1",
    'python "${x:-y z}"',
    "echo it's",  # an open quote: bash reports it
    "python train.py $TPUX_RESUME_ARGS | tee log",
    "cd src\npython train.py $TPUX_RESUME_ARGS\necho done",
    "for i in 1; do python train.py ${TPUX_RESUME_ARGS}; done",
    "bash -c 'python train.py \"$@\"' bash",
    "bash -c 'python train.py $TPUX_RESUME_ARGS'",
    "bash train.sh -c fast",
    "A=1 B='x y' exec python train.py",
]
REFUSED = [
    "cd src && python train.py",
    "cd src\npython train.py",
    "export A=1; python train.py",
    "python train.py | tee log",
    "python train.py |& tee log",
    "python train.py || exit 1",
    "python train.py &",
    "python train.py;",
    "python train.py # the training",
    "python train.py\n# the end",
    "python train.py \\",
    "( python train.py )",
    "for i in 1 2; do python train.py; done",
    "bash <<EOF\nx\nEOF",
    "python train.py > >(tee log)",
    "python train.py --workers $(nproc)",
    "bash -c 'python a.py'",
    "A='1 2' exec /bin/sh -ec 'python a.py'",
    "# add $TPUX_RESUME_ARGS here\npython train.py",
    "python train.py | tee log  # ${TPUX_RESUME_ARGS}",
]


def config(script: str, key: str = "resume_args") -> str:
    import json

    return f"command:\n  cmd: {json.dumps(script)}\n  {key}: --load=${{job.previous_output_dir}}\n"


@pytest.mark.parametrize("script", ACCEPTED)
def test_arguments_that_reach_the_program(read, script):
    read(config(script))


@pytest.mark.parametrize("script", REFUSED)
def test_arguments_that_would_be_lost(problems, script):
    [problem] = problems(config(script))
    assert ":3:16: command.resume_args would be appended to command.cmd, which is more than one simple comm" in problem
    assert "write $TPUX_RESUME_ARGS in the script" in problem


@given(st.lists(st.text("ab '\"\\$()|&;<>#\n", max_size=6), max_size=4))
def test_what_is_appended_reaches_one_command(words: list[str]) -> None:
    """bash prints what it was given, whatever the quotes around it."""
    script = " ".join(["printf '<%s>'", *map(shlex.quote, words)])
    if is_one_command(script):
        printed = subprocess.run(["bash", "-c", f"{script} --load=x"], capture_output=True, text=True, check=True)
        assert printed.stdout == "".join(f"<{word}>" for word in [*words, "--load=x"])


def test_the_script_that_is_resumed_is_the_one_that_counts(read, problems):
    read(config("python train.py | tee log") + "  resume_cmd: python resume.py\n")
    [problem] = problems(config("python train.py") + "  resume_cmd: python resume.py &\n")
    assert "appended to command.resume_cmd, which is more than" in problem
    assert len(problems(config("a &", "stage_args") + "  resume_cmd: b &\n")) == 2


def test_a_misspelled_variable_of_the_job_is_an_error(problems):
    [problem] = problems("command: {cmd: 'python train.py --load=${job.previous_outputdir}'}\n")
    assert "unknown variable ${job.previous_outputdir} | did you mean ${job.previous_output_dir}?" in problem


def test_a_comment_does_not_place_the_arguments():
    assert not places_arguments("# add $TPUX_RESUME_ARGS\npython train.py")
    assert places_arguments("# flags\npython train.py $TPUX_RESUME_ARGS")
