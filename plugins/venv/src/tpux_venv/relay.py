"""Copy a complete environment from another worker, so that the package index is asked once for all workers.

The workers form a binary tree: each one copies from its parent, so no worker sends more than twice. The first one asks
the others whether they have the environment, since they may have survived the loss of some machines; if none has, it
builds the environment. Wherever a copy cannot be had, the worker builds the environment itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpux import Peer, Sh
from tpux_venv.scripts import script_step
from tpux_venv.section import VenvSection

UNREACHED_TIMEOUT = 120
"""Seconds to wait for a worker that cannot be reached or has not begun: its earlier modules may take longer."""
BUILDING_TIMEOUT = 1800
"""Seconds to wait for a worker that is building the environment or copying it."""

# Runs on the other worker: says whether it has the environment, and sends it. What the copy has already, and what names
# the place of the environment, is not sent.
_SENDER = r"""
path={path} content={content}
case $path in /*) ;; *) path=$HOME/$path ;; esac
[ -d "$path" ] || exit 76
case $(cat "$path/.tpux-venv" 2>/dev/null) in
ready) [ "$(cat "$path/.tpux-venv-content" 2>/dev/null)" = "$content" ] || exit 76 ;;
building) exit 75 ;;
*) exit 76 ;;
esac
echo "tpux-path:$path" >&2
[ "$1" = send ] || exit 0
exec tar -C "$path" -cf - --exclude='./bin/python*' --exclude='./bin/[Aa]ctivate*' --exclude=./pyvenv.cfg \
    --exclude=./lib64 --exclude='./.tpux-venv*' .
"""

# 75: it is being built; 76: it is not there; anything else: the worker cannot be reached.
_COPY = r"""
new=$path/.tpux-venv-copy
trap 'rm -rf "$new"' EXIT
rm -rf "$new"
mkdir "$new"
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
    old=$(sed -n 's/^tpux-path://p' "$new/errors")
    site=$(cd "$new/files" && echo lib/python3*/site-packages)
    [ -d "$path/$site" ] || { echo "worker $1 has another version of Python: $site"; return 1; }
    # Scripts name the Python of their environment in their first lines.
    "$path/bin/python" - "$new/files/bin" "$old" "$path" <<'TPUX_REWRITE' || return
import os, sys
directory, old, new = sys.argv[1:]
if old != new and os.path.isdir(directory):
    for entry in os.scandir(directory):
        if entry.is_file(follow_symlinks=False):
            with open(entry.path, "r+b") as file:
                lines = file.read().split(b"\n", 3)
                head = [line.replace(os.fsencode(old) + b"/bin/", os.fsencode(new) + b"/bin/") for line in lines[:3]]
                if lines[0].startswith(b"#!") and head != lines[:3]:
                    file.seek(0)
                    file.truncate()
                    file.write(b"\n".join(head + lines[3:]))
TPUX_REWRITE
    mv "$path/$site" "$new/replaced" && mv "$new/files/$site" "$path/$site" || return
    rm -rf "$new/files/lib"
    cp -a "$new/files/." "$path/" || return
    "$path/bin/python" -c 'import site'
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
    script = _COPY.replace("{cases}\n", cases).replace("{sender}", _SENDER) + body
    return script_step(
        section,
        ("copy the environment from another worker", script),
        may_fail=True,
        **values,
        **{f"shell{number}": shell for number, shell in shells.items()},
    )


def parent_of(index: int, others: Iterable[int]) -> int | None:
    """Return the worker from which one copies; None for the first one."""
    order = sorted({index, *others})
    position = order.index(index)
    return order[(position - 1) // 2] if position else None
