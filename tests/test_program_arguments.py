"""Arguments of the program: in the config, on the command line, in each style, and what becomes of them later."""

from __future__ import annotations

import json

import pytest

PRINT = """python3 -c 'import sys; print(sys.argv[1:])'"""
CONFIG = f'command: {{cmd: "{PRINT}", args: {{lr: 3e-4, seed: 0x10, name: a b, gone: }}}}\n'


def create(tpux, text, *words):
    return tpux("create", tpux.config(text), *words).stdout.strip()


def output(tpux, job, attempt):
    return tpux.output(tpux.show(job)["id"], attempt=attempt)


def words(tpux, job, attempt=None):
    tpux("wait", job)
    return output(tpux, job, attempt or 1).decode().strip()


def test_the_config_and_the_command_line_both_reach_the_program_as_they_are_written(tpux):
    job = tpux.create(
        CONFIG, "lr=1e-4", "optim.beta=0.90", "layers=[1, 2]", "text=a: '$HOME'; x", "color=#f00", "x=null"
    )
    given = ["--lr=1e-4", "--seed=0x10", "--name=a b", "--optim.beta=0.90", "--layers=[1, 2]", "--text=a: '$HOME'; x"]
    assert words(tpux, job) == str([*given, "--color=#f00", "--x=null"])
    assert "lr=1e-4 seed=0x10 'name=a b'" in tpux("show", job).stdout
    assert tpux.show(job)["arguments"]["args"]["optim.beta"] == "0.90"


def test_the_command_says_what_it_took(tpux):
    done = tpux("create", tpux.config(CONFIG), "batch=256", "job.name=x", "--", "--flag", "tpu.zone=a")
    assert "note: arguments of the program: lr=3e-4 seed=0x10 'name=a b' batch=256 --flag tpu.zone=a\n" in done.stderr
    assert words(tpux, "x").endswith("'--batch=256', '--flag', 'tpu.zone=a']")


def test_what_follows_two_dashes_is_not_touched(tpux):
    job = create(
        tpux, CONFIG, "seed=", "name=", "lr=", "--", "--", "-x", "${job.name}", "$HOME", "it's", "", "a=${job.attempt}"
    )
    assert words(tpux, job) == str(["--", "-x", "${job.name}", "$HOME", "it's", "", "a=${job.attempt}"])


@pytest.mark.parametrize(
    ("style", "shown"),
    [
        ("--{key} {value}", ["--lr", "1e-4", "--a.b", "x y"]),
        ("{key}={value}", ["lr=1e-4", "a.b=x y"]),
    ],
)
def test_the_other_styles(tpux, style, shown):
    text = f"command: {{cmd: \"{PRINT}\", args_style: '{style}', args: {{lr: 1, a: {{b: c}}}}}}\n"
    assert words(tpux, tpux.create(text, "lr=1e-4", "a.b=x y")) == str(shown)


def test_a_file_of_json_keeps_types_and_structure(tpux):
    cmd = "cat $TPUX_ARGS_FILE; stat -c %a $TPUX_ARGS_FILE"
    text = f"command: {{cmd: '{cmd}', args_style: json, args: {{a: {{b: [1, x]}}, c: false, e: }}}}\n"
    lines = words(tpux, tpux.create(text, "lr=1e-4", "a.d=1.5", "n=null", "where=${job.attempt}")).splitlines()
    assert json.loads(lines[0]) == {"a": {"b": [1, "x"], "d": 1.5}, "c": False, "lr": 1e-4, "n": None, "where": "1"}
    assert lines[1] == "600"


def test_they_stand_where_the_script_has_them(tpux):
    text = "command: {cmd: 'set -u; echo begin ${args} end | cat', args: {}}\n"
    assert words(tpux, tpux.create(text)) == "begin end"
    assert words(tpux, tpux.create(text, "out=${job.output_dir}/x", "job.output_dir=/tmp/it's")).startswith(
        "begin --out=/tmp/it's/"
    )


def test_a_script_that_would_not_get_them_is_an_error(tpux):
    config = tpux.config("command: {cmd: 'echo a | cat'}\n")
    tpux("config", "check", config)
    error = tpux("config", "check", config, "lr=1", code=2).stderr
    assert "argument 'lr=1': command.args cannot be appended to command.cmd: it is not one simple command" in error
    assert "write ${args} in it where the arguments belong" in error
    quoted = tpux.config("command: {cmd: 'bash -c \"echo ${args}\"'}\n")
    assert "${args} is within quotes" in tpux("config", "check", quoted, "lr=1", code=2).stderr


def test_which_words_are_the_config_s(tpux):
    config = tpux.config(CONFIG)
    said = tpux("config", "check", config, "code=.").stderr
    assert (
        "warning: argument 'code=.': code=... is an argument of the program, and changes nothing of the config" in said
    )
    assert "the section is code.=..., a key of it code.KEY=" in said
    for typo in ("tp.zone=a", "comand.cmd=x", "jbo.name=x", "tpux.zone=a"):
        assert f"unknown section '{typo.partition('.')[0]}'" in tpux("config", "check", config, typo, code=2).stderr
    tpux("config", "check", config, "optimizer.lr=1", "model/layers=2", "+trainer.x=1", "~x=1")
    assert "section.key=value or key=value" in tpux("config", "check", config, "word", code=2).stderr
    assert "x: file not found" in tpux("create", "--", "x", code=2).stderr


def test_a_warning_about_an_argument_is_said_where_it_was_typed(tpux):
    text, warning = "command: {cmd: 'echo ${args}; exit 3'}\n", "name=... is an argument of the program"
    said = tpux("create", tpux.config(text), "name=x").stderr
    assert warning in said
    tpux("wait", "1", code=100)
    said = tpux("rerun", "1", "lr=1").stderr
    assert "arguments of the program: name=x lr=1" in said
    assert warning not in said
    tpux("wait", "1", code=100)
    said = tpux("rerun", "1", "zone=a").stderr
    assert "zone=... is an argument of the program" in said
    assert warning not in said


def test_a_secret_is_refused(tpux):
    tpux.env["KEY"] = "very-secret"
    error = tpux("config", "check", tpux.config(CONFIG), "key=${env:KEY}", code=2).stderr
    assert "command.args cannot have the secret ${env:KEY}" in error
    assert "very-secret" not in error


def test_a_resume_and_a_rerun_change_them(tpux):
    job = create(tpux, "command: {cmd: 'echo ${args}; exit 3', args: {lr: 1}}\n", "bs=2", "--", "a", "b=1")
    tpux("wait", job, code=100)
    assert "arguments of the program: lr=0.5 bs=2 a b=1" in tpux("rerun", job, "lr=0.5").stderr
    tpux("wait", job, code=100)
    assert output(tpux, job, 2) == b"--lr=0.5 --bs=2 a b=1\n"
    tpux("resume", job, "new=x", "--", "c")
    tpux("wait", job, code=100)
    assert output(tpux, job, 3) == b"--lr=0.5 --bs=2 --new=x c\n"
    tpux("rerun", job)
    tpux("wait", job, code=100)
    assert output(tpux, job, 4) == b"--lr=0.5 --bs=2 --new=x c\n"
