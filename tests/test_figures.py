"""The page of reliability shows the figures of each run."""

from __future__ import annotations

import json

from tests import figures, json_lines
from tests.simulation import results


def test_a_run_replaces_its_own_figures_and_the_page(tmp_path):
    data, page = tmp_path / "figures.json", tmp_path / "page.md"
    data.write_text(
        json.dumps(
            {"a": {"date": "2020-01-01", "figures": {"old": 1}}, "b": {"date": "2020-01-02", "figures": {"kept": 2}}}
        )
    )
    figures.record("a", {"new": 3, "seed": "x"}, data=data, page=page)
    assert list(figures.read(data)) == ["a", "b"]
    shown = [line for line in page.read_text().splitlines() if line.startswith("| `make")]
    assert shown[0].endswith(" | new 3, seed x |")
    assert "of other code" not in shown[0]
    assert shown[1] == "| `make b` | 2020-01-02, of other code | kept 2 |"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures.json", "page.md"]


def test_the_figures_of_a_report_of_pytest(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="5" failures="1" errors="1" skipped="1" time="2.4"/></testsuites>')
    assert figures.of_tests(report) == {"passed": 2, "failed": 2, "skipped": 1, "seconds": 2}


def test_the_page_is_the_one_of_the_figures():
    from tests.mutants.__main__ import document

    page = document(figures.table(figures.read()))
    assert figures.PAGE.read_text() == page, "run `make docs`: the figures have changed, or are now of other code"


def test_another_version_of_the_code_has_another_digest(tmp_path):
    code = tmp_path / "core/src"
    (code / "__pycache__").mkdir(parents=True)
    (code / "start.sh").write_text("one")
    first = figures.digest("core/*", root=tmp_path)
    (code / "__pycache__/a.pyc").write_text("compiled")
    assert figures.digest("core/*", root=tmp_path) == first
    (tmp_path / "core/results.json").write_text("{}")
    assert figures.digest("core/s*", root=tmp_path) == first
    assert figures.digest("core/s*", "core/*.json", root=tmp_path) != first
    (code / "start.sh").write_text("two")
    assert figures.digest("core/s*", root=tmp_path) != first


def test_a_line_that_was_cut_off_costs_no_other_line(tmp_path):
    path = tmp_path / "done.jsonl"
    assert json_lines.read(path) == []
    json_lines.append(path, {"case": 1})
    with path.open("a") as file:
        file.write('{"case": {}')
    json_lines.append(path, {"case": 2})
    json_lines.append(path, {"case": 3})
    assert json_lines.read(path) == [{"case": 1}, {"case": 2}, {"case": 3}]


def test_the_faults_that_have_happened_are_counted(tmp_path, monkeypatch):
    point = "worker: read @running"
    lines = [
        {"faults": [(point, "hang")], "violations": []},
        {"faults": [(point, "cut"), ("store: write x @running", "death after")], "violations": ["bad"]},
        {"faults": [], "violations": []},
    ]
    found = results.summarize(lines, "2020-01-01", "other")
    assert found["rows"] == {"no fault": [1, 0], "two faults": [1, 1], "worker: hang": [1, 0]}
    monkeypatch.setattr(results, "FILE", tmp_path / "results.json")
    results.FILE.write_text(json.dumps(found))
    shown = "\n".join(results.document())
    assert "2020-01-01, of other code: 3 lives, 1 with a violation" in shown
    assert "with two: 1 / 1; with none, as its point was not reached: 1 / 0" in shown
    assert "| late by 120 s, then an error (a write: none) | - | - | 1 / 0 |" in shown
    results.FILE.write_text(json.dumps({**found, "code": results.digest()}))
    assert "2020-01-01: 3 lives" in "\n".join(results.document())
