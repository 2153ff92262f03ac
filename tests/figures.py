"""The figures of runs that take long, which docs/reliability.md shows: `python -m tests.figures NAME --junit FILE`.

Each run replaces its own section of figures.json, and writes the page again. A further run needs no change here: its
section is the target of the Makefile that it is run with, and its figures are shown as they are called.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests/figures.json"
PAGE = ROOT / "docs/reliability.md"
Figure = int | float | str
CODE = ("core/src", "plugins/*/src")
"""What the figures of a run are figures of."""
OTHER = "of other code"


def record(name: str, figures: Mapping[str, Figure], *, data: Path = DATA, page: Path = PAGE) -> None:
    """Replace the figures of a run by those of today, and write the page.

    Args:
        name: the target of the Makefile.
        figures: what to show, in order.
        data: the file with all figures.
        page: the page.
    """
    section = {"date": time.strftime("%Y-%m-%d"), "code": digest(*CODE), "figures": dict(figures)}
    _replace(data, json.dumps(dict(sorted({**read(data), name: section}.items())), indent=1) + "\n")
    write_page(data=data, page=page)


def write_page(*, data: Path = DATA, page: Path = PAGE) -> None:
    """Write the page from all figures.

    Args:
        data: the file with all figures.
        page: the page.
    """
    from tests.mutants.__main__ import document

    _replace(page, document(table(read(data))))


def digest(*patterns: str, root: Path = ROOT) -> str:
    """Return what tells one version of the code from another, committed or not.

    Args:
        patterns: the files and directories, as of `Path.glob`.
        root: what they are relative to.
    """
    found = hashlib.sha256()
    named = {path for pattern in patterns for path in root.glob(pattern)}
    for path in sorted(named.union(*(path.rglob("*") for path in named))):
        name = path.relative_to(root)
        if path.is_file() and not any(part == "__pycache__" or part.endswith(".egg-info") for part in name.parts):
            found.update(f"{name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()[:12]


def read(data: Path = DATA) -> dict[str, dict[str, object]]:
    """Return the sections, by the targets of the Makefile."""
    return json.loads(data.read_text()) if data.exists() else {}  # type: ignore[no-any-return]


def table(sections: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Return the lines of the table of all sections."""
    lines, present = ["| run | date | figures |", "|---|---|---|"], digest(*CODE)
    for name, section in sorted(sections.items()):
        figures = section["figures"]
        assert isinstance(figures, dict)
        shown = ", ".join(f"{what} {value}" for what, value in figures.items())
        date = str(section["date"]) if section.get("code") == present else f"{section['date']}, {OTHER}"
        lines.append(f"| `make {name}` | {date} | {shown} |")
    return lines


def of_tests(report: Path) -> dict[str, Figure]:
    """Return the figures of a report of pytest in JUnit's form."""
    suites = list(ET.parse(report).getroot().iter("testsuite"))
    count = {
        key: sum(int(suite.get(key, "0")) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    }
    seconds = sum(float(suite.get("time", "0")) for suite in suites)
    failed, skipped = count["failures"] + count["errors"], count["skipped"]
    return {
        "passed": count["tests"] - failed - skipped,
        "failed": failed,
        "skipped": skipped,
        "seconds": round(seconds),
    }


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


def main() -> None:
    """Record the figures of a run of pytest."""
    parser = argparse.ArgumentParser(prog="python -m tests.figures", description=__doc__)
    parser.add_argument("name", help="the target of the Makefile")
    parser.add_argument("--junit", type=Path, required=True, help="the report that pytest has written (--junitxml)")
    options = parser.parse_args()
    record(options.name, of_tests(options.junit))


if __name__ == "__main__":
    main()
