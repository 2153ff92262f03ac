"""Copy what a set-up has built, in place of building it again: from another worker, or from the job's bucket.

The workers form a binary tree: each one copies from its parent, so no worker sends more than twice. The first one asks
the others whether they have it, since they may have survived the loss of some machines; if none has, it builds.
Wherever a copy cannot be had, the worker builds itself. Nothing passes through the supervisor's machine.

The scripts are parts of a module's own (`tpux.sh`), which defines before them:

- `$new`, an empty directory for temporary files, and `$archive`, the file in the bucket;
- `install_files`, a function that makes what is in `$new/files` the worker's own;
- `pack`, a function that writes a tar archive to stdout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from tpux.plugin.failures import Finding
from tpux.plugin.job import Job
from tpux.plugin.machines import Peer

UNREACHED_TIMEOUT = 120
"""Seconds to wait for a worker that lets nobody log in or has not begun: its earlier modules may take longer."""
BLOCKED_TIMEOUT = 30
"""Seconds to wait for a worker that does not answer in the network: it runs, so a firewall is in the way."""
BUILDING_TIMEOUT = 1800
"""Seconds to wait for a worker that is building or copying."""

_COPY = r"""
on() { # WORKER: run a shell there
    case $1 in
@cases@    esac
}
script() { # MODE
    echo "set -- $1"
    cat <<'TPUX_SENDER'
@sender@
TPUX_SENDER
}
copy() { # WORKER
    mkdir "$new/files"
    { script send | on "$1" 2>"$new/errors"; echo $? >"$new/code"; } | tar -C "$new/files" -xf - || return
    # tar's 1: a file has changed meanwhile, such as compiled code that a program on that worker writes.
    [ "$(cat "$new/code")" -le 1 ] || { cat "$new/errors"; return 1; }
    install_files
}
"""

_FROM_PARENT = """
parent={parent} since=$(date +%s) pause=1
while :; do
    code=0
    script ask | on "$parent" >/dev/null 2>"$new/errors" || code=$?
    limit={unreached}
    case $code:$(cat "$new/errors") in
    0:*) break ;;
    75:*) limit={building} ;;
    255:*'timed out'* | 255:*'refused'* | 255:*'No route to host'* | 255:*'resolve hostname'*) limit={blocked} ;;
    esac
    if [ $(($(date +%s) - since)) -ge "$limit" ]; then
        echo "worker $parent has nothing to copy ($code)"
        tail -n 1 "$new/errors"
        exit 1
    fi
    : >"$new/asked"
    [ "$pause" != 1 ] || echo "waiting for worker $parent"
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
echo 'no other worker has it'
exit 1
"""

FROM_BUCKET = r"""
[ -e "$archive" ] || { echo "there is no $archive"; exit 1; }
mkdir "$new/files"
tar -C "$new/files" -xf "$archive" && install_files || exit 1
echo "read from $archive"
"""
"""Reads `$archive`; fails if it is not there, or is of no use."""

# Renamed when it is complete: another worker may read it, and this one may die.
TO_BUCKET = r"""
if [ -e "$archive" ]; then exit 0; fi
mkdir -p "${archive%/*}"
code=0
pack >"$archive.new" || code=$?
[ "$code" -le 1 ] || { rm -f "$archive.new"; exit "$code"; }
mv -f "$archive.new" "$archive"
"""
"""Writes `$archive`, unless it is there."""


def from_workers(index: int, peers: Sequence[Peer], sender: str) -> tuple[str, dict[str, str | int | Sequence[str]]]:
    """Return the part of a script that copies from another worker, and the values of its placeholders.

    It fails where no other worker has what is wanted. Since 0.2.

    Args:
        index: this worker's number.
        peers: the other workers that it reaches, at least one.
        sender: a script for the other worker. With `$1` = `ask` it exits with 0 if that has what is wanted, with 75
            while it is being built, and with 76 if it is not there; with `send` it writes a tar archive to stdout too.
    """
    shells = {peer.index: peer.shell for peer in peers}
    parent = parent_of(index, shells)
    values: dict[str, str | int | Sequence[str]]
    if parent is None:
        body, values = _FROM_ANY, {"workers": [str(worker) for worker in shells]}
    else:
        body, shells = _FROM_PARENT, {parent: shells[parent]}
        limits = {"unreached": UNREACHED_TIMEOUT, "blocked": BLOCKED_TIMEOUT, "building": BUILDING_TIMEOUT}
        values = {"parent": parent, **limits}
    cases = "".join(f"    {number}) {{shell{number}}} ;;\n" for number in shells)
    script = _COPY.replace("@cases@", cases).replace("@sender@", sender) + body
    return script, {**values, **{f"shell{number}": shell for number, shell in shells.items()}}


def parent_of(index: int, others: Iterable[int]) -> int | None:
    """Return the worker from which one copies; None for the first one, which builds. Since 0.2."""
    order = sorted({index, *others})
    position = order.index(index)
    return order[(position - 1) // 2] if position else None


def preflight(job: Job, word: str) -> list[Finding]:
    """Return a note if each worker asks the package index, since the workers of the job cannot log in to each other.

    Since 0.2.

    Args:
        job: the job.
        word: the module's name.
    """
    if (job.tpu.count_workers() or 1) == 1 or job.tpu.transport != "ssh" or "ssh" in job.modules:
        return []
    when = " at its first set-up" if bucket_directory(job, word) else ""
    hint = "add the section ssh: {} (and ssh to setup.modules, if that is set), and they copy it from each other"
    return [Finding("note", f"each worker gets the environment from the package index{when}", word, hint)]


def bucket_directory(job: Job, word: str) -> str | None:
    """Return the directory on the workers in which a module's archives are kept: one of the job's bucket, or None.

    Since 0.2.

    Args:
        job: the job; its output directory must be below a mount, which a module that was set up earlier has made.
        word: the module's name.
    """
    output = job.job.output_dir
    if not output or "://" in output:
        return None
    sections = (job.sections[name] for name in job.modules if name in job.sections)
    mounts = [path for section in sections for path in section.durable_paths()]
    if not any(PurePosixPath(output).is_relative_to(mount) for mount in mounts):
        return None
    return f"{output.removeprefix('~/')}/.tpux/{word}"
