"""The steps that create or update an environment. Safe to repeat after an interruption at any point."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Sequence

from tpux import Peer, Result, Step, Steps, put
from tpux_venv import archive, scripts
from tpux_venv.scripts import requirements_file, script_step, settings_file
from tpux_venv.section import VenvSection
from tpux_worker_tools import peer_copy


def build(
    section: VenvSection,
    index: int = 0,
    peers: Sequence[Peer] = (),
    directory: str | None = None,
    *,
    key: str = "",
    job: str = "",
) -> Steps:
    """Create the environment and install the requirements, or copy them from the bucket or from another worker.

    The worker's Python creates the environment, because that needs no network and includes pip. If it cannot, uv
    does; if that fails too, apt installs Python. Where there may be a copy, which has pip, it first creates one without
    pip, which needs no index.

    The requirements are installed with uv if it is present or can be installed. If uv is unavailable or fails, pip
    installs them: the worker's pip may be configured for an index that uv does not know.

    Args:
        section: the section.
        index: the worker's number.
        peers: the other workers that it reaches.
        directory: where environments are kept on the workers; None if there is no such place.
        key: the job's key; another job that sets up the same environment is waited for.
        job: the job, for people.
    """
    prepared = yield script_step(section, scripts.PREPARE, owner=key, job=job, limit=scripts.SETUP_LOCK_TIMEOUT)
    has_packages, lacks_pip = section.requirements_file is not None, False
    if not prepared.text.endswith("kept"):
        if has_packages and (peers or directory is not None):
            lacks_pip = (yield script_step(section, scripts.CREATE_WITHOUT_PIP, may_fail=True)).ok
        if not lacks_pip:
            yield from _create(section)
    is_in_bucket = has_packages and directory is not None and (yield archive.take(section, directory)).ok
    is_copied = is_in_bucket
    if has_packages and peers and not is_copied:
        is_copied = (yield archive.copy(section, index, peers)).ok
    if lacks_pip and not is_copied:
        yield from _create(section)
    if section.requirements_file is not None and not is_copied:
        if not section.brought.file:
            yield put(section.requirements_file, requirements_file(section))
        yield from _install(section)
    yield script_step(section, scripts.MARK_READY, owner=key, job=job)
    is_first = peer_copy.parent_of(index, [peer.index for peer in peers]) is None and (peers or index == 0)
    if has_packages and directory is not None and is_first and not is_in_bucket:
        yield archive.keep(section, directory)


def _create(section: VenvSection) -> Steps:
    created = yield script_step(section, scripts.CREATE, may_fail=True)
    if created.ok:
        return
    created = yield from _with_index(section, scripts.GET_UV, may_fail=True)
    if created.ok:
        created = yield from _with_index(section, scripts.CREATE_WITH_UV, may_fail=True)
    if not created.ok:
        yield script_step(section, scripts.install_python())
        yield script_step(section, scripts.CREATE)


def _install(section: VenvSection) -> Steps:
    done = yield from _with_index(section, scripts.GET_UV, may_fail=True)
    if done.ok:
        done = yield from _with_index(section, scripts.INSTALL_WITH_UV, may_fail=True)
    if not done.ok:
        yield from _with_index(section, scripts.INSTALL_WITH_PIP)


def _with_index(
    section: VenvSection, script: tuple[str, str], *, may_fail: bool = False
) -> Generator[Step, Result, Result]:
    """Run a script that uses the package index, whose URL may contain a password: it travels in a file of its own."""
    yield put(index_settings(section), settings_file(section))
    return (yield script_step(section, script, may_fail=may_fail))


def index_settings(section: VenvSection) -> bytes:
    """Return shell lines that export the package index and links under pip's and uv's variable names.

    uv uses the worker's CA certificates, as pip does.

    Sources: pip.pypa.io, "Configuration"; docs.astral.sh/uv, "Environment variables" (older versions of uv know only
    `UV_INDEX_URL` and `UV_NATIVE_TLS`).
    """
    lines = ["export UV_SYSTEM_CERTS=true UV_NATIVE_TLS=true"]
    if section.index_url:
        value = shlex.quote(section.index_url)
        lines += [f"export {name}={value}" for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")]
    if links := section.find_links:
        is_relative = not links.startswith("/") and ":" not in links  # to the home directory: pip may run elsewhere
        value = '"$HOME"/' + shlex.quote(links.removeprefix("~/")) if is_relative else shlex.quote(links)
        lines += [f"export {name}={value}" for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS")]
    return "".join(f"{line}\n" for line in lines).encode()
