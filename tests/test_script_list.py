"""What is wrong in a list of set-up scripts is reported at its place in the config."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("script", "line", "message"),
    [
        ("[a.sh, {path: a.sh, arg: x}]", "3:29", "arg"),
        ("[a.sh, missing.sh]", "3:16", "missing.sh"),
        ("{scripts: [a.sh], check: x}", "3:9", "check and scripts exclude each other"),
        ("{args: [x]}", "3:9", "no script is named"),
        ("[{path: a.sh, check: '${env:TOKEN}'}]", "3:30", "other users of a worker can read it"),
    ],
)
def test_what_is_wrong_in_a_list_is_reported_at_its_place(runner, tmp_path, monkeypatch, script, line, message):
    monkeypatch.setenv("TOKEN", "s3cret")
    (tmp_path / "a.sh").write_text("true\n")
    text = f"tpu: {{allocation_mode: local}}\ncommand: {{cmd: x}}\nscript: {script}\n"
    (tmp_path / "job.yaml").write_text(text)
    result = runner("config", "check", str(tmp_path / "job.yaml"), code=2)
    assert message in result.stderr
    assert f"job.yaml:{line}" in result.stderr


def test_a_job_runs_each_script_of_its_list(tpux, tmp_path):
    (tmp_path / "jax.sh").write_text('echo "jax $1" >>"$HOME/ran"\n')
    (tmp_path / "tmpfs.sh").write_text('echo "tmpfs $SIZE" >>"$HOME/ran"\ntouch "$HOME/mounted"\n')
    scripts = "[{path: jax.sh, args: [nightly]}, {path: tmpfs.sh, env: {SIZE: 1G}, check: test -e mounted}]"
    text = f"tpu: {{allocation_mode: local}}\nscript: {scripts}\ncommand: {{cmd: cat ran}}\n"
    (tmp_path / "job.yaml").write_text(text)
    tpux("run", str(tmp_path / "job.yaml"))
    assert tpux("logs", "1").stdout.splitlines()[-2:] == ["[0] jax nightly", "[0] tmpfs 1G"]
