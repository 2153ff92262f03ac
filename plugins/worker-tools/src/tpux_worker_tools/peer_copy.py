"""Copy what a set-up has built, in place of building it again: from another worker, or from the job's bucket.

The workers form a binary tree: each one copies from its parent, so no worker sends more than twice. The first one asks
the others whether they have it, since they may have survived the loss of some machines, and copies from one to which
its children leave a copy; if none has it, the first one builds.
Wherever a copy cannot be had, the worker builds itself. Nothing passes through the supervisor's machine.

The scripts are parts of a module's own (`tpux.sh`), which defines before them:

- `$new`, an empty directory for temporary files, and `$archive`, the file in the bucket: a path or a URL `gs://`;
- `install_files`, a function that makes what is in `$new/files` the worker's own;
- `pack`, a function that writes a tar archive to stdout.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from tpux import Finding, Job, Peer
from tpux_worker_tools.indexes import index_options, place_of

UNREACHED_TIMEOUT = 120
"""Seconds to wait for a worker that lets nobody log in or has not begun: its earlier modules may take longer."""
BLOCKED_TIMEOUT = 30
"""Seconds to wait for a worker that does not answer in the network: it runs, so a firewall is in the way."""
BUILDING_TIMEOUT = 1800
"""Seconds to wait for a worker that is building or copying."""

LOG_IN_HINT = "add the section ssh: {} (and ssh to setup.modules, if that is set), and they copy it from each other"
"""What to do where `may_log_in` returns False."""

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

_WAIT = """
wait_for() { # WORKER: until it has what is wanted
    since=$(date +%s) pause=1
    while :; do
        code=0
        script ask | on "$1" >/dev/null 2>"$new/errors" || code=$?
        limit={unreached}
        case $code:$(cat "$new/errors") in
        0:*) return 0 ;;
        75:*) limit={building} ;;
        255:*'timed out'* | 255:*'refused'* | 255:*'No route to host'* | 255:*'resolve hostname'*) limit={blocked} ;;
        esac
        if [ $(($(date +%s) - since)) -ge "$limit" ]; then
            echo "worker $1 has nothing to copy ($code)"
            tail -n 1 "$new/errors"
            return 1
        fi
        : >"$new/asked"
        [ "$pause" != 1 ] || echo "waiting for worker $1"
        sleep "$pause"
        [ "$pause" -ge 5 ] || pause=$((pause + 1))
    done
}
"""

_FROM_PARENT = """
parent={parent}
wait_for "$parent" && copy "$parent" || exit 1
echo "copied from worker $parent"
"""

# Those below a survivor that have lost what they had copy from it too. If these are two for each survivor, this worker
# waits for one that nobody else copies from, and so gets its copy by way of others.
_FROM_ANY = """
asking=
for worker in {workers}; do
    (script ask | on "$worker" >/dev/null 2>&1 && mkdir "$new/has-$worker") &
    asking="$asking $!"
done
wait $asking || :
try() { # WORKER
    if copy "$1"; then
        echo "copied from worker $1"
        exit 0
    fi
    rm -rf "$new/files"
}
for wanted in 0 1 2; do
    for family in {families}; do
        set -- $family # a worker, the last one below it, and those that copy from it
        [ -e "$new/has-$1" ] || continue
        lost=0
        for child in ${3-} ${4-}; do
            [ -e "$new/has-$child" ] || lost=$((lost + 1))
        done
        [ "$lost" = "$wanted" ] || continue
        if [ "$lost" = 2 ] && wait_for "$2"; then try "$2"; fi
        try "$1"
    done
done
echo 'no other worker has it'
exit 1
"""

# gcloud and gsutil, one of which TPU VMs have, know the same commands.
_BUCKET = r"""
case $archive in gs://* | /*) ;; *) archive=$HOME/$archive ;; esac
storage() { # COMMAND ...
    if command -v gcloud >/dev/null; then
        timeout 1800 gcloud --quiet storage "$@"
    elif command -v gsutil >/dev/null; then
        timeout 1800 gsutil -q "$@"
    else
        echo "neither gcloud nor gsutil is on this worker, so $archive is not used" >&2
        return 1
    fi
}
"""

FROM_BUCKET = (
    _BUCKET
    + r"""
mkdir "$new/files"
case $archive in
gs://*)
    { code=0; storage cat "$archive" || code=$?; echo "$code" >"$new/code"; } | tar -C "$new/files" -xf - || exit 1
    [ "$(cat "$new/code")" = 0 ] || exit 1
    ;;
*)
    [ -e "$archive" ] || { echo "there is no $archive"; exit 1; }
    tar -C "$new/files" -xf "$archive" || exit 1
    ;;
esac
install_files || exit 1
echo "read from $archive"
"""
)
"""Reads `$archive`; fails if it is not there, or is of no use."""

# Renamed when it is complete: another worker may read it, and this one may die.
TO_BUCKET = (
    _BUCKET
    + r"""
