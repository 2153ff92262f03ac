"""The steps that create or update an environment. Safe to repeat after an interruption at any point."""

from __future__ import annotations

from collections.abc import Sequence

from tpux import Peer, Steps, put
from tpux_conda import archive, scripts
from tpux_conda.scripts import script_step
from tpux_conda.section import CondaSection
from tpux_worker_tools import peer_copy


def build(
    section: CondaSection,
    index: int = 0,
    peers: Sequence[Peer] = (),
    directory: str | None = None,
    *,
    key: str = "",
    job: str = "",
) -> Steps:
    """Copy the environment from the bucket or from another worker; or create or update it, with conda if there is none.

    Args:
        section: the section.
        index: the worker's number.
        peers: the other workers that it reaches.
        directory: where environments are kept on the workers; None if there is no such place.
        key: the job's key; another job that sets up the same environment is waited for.
        job: the job, for people.
    """
    from_file, limit = "yes" if section.config_file is not None else "", scripts.SETUP_LOCK_TIMEOUT
    prepared = yield script_step(section, scripts.PREPARE, owner=key, job=job, limit=limit, from_file=from_file)
    is_in_bucket = directory is not None and (yield archive.take(section, directory)).ok
    is_copied = is_in_bucket
    if peers and not is_copied:
        lacks_conda = prepared.text.endswith("no conda")
        is_copied = (yield archive.copy(section, index, peers, with_conda=lacks_conda)).ok
    if not is_copied:
        yield from _install(section)
    yield script_step(section, scripts.MARK_READY, owner=key, job=job)
    is_first = peer_copy.parent_of(index, [peer.index for peer in peers]) is None and (peers or index == 0)
    if directory is not None and is_first and not is_in_bucket:
        yield archive.keep(section, directory)


def _install(section: CondaSection) -> Steps:
    yield script_step(section, scripts.INSTALL)
    if section.config_file is not None:
        if not section.brought[0].file:
            yield put(section.config_file, scripts.environment_file(section))
        yield script_step(section, scripts.CREATE_FROM_FILE)
    else:
        yield script_step(section, scripts.CREATE)
    requirements = section.all_requirements()
    if requirements:
        yield put(requirements, scripts.requirements_file(section))
    if requirements or section.brought[1].file:
        yield script_step(section, scripts.INSTALL_REQUIREMENTS)
