"""What the script receives, and when it runs again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tpux.testing import ContractError, prepare

VALUES = [
    "plain",
    "",
    "two words",
    "'single' \"double\"",
    "$HOME `id` \\",
    "*",
    "~",
    "new\nline",
    "é\t",
    "-n",
    "{name}",
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "setup.sh"


def config(script: Path, content: str, **keys: object) -> dict[str, object]:
    script.write_text(content)
    return {"path": str(script), **keys}


def test_arguments_and_variables_arrive_as_they_are(script):
    variables = f"[os.environ[f'V{{i}}'] for i in range({len(VALUES)})]"
    program = f"#!{sys.executable}\nimport os, sys\nprint([sys.argv[1:], {variables}])\n"
    keys = {"args": VALUES, "env": {f"V{number}": value for number, value in enumerate(VALUES)}}
    log = prepare("script", config(script, program, **keys)).log
    assert str([VALUES, VALUES]) in log
    assert "$ # run the set-up script ..." in log


def test_the_variables_are_not_left_on_the_worker_nor_in_the_log(script):
    keys = {"env": {"TOKEN": "s3cret"}}
    content = '# not while it runs either: a stop would leave them\n[ ${#TOKEN} = 6 ] && ! grep -r "$TOKEN" ~/.tpux\n'
    assert "s3cret" not in prepare("script", config(script, content, **keys)).log


def test_a_script_that_fails_is_reported_with_its_last_line(script):
    with pytest.raises(ContractError, match="run the set-up script"):
        prepare("script", config(script, "echo no such disk; exit 3\n"))


def test_the_users_check_decides_too(script):
    with pytest.raises(ContractError, match="check the set-up"):
        prepare("script", config(script, "true\n", check="test -e mounted"))
    prepare("script", config(script, "touch mounted\n", check="test -e mounted"))
