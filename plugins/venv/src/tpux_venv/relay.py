"""Copy a complete environment from another worker, so that the package index is asked once for all workers.

The workers form a binary tree: each one copies from its parent, so no worker sends more than twice. The first one asks
the others whether they have the environment, since they may have survived the loss of some machines; if none has, it
builds the environment. Wherever a copy cannot be had, the worker builds the environment itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpux import Peer, Sh
from tpux_venv.archive import EXCLUDED, INSTALL_FILES
from tpux_venv.scripts import script_step
from tpux_venv.section import VenvSection

UNREACHED_TIMEOUT = 120
"""Seconds to wait for a worker that cannot be reached or has not begun: its earlier modules may take longer."""
BUILDING_TIMEOUT = 1800
"""Seconds to wait for a worker that is building the environment or copying it."""

# Runs on the other worker: says whether it has the environment, and sends it.
_SENDER = r"""
path={path} content={content}
case $path in /*) ;; *) path=$HOME/$path ;; esac
[ -d "$path" ] || exit 76
case $(cat "$path/.tpux-venv" 2>/dev/null) in
ready) [ "$(cat "$path/.tpux-venv-content" 2>/dev/null)" = "$content" ] || exit 76 ;;
building) exit 75 ;;
*) exit 76 ;;
esac
[ "$1" = send ] || exit 0
exec tar -C "$path" -cf - {excluded} .
"""

# 75: it is being built; 76: it is not there; anything else: the worker cannot be reached.
_COPY = r"""
on() { # WORKER: run a shell there
    case $1 in
{cases}
    esac
}
script() { # MODE
    echo "set -- $1"
    cat <<'TPUX_SENDER'
{sender}
TPUX_SENDER
}
copy() { # WORKER
    mkdir "$new/files"
    { script send | on "$1" 2>"$new/errors"; echo $? >"$new/code"; } | tar -C "$new/files" -xf - || return
    # tar's 1: a file has changed meanwhile, such as compiled code that a program on that worker writes.
    [ "$(cat "$new/code")" -le 1 ] || { cat "$new/errors"; return 1; }
    install_files || return
}
"""

_FROM_PARENT = """
parent={parent} since=$(date +%s) pause=1
while :; do
    code=0
    script ask | on "$parent" >/dev/null 2>&1 || code=$?
    limit={unreached}
    case $code in
    0) break ;;
    75) limit={building} ;;
    esac
    if [ $(($(date +%s) - since)) -ge "$limit" ]; then
        echo "worker $parent has no environment to copy ($code)"
        exit 1
    fi
    : >"$new/asked"
    [ "$pause" != 1 ] || echo "waiting for worker $parent to build the environment"
    sleep "$pause"
    [ "$pause" -ge 5 ] || pause=$((pause + 1))
done
copy "$parent" || exit 1
echo "copied from worker $parent"
"""

_FROM_ANY = """
asking=
for worker in {workers}; do
    (script ask | on "$worker" >/dev/null 2>&1 && mkdir "$new/has-$worker") &
    asking="$asking $!"
done
wait $asking || :
for worker in {workers}; do
    if [ -e "$new/has-$worker" ] && copy "$worker"; then
        echo "copied from worker $worker"
        exit 0
    fi
    rm -rf "$new/files"
done
echo 'no other worker has the environment'
exit 1
"""


def copy(section: VenvSection, index: int, peers: Sequence[Peer]) -> Sh:
    """Return the step that copies the environment from another worker into the new, empty one of this worker.

    It fails where no other worker has the environment.

    Args:
        section: the section.
        index: this worker's number.
        peers: the other workers that it reaches, at least one.
    """
    shells = {peer.index: peer.shell for peer in peers}
    parent = parent_of(index, shells)
    if parent is None:
        body, values = _FROM_ANY, {"workers": list(shells)}
    else:
        body, shells = _FROM_PARENT, {parent: shells[parent]}
        values = {"parent": [parent], "unreached": [UNREACHED_TIMEOUT], "building": [BUILDING_TIMEOUT]}
    cases = "".join(f"    {number}) {{shell{number}}} ;;\n" for number in shells)
    script = INSTALL_FILES + _COPY.replace("{cases}\n", cases).replace("{sender}", _SENDER) + body
    return script_step(
        section,
        ("copy the environment from another worker", script),
        may_fail=True,
        excluded=EXCLUDED,
        **values,
        **{f"shell{number}": shell for number, shell in shells.items()},
    )


def parent_of(index: int, others: Iterable[int]) -> int | None:
    """Return the worker from which one copies; None for the first one."""
    order = sorted({index, *others})
    position = order.index(index)
    return order[(position - 1) // 2] if position else None
