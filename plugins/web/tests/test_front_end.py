"""The files of the front end: those of others are what was published, and none names another host."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

from tpux_web.pages import FILES, STATIC

VENDORED = STATIC / "vendor"


def test_what_is_vendored_is_what_was_published():
    lines = (VENDORED / "VENDOR").read_text().splitlines()
    named = {}
    for line in lines[1:]:
        file, _package, version, licence, sha256 = line.split()
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
        assert licence == "MIT"
        named[file] = sha256
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDORED.iterdir()}
    assert named == {name: digest for name, digest in found.items() if name != "VENDOR"}


def test_no_file_of_our_own_names_another_host():
    for name in ("index.html", "app.js", "style.css"):
        assert not re.search(r"https?://|//\w+\.\w", (STATIC / name).read_text().replace("// ", "")), name


def test_what_is_served_is_listed_and_nothing_else():
    own = {"app.js", "icon.svg", "index.html", "style.css"}
    assert set(FILES) == own | {"vendor/ansi_up.js", "vendor/uPlot.iife.min.js", "vendor/uPlot.min.css"}


def test_no_html_is_ever_made_of_text():
    text = (STATIC / "app.js").read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function", text
    )


def test_the_command_imports_no_server_before_it_runs():
    code = "import sys, tpux_web.cli; sys.exit(bool({'starlette', 'uvicorn'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path("/")).returncode == 0
