"""Copies of environments: what is in them, how they become an environment, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence

from tpux import Peer, Sh
from tpux_venv.scripts import script_step
from tpux_venv.section import VenvSection
from tpux_worker_tools import peer_copy

EXCLUDED = (
    "--exclude=./bin/python*",
    "--exclude=./bin/[Aa]ctivate*",
    "--exclude=./pyvenv.cfg",
    "--exclude=./lib64",
    "--exclude=./.tpux-venv",
    "--exclude=./.tpux-venv-co*",
    "--exclude=./.tpux-venv-index",
)
"""Options of tar: what a new environment has already, and what is only true of the one that is copied."""

# Turns the environment, new or of former requirements, into a copy of the one whose files are in "$new/files".
_INSTALL_FILES = r"""
fail_if_environment_used 'and no copy replaces its packages'
new=$path/.tpux-venv-copy
trap 'rm -rf "$new"' EXIT
rm -rf "$new"
mkdir "$new"
install_files() {
    site=$(cd "$new/files" && echo lib/python3*/site-packages)
    [ -d "$path/$site" ] || { echo "the copy is of another version of Python: $site"; return 1; }
    # Scripts name the Python of their environment in their first lines.
    "$path/bin/python" - "$new/files" "$path" <<'TPUX_REWRITE' || return
import os, sys
files, new = map(os.fsencode, sys.argv[1:])
with open(files + b"/.tpux-venv-home", "rb") as file:
    old = file.read().rstrip(b"\n")
if old != new and os.path.isdir(files + b"/bin"):
    for entry in os.scandir(files + b"/bin"):
        if entry.is_file(follow_symlinks=False):
            with open(entry.path, "r+b") as file:
                lines = file.read().split(b"\n", 3)
                head = [line.replace(old + b"/bin/", new + b"/bin/") for line in lines[:3]]
                if lines[0].startswith(b"#!") and head != lines[:3]:
                    file.seek(0)
                    file.truncate()
                    file.write(b"\n".join(head + lines[3:]))
TPUX_REWRITE
    lock_file "$lock" && ! environment_is_used && mark building || return
    unlock_file
    mv "$path/$site" "$new/replaced" && mv "$new/files/$site" "$path/$site" || return
    rm -rf "$new/files/lib" "$new/files/.tpux-venv-home"
    cp -a "$new/files/." "$path/" || return
    "$path/bin/python" -c 'import site'
}
"""

# Compiled packages differ between versions of Python and machines.
_NAMED = r"""
minor=$("$path/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
archive={directory}/$content-$minor-$(uname -m).tar
"""

_PACK = r"""
pack() {
    code=0
    tar -C "$path" -cf - {excluded} . || code=$?
    [ "$code" -le 1 ] || return "$code"
    [ "$(cat "$marker")" = ready ] && [ "$(cat "$contents")" = "$content" ] && return
    echo 'another job has changed the environment meanwhile' >&2
    return 2
}
"""

# Runs on the other worker.
_SENDER = r"""
path={path} content={content}
case $path in /*) ;; *) path=$HOME/$path ;; esac
[ -d "$path" ] || exit 76
check_content() {
    case $(cat "$path/.tpux-venv" 2>/dev/null) in
    ready) [ "$(cat "$path/.tpux-venv-content" 2>/dev/null)" = "$content" ] || exit 76 ;;
    building | updating) exit 75 ;;
    *) exit 76 ;;
    esac
}
check_content
[ "$1" = send ] || exit 0
code=0
tar -C "$path" -cf - {excluded} . || code=$?
check_content # another job may have changed it meanwhile
exit "$code"
"""


def copy(section: VenvSection, index: int, peers: Sequence[Peer]) -> Sh:
    """Return the step that copies the environment from another worker; it fails where no other worker has it.

    Args:
        section: the section.
        index: this worker's number.
        peers: the other workers that it reaches, at least one.
    """
    script, values = peer_copy.from_workers(index, peers, _SENDER)
    title = "copy the environment from another worker"
    return script_step(section, (title, _INSTALL_FILES + script), may_fail=True, excluded=EXCLUDED, **values)


def take(section: VenvSection, directory: str) -> Sh:
    """Return the step that copies the environment from the bucket; it fails if it is not there."""
    script = _INSTALL_FILES + _NAMED + peer_copy.FROM_BUCKET
    return script_step(section, ("read the environment from the bucket", script), may_fail=True, directory=directory)


def keep(section: VenvSection, directory: str) -> Sh:
    """Return the step that stores the environment in the bucket, where it can be done without."""
    script = _NAMED + _PACK + peer_copy.TO_BUCKET
    title = "keep the environment in the bucket"
    return script_step(section, (title, script), may_fail=True, directory=directory, excluded=EXCLUDED)