code=0
case $archive in
gs://*)
    packed=$(mktemp)
    trap 'rm -f "$packed"' EXIT
    { pack || code=$?; echo "$code" >"$packed"; } | storage cp - "$archive.new"
    code=$(cat "$packed")
    [ "$code" -le 1 ] || { storage rm "$archive.new"; exit "$code"; }
    storage mv "$archive.new" "$archive"
    ;;
*)
    mkdir -p "${archive%/*}"
    pack >"$archive.new" || code=$?
    [ "$code" -le 1 ] || { rm -f "$archive.new"; exit "$code"; }
    mv -f "$archive.new" "$archive"
    ;;
esac
"""
)
"""Writes `$archive`, in place of one that `FROM_BUCKET` could not use."""


def from_workers(index: int, peers: Sequence[Peer], sender: str) -> tuple[str, dict[str, str | int | Sequence[str]]]:
    """Return the part of a script that copies from another worker, and the values of its placeholders.

    It fails where no other worker has what is wanted. Since 0.1.

    Args:
        index: this worker's number.
        peers: the other workers that it reaches, at least one.
        sender: a script for the other worker. With `$1` = `ask` it exits with 0 if that has what is wanted, with 75
            while it is being built, and with 76 if it is not there; with `send` it writes a tar archive to stdout too.
    """
    shells = {peer.index: peer.shell for peer in peers}
    parent = parent_of(index, shells)
    values: dict[str, str | int | Sequence[str]]
    values = {"unreached": UNREACHED_TIMEOUT, "blocked": BLOCKED_TIMEOUT, "building": BUILDING_TIMEOUT}
    if parent is None:
        body = _FROM_ANY
        values |= {"workers": [str(worker) for worker in shells], "families": _families(sorted({index, *shells}))}
    else:
        body, shells = _FROM_PARENT, {parent: shells[parent]}
        values["parent"] = parent
    cases = "".join(f"    {number}) {{shell{number}}} ;;\n" for number in shells)
    script = _COPY.replace("@cases@", cases).replace("@sender@", sender) + _WAIT + body
    return script, {**values, **{f"shell{number}": shell for number, shell in shells.items()}}


def parent_of(index: int, others: Iterable[int]) -> int | None:
    """Return the worker from which one copies; None for the first one, which builds. Since 0.1.

    Args:
        index: the worker that copies.
        others: the other workers that it can reach.
    """
    order = sorted({index, *others})
    position = order.index(index)
    return order[(position - 1) // 2] if position else None


def _families(order: Sequence[int]) -> list[str]:
    """Return for each worker but the first one: its number, a worker without children below it, and its children.

    Those without children come first: a survivor among them sends nothing else.
    """
    children = [order[2 * position + 1 : 2 * position + 3] for position in range(len(order))]
    below = dict(zip(order, children, strict=True))
    leaf: dict[int, int] = {}
    for worker in reversed(order):
        leaf[worker] = leaf[below[worker][0]] if below[worker] else worker
    return [" ".join(map(str, (worker, leaf[worker], *below[worker]))) for worker in reversed(order[1:])]


def preflight(job: Job, word: str) -> list[Finding]:
    """Return a note if each worker asks the package index, since the workers of the job cannot log in to each other.

    Since 0.1.

    Args:
        job: the job.
        word: the module's name.
    """
    if (job.tpu.count_workers() or 1) == 1 or may_log_in(job):
        return []
    when = " at its first set-up" if bucket_directory(job, word) else ""
    return [Finding("note", f"each worker gets the environment from the package index{when}", word, LOG_IN_HINT)]


def index_digest(requirements: bytes, *urls: str | None) -> str:
    """Return a digest of where packages come from, without logins: an environment of another one is to be built anew.

    An installer takes a requirement as satisfied by the build of that version which is there. Since 0.1.

    Args:
        requirements: the requirements, or an environment.yml that has some; their options for indexes count.
        urls: indexes and pages of links that the config names.
    """
    options = index_options(requirements.decode(errors="replace"))
    places = [*options, *(place_of(url or "") for url in urls)]
    return hashlib.sha256("\0".join(places).encode()).hexdigest()[:16]


def may_log_in(job: Job) -> bool:
    """Return whether the workers can be expected to reach each other, as far as the config says it. Since 0.1."""
    return job.tpu.count_workers() == 1 or job.tpu.transport != "ssh" or "ssh" in job.modules


def bucket_directory(job: Job, word: str) -> str | None:
    """Return where a module's archives are kept: a directory of the job's bucket on the workers, or a URL; or None.

    Since 0.1.

    Args:
        job: the job; its output directory must be a URL `gs://`, or below a mount that an earlier module has made.
        word: the module's name.
    """
    output = (job.job.output_dir or "").rstrip("/")
    if output.startswith("gs://"):
        return f"{output}/.tpux/{word}"
    earlier = itertools.takewhile(lambda name: name != word, job.modules)
    mounts = [path for name in earlier if name in job.sections for path in job.sections[name].durable_paths()]
    if not output or "://" in output or not any(PurePosixPath(output).is_relative_to(mount) for mount in mounts):
        return None
    return f"{output.removeprefix('~/')}/.tpux/{word}"
