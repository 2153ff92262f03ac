"""docs/events.md is generated, and describes every field of every event."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tpux.model import events

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/events.md"


def test_the_page_is_up_to_date():
    printed = subprocess.run([sys.executable, "scripts/events_docs.py"], cwd=ROOT, capture_output=True, check=True)
    assert printed.stdout.decode() == PAGE.read_text(), "`make docs` writes it"


def test_every_field_is_described():
    assert [line for line in PAGE.read_text().splitlines() if line.endswith("|  |")] == []
    assert [name for name in events.EVENT_TYPES if f"\n## {name}\n" not in PAGE.read_text()] == []
