"""The spreadsheet shows who uses what, and never gets in a job's way."""

from __future__ import annotations

import getpass
import json
import subprocess
import sys
import time

import pytest

from tpux import api
from tpux_testing import listener_contract

ID = "1abcDEF_-x"
USER = getpass.getuser()


def section(sheet, more: str = "") -> str:
    return (
        f"sheets:\n  spreadsheet: https://docs.google.com/spreadsheets/d/{ID}/edit#gid=0\n"
        f"  credentials: {sheet.key_file}\n  batch: 0.2s\n  api_url: {sheet.url}\n{more}"
    )


def create(tpux, sheet, cmd: str = "true", more: str = "", name: str = "train") -> str:
    return tpux.create(f"job: {{name: {name}}}\ncommand: {{cmd: {json.dumps(cmd)}}}\n{section(sheet, more)}")


def waits(tpux) -> str:
    return f"until [ -e {tpux.work / 'GO'} ]; do sleep 0.05; done"


def go(tpux, *jobs: str) -> None:
    (tpux.work / "GO").touch()
    for job in jobs:
        tpux("wait", job)


def shown(sheet, **cells: str):
    """Return a condition: a row has these cells."""

    def check() -> bool:
        return bool(sheet.cells) and any(cells.items() <= row.items() for row in sheet.rows())

    return check


def problem(tpux) -> str:
    rows = tpux.json("supervisor", "status")["listeners"]
    return next((row["message"] for row in rows if row["name"] == "sheets"), "")


def test_the_contract_of_a_listener(sheet, monkeypatch, tmp_path):
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "home"))
    own = {"spreadsheet": ID, "credentials": str(sheet.key_file), "api_url": sheet.url, "batch": "0s"}
    listener_contract("sheets", {"sheets": own})


def test_an_empty_sheet_gets_a_head_and_a_row_for_each_machine_in_use(tpux, sheet, monkeypatch):
    monkeypatch.setenv("TPUX_HOME", str(tpux.home))
    job = create(tpux, sheet, waits(tpux), name="=1+1")
    tpux.until(shown(sheet, Status="running", User=USER, State="running"), "for the row")
    assert sheet.cells[0] == ["TPU", "Type", "Zone", "Status", "User", "Job", "State", "Updated"]
    [row] = sheet.rows()
    assert row["Job"] == f"{int(job)} =1+1", "as text, no formula"
    assert row["TPU"] == api.job(job).machines
    go(tpux, job)
    tpux("delete", job, "--yes")
    tpux.until(shown(sheet, Status="free", User="", Job="", TPU=row["TPU"]), "for the release")
    assert len(sheet.rows()) == 1


def test_rows_and_columns_of_others_stay_also_malformed_ones(tpux, sheet):
    others = [
        ["Machines of the lab"],
        [],
        ["Owner", "tpu ", "Status", "User", "Note"],
        ["lab", "kmh-v4-32", "running", "xibo", "do not touch"],
        ["only a word"],
        ["", "", "#REF!", "x"],
        ["lab", "kmh-v4-32", "a duplicate"],
    ]
    sheet.cells = [[*line] for line in others]
    job = create(tpux, sheet, waits(tpux))
    tpux.until(lambda: len(sheet.cells) == 8, "for the row")
    assert sheet.cells[:7] == others
    assert sheet.cells[7][2:4] == ["running", USER]
    sheet.cells[7] += ["mine"]
    go(tpux, job)
    tpux("delete", job, "--yes")
    tpux.until(lambda: sheet.cells[7][2:] == ["free", "", "mine"], "for the release")
    assert sheet.cells[:7] == others


def test_a_row_that_another_user_has_taken_by_then_is_not_freed(tpux, sheet):
    job = create(tpux, sheet, waits(tpux))
    tpux.until(shown(sheet, State="running"))
    sheet.cells[1][4:6] = ["someone", "7 theirs"]
    go(tpux, job)
    tpux("delete", job, "--yes")
    seen = len(sheet.requests)
    tpux.until_done()
    tpux.until(lambda: len(sheet.requests) > seen or not any(tpux.home.glob("sheets/*/*/pending/*")))
    time.sleep(1)
    assert sheet.cells[1][3:6] == ["running", "someone", "7 theirs"]


def test_a_rate_limit_is_waited_out_and_reported(tpux, sheet):
    tpux.env["TPUX_CLOCK_RATE"] = "20"
    sheet.answers = [429, 200, 200, 429, 503]
    job = create(tpux, sheet, waits(tpux))
    tpux.until(shown(sheet, State="running"), "for the row")
    go(tpux, job)


@pytest.mark.system
def test_a_revoked_key_delays_no_job_is_reported_and_may_be_replaced(tpux, sheet):
    tpux.env["TPUX_CLOCK_RATE"] = "60"
    sheet.revoked = True
    job = create(tpux, sheet, waits(tpux))
    tpux.until_state(job, "running")
    tpux.until(lambda: problem(tpux), "for the report")
    assert f"the key {sheet.key_file} is not accepted: " in problem(tpux)
    assert "PRIVATE KEY" not in problem(tpux) + tpux.log()
    sheet.revoked = False
    tpux.until(shown(sheet, State="running"), "for the row")
    go(tpux, job)


def test_changes_within_the_batch_are_few_requests(tpux, sheet):
    jobs = [
        create(tpux, sheet, waits(tpux), "  batch: 3s\n".replace("  batch", "  # batch"), f"n{i}") for i in range(3)
    ]
    tpux.until(lambda: sheet.cells and len(sheet.rows()) == 3, "for the rows")
    changes = sum(len((tpux.directory(job) / "events.jsonl").read_text().splitlines()) for job in jobs)
    assert len(sheet.requests) < changes
    go(tpux, *jobs)


def test_the_supervisor_imports_no_gspread_and_the_key_is_copied_nowhere(tpux, sheet):
    code = "import sys, tpux_sheets; print({'gspread', 'google.auth', 'requests'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
    job = create(tpux, sheet)
    tpux("wait", job)
    tpux.until_done()
    assert not [path for path in tpux.home.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]


@pytest.mark.parametrize("wrong", ["{}", "{spreadsheet: a b}", "{spreadsheet: x, columns: {foo: A}}"])
def test_a_wrong_section_is_an_error_of_the_config(tpux, wrong):
    text = f"command: {{cmd: 'true'}}\nsheets: {wrong}\n"
    assert "job.yaml:2" in tpux("config", "check", tpux.config(text), code=2).stderr
