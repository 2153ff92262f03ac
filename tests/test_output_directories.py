"""Output directories of jobs that name the same one, and arguments of resumed attempts."""

from __future__ import annotations

import re

import pytest

from tpux.errors import ConfigError
from tpux_testing import job, run_job

SAVES = "command: {cmd: 'echo $TPUX_JOB_ID > $TPUX_OUTPUT_DIR/saved; echo $TPUX_OUTPUT_DIR'}\n"


def ran(tpux, text, name="job.yaml", attempt=1):
    tpux("run", tpux.config(text, name))
    job = tpux.json("list", "--all")[-1]["id"]
    return tpux.output(job, attempt=attempt).decode().strip()


def test_jobs_with_one_output_dir_do_not_share_attempts(tpux):
    out = tpux.work / "out"
    text = f"job: {{name: a b/c, output_dir: {out}}}\n{SAVES}"
    first, second = ran(tpux, text), ran(tpux, text)
    assert re.fullmatch(rf"{out}/a-b-c-000001-[0-9a-f]{{4}}/attempt-1", first)
    assert re.fullmatch(rf"{out}/a-b-c-000002-[0-9a-f]{{4}}/attempt-1", second)
    assert {path.read_text() for path in out.glob("*/attempt-1/saved")} == {"000001\n", "000002\n"}


def test_two_stores_do_not_share_attempts(tpux):
    text = f"job: {{output_dir: {tpux.work}/out}}\n{SAVES}"
    first = ran(tpux, text)
    home, tpux.home = tpux.home, tpux.work / "home"
    tpux.env["TPUX_HOME"] = str(tpux.home)
    second = ran(tpux, text)
    tpux("supervisor", "stop", code=None)
    tpux.home = home
    tpux.env["TPUX_HOME"] = str(home)
    assert first != second


def test_a_relative_directory_is_in_the_home_directory_also_for_a_program_that_starts_in_its_code(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").touch()
    cmd = """
    if [ $TPUX_RESUME = 1 ]; then cat $TPUX_PREVIOUS_OUTPUT_DIR/saved; fi
    ls; echo $TPUX_ATTEMPT >$TPUX_OUTPUT_DIR/saved
    echo $TPUX_OUTPUT_DIR ${job.output_dir}
    exit 3
    """
    config = {
        "job": {"output_dir": "runs/", "name": "a", "max_restarts": {"program": 1}},
        "code": str(tmp_path / "code"),
        "command": {"cmd": cmd},
    }
    run = run_job(config)
    saved, listed, directory, *_ = run.output[0].split()
    assert (run.attempts, saved, listed) == (2, "1", "train.py")
    assert re.fullmatch(rf"(/\S+/runs/a-000001-[0-9a-f]{{4}}/attempt-2) {directory}", run.output[0].splitlines()[-1])


def test_what_an_output_directory_may_be():
    given = {"runs": "~/runs", "$HOME/runs": "~/runs", "~/runs": "~/runs", "/runs": "/runs", "gs://b/x": "gs://b/x"}
    section = {path: job({"job": {"output_dir": path}}).job.output_dir for path in given}
    assert section == given
    with pytest.raises(ConfigError, match="'~zoe/runs': write the whole path of the other user's home directory"):
        job({"job": {"output_dir": "~zoe/runs"}})


@pytest.mark.parametrize("path", ["${job.id}", "${setup_dir}", "x-${job.id}-y"])
def test_a_path_with_the_job_id_is_taken_as_it_is(tpux, path):
    text = f"job: {{output_dir: '{tpux.work}/{path}'}}\n{SAVES}"
    if "setup" in path:
        text = f"job: {{name: '{tpux.work}/${{job.id}}', output_dir: '${{job.name}}'}}\n{SAVES}"
    expected = path.replace("${job.id}", "000001").replace("${setup_dir}", "000001")
    assert ran(tpux, text) == f"{tpux.work}/{expected}/attempt-1"


def test_a_changed_config_keeps_the_directory_of_the_job(tpux):
    text = f"job: {{output_dir: {tpux.work}/out}}\ncommand: {{cmd: 'echo $TPUX_OUTPUT_DIR; exit 3'}}\n"
    tpux("run", tpux.config(text), code=100)
    first = tpux.output("000001").decode().strip()
    tpux("resume", "1", "command.grace_period=1s")
    tpux("wait", "1", code=100)
    assert tpux.output("000001", attempt=2).decode().strip() == first.replace("attempt-1", "attempt-2")
    assert tpux.events("000001", "config-changed")[0]["changed"] == ["command.grace_period"]


def test_resume_args_where_the_script_wants_them(tpux):
    text = f"""
job: {{rule: resume, max_restarts: {{program: 1}}, output_dir: '{tpux.work}/out'}}
command:
  cmd: |
    printf '<%s>' "$TPUX_RESUME_ARGS" $TPUX_RESUME_ARGS end | cat
    [ $TPUX_ATTEMPT = 2 ] || exit 3
  resume_args: --load=${{job.previous_output_dir}}
  stage_args: --stage ${{job.stage}}
"""
    tpux("run", tpux.config(text))
    assert tpux.output("000001") == b"<><end>"
    previous = next((tpux.work / "out").glob("*/attempt-1"))
    load = f"--load={previous}"
    assert tpux.output("000001", attempt=2).decode() == f"<{load} --stage 1><{load}><--stage><1><end>"
