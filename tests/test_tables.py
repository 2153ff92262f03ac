"""Tables on a terminal of 80 columns: no line of one is longer, so none is wrapped."""

from __future__ import annotations

import re

import pytest

from tests.test_terminal import Terminal
from tpux.api.text import cell_width
from tpux_emulator.testing import tpu_emulator
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place
from tpux_gcp.resource import Location

__all__ = ["tpu_emulator"]

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


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_no_tpu_of_a_list_is_wrapped(tpux, tpu_emulator, size):
    cloud = tpu_emulator(workers=False)
    tpux.env |= {"TPUX_GCP_ENDPOINT": cloud.url, "CLOUDSDK_CONFIG": str(tpux.work), "GOOGLE_CLOUD_PROJECT": "emulated"}
    api, name = Api(Place("emulated", endpoint=cloud.url)), f"{NAME}-000012"
    labels = {"tpux-job": "000012", "tpux-user": "a-user-of-this-store"}
    node = {
        "accelerator_type": "v5litepod-16",
        "runtime_version": "v2-alpha-tpuv5-lite",
        "labels": labels,
    }
    api.create_node(Location("emulated", "us-central1-a"), name, node)
    cloud.wait_for(name, "READY")
    tpux("tpu", "create", "mine", "--type", "v4-8", "--zone", "us-central2-b")
    lines = shown(tpux, "tpu", "list", size=size)
    assert [line for line in lines if cell_width(line) > size[0]] == []
    head, *rows = (line for line in lines if line and not line.startswith("tpux: "))
    assert head.split()[0] == "NAME"
    assert {row.split()[1] for row in rows} == {"us-central1-a", "us-central2-b"}
    assert all("READY" in row for row in rows)
    assert any(" 12 " in f"{row} " for row in rows), "the job of the first one"
    assert any("…" in row for row in rows) is (size[0] == 80)
