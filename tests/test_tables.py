"""Tables on a terminal of 80 columns: no line of one is longer, so none is wrapped."""

from __future__ import annotations

import re

import pytest

from tests.test_terminal import Terminal
from tpux.api.text import cell_width

NAME = "a-rather-long-name-of-a-job-whose-end-is-lr-3e-4"
CONFIG = f"""
job: {{name: {NAME}, tags: [lr-sweep, baseline]}}
tpu: {{accelerator: v4-32}}
command: {{cmd: 'echo step 4200/10000 loss 2.31; echo "{"why " * 30}"; exit 3'}}
"""
SEQUENCE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def job(tpux):
    """A failed job of four workers with all that a table may show."""
    job = tpux.create(CONFIG)
    tpux("wait", job, code=100)
    tpux("rerun", job)
    tpux("wait", job, code=100)
    return job


def shown(tpux, *words: str, size: tuple[int, int] = (80, 24)) -> list[str]:
    """Return the lines that a command writes on a terminal, as they are before the terminal wraps them."""
    terminal = Terminal(tpux, *words, size=size)
    assert terminal.end() == 0, terminal.text
    return [line.rstrip("\r") for line in SEQUENCE.sub(b"", terminal.written).decode().split("\n")]


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
@pytest.mark.parametrize(
    ("words", "head"),
    [
        ("list", "ID"),
        ("list -c id,name,state,for,tpu,workers,try,progress,held,created,why,tags", "ID"),
        ("list --disk", "ID"),
        ("info", ""),
        ("history", ""),
        ("plugins list", "NAME"),
        ("rules", "FAILURE"),
        ("monitor --once", "ID"),
        ("sweep s.yaml lr=0.1,0.01,0.001 --dry-run", ""),
    ],
)
def test_no_line_of_a_table_is_wrapped(tpux, job, words, head, size):
    tpux.config("job: {name: s}\ncommand: {cmd: 'echo ${args}'}\n", "s.yaml")
    lines = [line for line in shown(tpux, *words.split(), size=size) if not line.startswith(("tpux: ", "  hint: "))]
    assert any(lines)
    assert [line for line in lines if cell_width(line) > size[0]] == []
    assert not head or any(line.split()[:1] == [head] for line in lines)


def test_show_has_as_many_rows_as_the_terminal(tpux, job):
    lines = shown(tpux, "show", job)
    rows = sum(-(-max(1, cell_width(line)) // 80) for line in lines)  # the last one is the prompt
    assert rows <= 24, "\n".join(lines)
    assert lines[-2].startswith("next: ")
    start = next(number for number, line in enumerate(lines) if line.startswith("attempts: "))
    assert [line for line in lines[start:] if cell_width(line) > 80] == [], "of attempts and of events"
    assert "0-3  4 workers  exit code 3" in "\n".join(lines), "workers that are alike are one line"
    assert len(shown(tpux, "show", job, "--events")) > 24
    assert len(shown(tpux, "show", job, size=(160, 50))) > len(lines)


def test_the_list_says_how_far_a_program_has_come_of_its_total(tpux, job):
    assert "42% 4200/10000, loss 2.31" in tpux("list").stdout
    [row] = [line for line in shown(tpux, "list") if NAME[-4:] in line]
    assert "  42% 4200/10000  " in row
    assert tpux.json("list")[0]["progress"]["total"] == 10000
    assert "progress:     42% 4200/10000, loss 2.31\n" in tpux("show", job).stdout
