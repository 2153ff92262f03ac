"""Each whole config in a document is valid."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tpux import config
from tpux.config.models import section_names
from tpux.errors import ConfigError, Problem
from tpux.lifecycle.new_config import describe_finding, preflight
from tpux.lifecycle.open import draft_job
from tpux.plugin.manager import Plugins
from tpux.store import Store
from tpux_emulator.emulator import Emulator
from tpux_emulator.testing import tpu_emulators

__all__ = ["tpu_emulators"]

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


PLUGINS = Plugins()
VARIABLES = ("TOKEN", "WANDB_API_KEY", "MAIL_PASSWORD", "SLACK_TOKEN", "HEARTBEAT_ID", "BREVO_API_KEY")
SECTIONS = set(section_names(PLUGINS))


def documented() -> list[object]:
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("plugins/*/README.md"))]:
        for number, block in enumerate(BLOCK.findall(page.read_text())):
            keys = re.findall(r"^([^#\s].*?):", block, re.MULTILINE)
            if set(keys) <= SECTIONS and block.startswith((*keys, "#")):
                found.append(pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}"))
    return found


@pytest.fixture(scope="module")
def cloud(tpu_emulators: Callable[..., Emulator]) -> Emulator:
    return tpu_emulators(workers=False)


@pytest.mark.process
@pytest.mark.parametrize("text", [one for one in documented() if re.search("tpu-vm|queued-resources", str(one))])
def test_what_is_copied_from_a_document_is_not_warned_about(
    cloud: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """The zones have the accelerator, and output outlives the machines."""
    for name, value in {"HOME": tmp_path, "TPUX_HOME": tmp_path, "TPUX_GCP_ENDPOINT": cloud.url}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "emulated")
    if "command:" not in text:
        text += "command: python train.py\njob: {output_dir: gs://my-bucket/runs}\n"  # an example of the section tpu
    (tmp_path / "train.yaml").write_text(text)
    environ = dict.fromkeys(VARIABLES, "x")
    try:
        loaded = config.load(tmp_path / "train.yaml", [], plugins=PLUGINS, environ=environ)
    except ConfigError as error:
        for problem in error.problems:
            Path(problem.message.partition("file not found: ")[2].partition(",")[0]).touch()
        loaded = config.load(tmp_path / "train.yaml", [], plugins=PLUGINS, environ=environ)
    findings = preflight(draft_job(Store(), loaded, PLUGINS), PLUGINS)
    assert [describe_finding(one) for one in findings if one.level in {"warning", "error"}] == []


@pytest.mark.parametrize("text", documented())
def test_it_is_valid_but_for_files_that_it_names(tmp_path: Path, text: str) -> None:
    if "command:" not in text:
        text += "command: python train.py\n"
    (tmp_path / "train.yaml").write_text(text)
    problems: list[Problem] = []
    try:
        config.load(tmp_path / "train.yaml", [], plugins=PLUGINS, environ=dict.fromkeys(VARIABLES, "x"))
    except ConfigError as error:
        problems = error.problems
    assert [str(problem) for problem in problems if "file not found" not in problem.message] == []
