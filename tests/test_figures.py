"""The page of reliability shows the figures of each run."""

from __future__ import annotations

import json

from tests import figures


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
    assert shown[1] == "| `make b` | 2020-01-02 | kept 2 |"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures.json", "page.md"]


def test_the_figures_of_a_report_of_pytest(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="5" failures="1" errors="1" skipped="1" time="2.4"/></testsuites>')
    assert figures.of_tests(report) == {"passed": 2, "failed": 2, "skipped": 1, "seconds": 2}


def test_the_page_is_the_one_of_the_figures():
    from tests.mutants.__main__ import document

    assert figures.PAGE.read_text() == document(figures.table(figures.read()))
