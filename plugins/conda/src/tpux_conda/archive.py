"""Copies of environments: what is in them, how they become an environment, and where they come from.

Packages contain the path of their environment, so a copy is of use only under the same path in the same home.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpux import Peer, Sh
from tpux_conda.scripts import script_step
from tpux_conda.section import CondaSection
from tpux_worker_tools import peer_copy

# Packs the environment, and conda itself without its other environments and its cache. It runs in the home directory.
_PACK = r"""
pack_files() { # WITH_CONDA
    { read -r _; read -r _; read -r prefix; read -r root; } <"$ready"
    {
        printf '%s\0' "$ready"
        find "$prefix" -print0
        [ -z "$root" ] || [ -z "$1" ] || find "$root" '(' -path "$root/pkgs" -o -path "$root/envs" ')' -prune -o -print0
    } | tar --null --no-recursion -T - -cf -
}
"""

# Runs on the other worker.
_SENDER = (
    r"""
ready={files}/{name}.ready
check_content() {
    [ ! -e {files}/{name}.building ] || exit 75
    [ -e "$ready" ] || exit 76
    { read -r content; read -r _; read -r prefix; } <"$ready"
    [ "$content" = {content} ] && [ -n "$prefix" ] || exit 76
}
check_content
[ "$1" = send ] || exit 0
"""
    + _PACK
    + """
code=0
pack_files {with_conda} || code=$?
check_content # another job may have changed it meanwhile
exit "$code"
"""
)

_INSTALL_FILES = r"""
if find_conda; then fail_if_environment_used 'and no copy replaces it'; fi
new=$files/$name.copy
trap 'rm -rf "$new"' EXIT
rm -rf "$new"
mkdir "$new"
install_files() {
    { read -r _; read -r home; read -r target; read -r root; } <"$new/files/$ready" || return
    [ "$home" = "$(pwd -P)" ] || { echo "the copy is of another home directory: $home"; return 1; }
    if [ -n "$root" ] && [ -e "$new/files/$root" ] && ! [ -e "$root" ]; then
        mkdir -p "$(dirname "$root")" && mv "$new/files/$root" "$root" || return
    fi
    { ! find_conda || { lock_file "$lock" && ! environment_is_used; }; } && mark building || return
    unlock_file
    rm -rf "$target" && mkdir -p "$(dirname "$target")" && mv "$new/files/$target" "$target" || return
    find_conda && exists && has_version
}
"""

_PACK_UNCHANGED = """
pack() {
    code=0
    pack_files yes || code=$?
    [ "$code" -le 1 ] || return "$code"
    [ ! -e "$building" ] && [ "$(head -n 1 "$ready")" = "$content" ] && return
    echo 'another job has changed the environment meanwhile' >&2
    return 2
}
"""

_NAMED = r"""
archive={directory}/$content-$(uname -m).tar
"""


def copy(section: CondaSection, index: int, peers: Sequence[Peer], *, with_conda: bool) -> Sh:
    """Return the step that copies the environment from another worker; it fails where no other worker has it.

    Args:
        section: the section.
        index: this worker's number.
        peers: the other workers that it reaches, at least one.
        with_conda: this worker has no conda: copy that too.
    """
    script, values = peer_copy.from_workers(index, peers, _SENDER)
    title = "copy the environment from another worker"
    wanted = "yes" if with_conda else ""
    return script_step(section, (title, _INSTALL_FILES + script), may_fail=True, with_conda=wanted, **values)


def take(section: CondaSection, directory: str) -> Sh:
    """Return the step that copies the environment from the bucket; it fails if it is not there."""
    script = _INSTALL_FILES + _NAMED + peer_copy.FROM_BUCKET
    return script_step(section, ("read the environment from the bucket", script), may_fail=True, directory=directory)


def keep(section: CondaSection, directory: str) -> Sh:
    """Return the step that stores the environment, with conda, in the bucket; set-up continues if it fails."""
    script = _NAMED + _PACK + _PACK_UNCHANGED + peer_copy.TO_BUCKET
    return script_step(section, ("keep the environment in the bucket", script), may_fail=True, directory=directory)
