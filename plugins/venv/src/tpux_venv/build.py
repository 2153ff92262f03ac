"""The steps that build an environment, or bring it up to date; safe to repeat from wherever they broke off."""

from __future__ import annotations

import shlex

from tpux import Steps, put
from tpux_venv import scripts
from tpux_venv.scripts import requirements_file, script_step, settings_file
from tpux_venv.section import VenvSection


def build(section: VenvSection) -> Steps:
    """Make the environment and install the requirements.

    The worker's own Python makes it where it can, for that needs no network and brings pip; uv where it
    cannot; and apt gets what both lack. uv installs where it is there or can be had, pip otherwise, and
    also where uv has failed: the worker's pip may know an index that uv does not.
    """
    begun = yield script_step(section, scripts.PREPARE)
    yield put(index_settings(section), settings_file(section))  # no script: an address may hold a password
    if not begun.text.endswith("kept"):
        yield from _create(section)
    if section.requirements_file is not None:
        yield put(section.requirements_file, requirements_file(section))
        yield from _install(section)
    yield script_step(section, scripts.MARK_READY)


def _create(section: VenvSection) -> Steps:
    made = yield script_step(section, scripts.CREATE, may_fail=True)
    if made.ok:
        return
    made = yield script_step(section, scripts.GET_UV, may_fail=True)
    if made.ok:
        made = yield script_step(section, scripts.CREATE_WITH_UV, may_fail=True)
    if not made.ok:
        yield script_step(section, scripts.INSTALL_PYTHON)
        yield script_step(section, scripts.CREATE)


def _install(section: VenvSection) -> Steps:
    done = yield script_step(section, scripts.GET_UV, may_fail=True)
    if done.ok:
        done = yield script_step(section, scripts.INSTALL_WITH_UV, may_fail=True)
    if not done.ok:
        yield script_step(section, scripts.INSTALL_WITH_PIP)


def index_settings(section: VenvSection) -> bytes:
    """Where packages come from, as variables that a shell reads; pip's and uv's names for them.

    Sources: pip.pypa.io, "Configuration"; docs.astral.sh/uv, "Environment variables" (older uv know
    `UV_INDEX_URL` alone, and `UV_NATIVE_TLS`). The worker's certificates count for uv too, as they do for pip.
    """
    lines = ["export UV_SYSTEM_CERTS=true UV_NATIVE_TLS=true"]
    if section.index_url:
        value = shlex.quote(section.index_url)
        lines += [f"export {name}={value}" for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")]
    if links := section.find_links:
        value = '"$HOME"/' + shlex.quote(links[2:]) if links.startswith("~/") else shlex.quote(links)
        lines += [f"export {name}={value}" for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS")]
    return "".join(f"{line}\n" for line in lines).encode()
