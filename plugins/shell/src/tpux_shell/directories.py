"""Copy directories to and from a worker, as archives: one file for each, whatever is in the directory."""

from __future__ import annotations

import secrets
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import TpuxError, sh

if TYPE_CHECKING:
    from tpux.api.machines import OpenHost

TIMEOUT = 3600.0
"""Seconds that a worker may take to write or to unpack an archive."""

# An archive stays if the connection is lost, or tpux is killed, before it is removed: it may be large.
_REMOVE_OLD = """
archive=$PWD/{archive}
mkdir -p -- "${archive%/*}"
find "${archive%/*}" -type f -mmin +1440 -delete
"""
_UNPACK = """
trap 'rm -f "$archive"' EXIT
mkdir -p -- {path}
cd -- {path}
tar -xf "$archive" --no-same-owner
"""
# tar exits with 1 if a file has changed while it was read, as the program's may.
_PACK = """
cd -- {path}
(umask 077 && tar -cf "$archive" .) || [ $? = 1 ] || { rm -f "$archive"; exit 1; }
"""


def upload_directory(host: OpenHost, archive: Path, path: str) -> None:
    """Unpack an archive in a directory on a worker, which is created.

    Raises:
        TpuxError: it could not be unpacked.
    """
    remote = _archive()
    host.put(archive, remote)
    _run(host, _UNPACK, path, remote)


def pack(directory: Path, archive: Path) -> None:
    """Write the archive of a local directory; symbolic links stay links."""
    with tarfile.open(archive, "w") as file:
        file.add(directory, ".")


def download_directory(host: OpenHost, path: str, local: Path) -> list[str]:
    """Copy a directory from a worker.

    Args:
        host: the worker.
        path: the directory there.
        local: the copy; what is in it already stays, unless the worker has a file of the same name.

    Returns:
        What was left out: links that lead out of the directory, and what is neither a file, a directory nor a link.

    Raises:
        TpuxError: it could not be read.
    """
    remote, left_out = _archive(), list[str]()

    def keep(member: tarfile.TarInfo, destination: str) -> tarfile.TarInfo | None:
        try:
            return tarfile.data_filter(member, destination)
        except tarfile.FilterError:  # such as a link out of the directory, by which a worker could write anywhere
            left_out.append(member.name.removeprefix("./"))
            return None

    _run(host, _PACK, path, remote)
    try:
        with tempfile.TemporaryDirectory(prefix="tpux-cp-") as directory:
            host.get(remote, archive := Path(directory) / "archive")
            local.mkdir(parents=True, exist_ok=True)
            with tarfile.open(archive) as file:
                file.extractall(local, filter=keep)  # noqa: S202  (`keep` lets nothing out of it)
    except (OSError, tarfile.TarError) as error:
        raise TpuxError(f"{local} cannot be written: {error}") from error
    finally:
        host.run(sh("rm -f {archive}", archive=remote).script)
    return left_out


def _archive() -> str:
    return f".tpux/copies/{secrets.token_hex(8)}.tar"


def _run(host: OpenHost, script: str, path: str, archive: str) -> None:
    done = host.run(f"set -e\n{sh(_REMOVE_OLD + script, path=path, archive=archive).script}", timeout=TIMEOUT)
    if not done.ok:
        raise TpuxError(f"{path} cannot be copied: {done.text or f'exit code {done.code}'}")
