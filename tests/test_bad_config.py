"""Invalid configs on the command line: errors with their positions, exit code 2, nothing created."""

from __future__ import annotations

import subprocess

import pytest

from tests.tiers import representative

SUCCEEDS = "command: {cmd: 'true'}\n"
FAKES = """
    from tpux import hookimpl
    @hookimpl
    def run(command):
        return command
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(b"", ["bad.yaml", "command"], id="empty"),
        pytest.param(b"command: {cmd: '\xff'}", ["bad.yaml:1:17", "UTF-8"], id="invalid UTF-8"),
        pytest.param(b"command:\n\tcmd: a\n", ["bad.yaml:2:1", "tab"], id="tab"),
        pytest.param(b"command: {cmd: a}\ncommand: {cmd: b}\n", ["bad.yaml:2:1", "command"], id="duplicate section"),
        pytest.param(
            b"command: {cmd: a}\njob: {nmae: b}\n", ["bad.yaml:2:7", "did you mean", "name"], id="unknown key"
        ),
        pytest.param(b"command: {cmd: [1]}\n", ["bad.yaml:1:16", "command.cmd"], id="wrong type"),
        pytest.param(b"command:\n", ["bad.yaml:1:1", "command.cmd"], id="null command"),
        pytest.param(
            b"command: {cmd: a}\njob: {name: '${tpu.nowhere}'}\n", ["bad.yaml:2:14", "nowhere"], id="unknown variable"
        ),
        pytest.param(
            b"command: {cmd: a}\njob: {name: '${job.name}'}\n", ["bad.yaml:2:14", "circular"], id="circular reference"
        ),
        pytest.param(
            b"command: {cmd: a, workers: 1}\n", ["bad.yaml:1:28", "worker 1", "1 worker"], id="worker out of range"
        ),
        pytest.param(b"command: {cmd: a, workers: [0, -1]}\n", ["bad.yaml:1:32"], id="a negative worker"),
        pytest.param(b"command: {cmd: a}\njob: {rule: presume}\n", ["bad.yaml:2:13", "resume"], id="unknown rule"),
        pytest.param(
            b"command: {cmd: a}\ntpu: {allocation_mode: lcal}\n", ["bad.yaml:2:24", "local"], id="unknown allocator"
        ),
        pytest.param(
            b"command: {cmd: a}\nsetup: {modules: [brevo_email]}\n",
            ["bad.yaml:2:19", "'brevo_email' is not usable as module"],
            id="a listener as a module",
        ),
        pytest.param(
            b"command: {cmd: a}\nsetup: {modules: [xyzzy]}\n", ["bad.yaml:2:19", "xyzzy"], id="unknown module"
        ),
        pytest.param(
            b"command: {cmd: a}\ntpu: {network: nope}\n",
            ["bad.yaml:2:7", "'tpu.network'"],
            id="key of another allocator",
        ),
        pytest.param(
            b"command: {cmd: a}\ntpu: {accelerator: [v4-8, v9-8]}\n",
            ["bad.yaml:2:27", "v9-8"],
            id="unknown accelerator in a list",
        ),
        pytest.param(
            b"command: {cmd: a}\ntpu: {accelerator: v9-8}\n", ["bad.yaml:2:20", "v9-8"], id="unknown accelerator"
        ),
        pytest.param(b'command: {cmd: a}\njob: {name: "\\ud800"}\n', ["bad.yaml:2"], id="lone surrogate"),
        pytest.param(b'command: {cmd: "a \\0"}\n', ["bad.yaml:1:16", "NUL"], id="NUL"),
        pytest.param(
            b'command: {cmd: a}\njob: {name: "a\\e[31mb"}\n', ["bad.yaml:2:13", "control"], id="escapes in a name"
        ),
        pytest.param(
            "\n".join(["a: &a0 [x]", *(f"b{i}: &a{i + 1} [{f'*a{i},' * 9}]" for i in range(9))]).encode(),
            ["bad.yaml:1:1:", "values", "aliases"],
            id="aliases of aliases",
        ),
    ],
)
def test_an_error_has_its_position(runner, text, words):
    (runner.work / "bad.yaml").write_bytes(text)
    done = runner("run", "bad.yaml", code=2)
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr
    assert not runner.home.exists()


def test_every_command_prints_the_same_error(runner):
    config = runner.config("command:\n")
    errors = [runner(*words, config, code=2).stderr for words in (["run"], ["create"], ["config", "check"])]
    assert len(set(errors)) == 1


def shell(tpux, script: str, *args: str | bytes, code: int = 0) -> str:
    """Run a bash script with its own current directory, in which `tpux` is the command; return its messages."""
    define = f'tpux() {{ "{tpux.python}" -m tpux.cli.main "$@"; }}; {script}'
    command = ["bash", "-c", define, "bash", *args]
    done = subprocess.run(command, cwd=tpux.work, env=tpux.env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("file", "name"),
    representative(
        [
            (b"new\nline.yaml", "new-line"),
            (b"gr\xf6\xdfe.yaml", "gr\ufffd\ufffde"),
            ("größe.yaml".encode(), "größe"),
            ("a\u200db\xa0c.yaml".encode(), "a\u200db\xa0c"),
            ("².yaml".encode(), "²"),
            ("x\u200fy.yaml".encode(), "x-y"),
            (b"--help.yaml", "help"),
        ],
        2,
    ),
)
def test_a_job_has_a_name_that_can_be_printed_and_typed_whatever_its_file_is_called(tpux, file, name):
    tpux.config(SUCCEEDS)
    assert f"created job 1 ({name})" in shell(tpux, 'mv -- job.yaml "$1"; tpux run -- "$1"', file)
    assert tpux.show(name)["name"] == name


def test_digits_are_an_id_and_no_name(tpux):
    tpux("run", tpux.config(SUCCEEDS), "job.name='63'")
    assert "there is no job 63" in tpux("show", "63", code=2).stderr
    assert tpux.show("1")["name"] == "63"
    assert "there is no job 9999" in tpux("show", "9" * 300, code=2).stderr


@pytest.mark.system
def test_a_name_with_an_equals_sign_is_no_override(tpux):
    shell(tpux, 'echo "$1" > lr=0.1.yaml; tpux run lr=0.1.yaml; tpux rerun lr=0.1 "command.cmd=exit 3"', SUCCEEDS)
    tpux("wait", "1", code=100)
    assert tpux.show("lr=0.1")["attempt"] == 2


def test_a_long_name_fits_into_the_name_of_an_output_directory(tpux):
    name = 250 * "x"
    tpux(
        "run", tpux.config("command: {cmd: 'touch $TPUX_OUTPUT_DIR/here'}\n"), f"job.name={name}", "job.output_dir=out"
    )
    assert tpux.show(name)["state"] == "succeeded"


def test_a_config_by_process_substitution(tpux):
    assert "created job 1 (config)" in shell(tpux, 'tpux run <(echo "$1")', SUCCEEDS)


def test_a_current_directory_that_was_deleted(tpux):
    script = 'mkdir gone; cd gone; rmdir ../gone; tpux "$@"'
    config, hint = str(tpux.work / tpux.config(SUCCEEDS)), "the current directory no longer exists\n  hint: change"
    shell(tpux, script, "create", config)
    assert f"code.dir: .: {hint}" in shell(tpux, script, "create", config, "code.=.", code=2)
    tpux.env["TPUX_HOME"] = "here"
    assert f"error: {hint}" in shell(tpux, script, "list", code=1)


def test_a_missing_file(runner):
    assert "nothere.yaml" in runner("run", "nothere.yaml", code=2).stderr


def test_null_sections_have_no_effect(tpux):
    text = "job:\ntpu:\nsetup:\nssh:\ngcsfuse:\ndocker:\nlocal:\ncommand: {cmd: echo fine}\n"
    assert "[0] fine" in tpux("run", tpux.config(text)).stdout


def test_two_environments_are_an_error(runner):
    runner.plugin("tpux-fakes", FAKES, entries="box = tpux_fakes\ncage = tpux_fakes")
    done = runner("run", runner.config(f"setup: {{modules: [box, cage, command]}}\n{SUCCEEDS}"), code=2)
    assert "job.yaml:1:24" in done.stderr
    assert "box" in done.stderr
    assert "cage" in done.stderr


def test_an_error_in_an_override_names_the_argument(tpux):
    config = tpux.config(SUCCEEDS)
    for argument in ("jbo.key=1", "tpu.accelerator", "job.nmae=x", "command.workers=[0,5]"):
        assert f"argument '{argument}'" in tpux("run", config, argument, code=2).stderr
    tpux("run", config, "job.name=VALUE=with=signs", "command.cmd=echo $TPUX_WORKER")
    assert tpux.json("list")[0]["name"] == "VALUE=with=signs"


def test_a_broken_plugin_is_an_error_where_it_is_selected(tpux):
    tpux.plugin("tpux-fakes", "raise ImportError('no such luck')", entries="box = tpux_fakes")
    tpux("run", tpux.config(SUCCEEDS))
    done = tpux("run", tpux.config(f"setup: {{modules: [box]}}\n{SUCCEEDS}"), code=2)
    assert "no such luck" in done.stderr
