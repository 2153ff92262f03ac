"""The steps that bring a snapshot to a worker, and into the directory in which the program runs.

On a worker, below `~/.tpux/code`: `snapshots/ID` are directories as they were sent, which no program uses; the next
snapshot is built from the closest of them, so that only changed files are sent. `jobs/KEY` is the job's own directory:
files that the program has written there stay when the code changes.
"""

from __future__ import annotations

from tpux import Job, Sh, Steps, put, sh
from tpux_code.snapshots import Snapshot, Snapshots

ROOT = ".tpux/code"
KEPT = 3
"""How many snapshots a worker keeps."""

# The lock is held as long as the shell lives: two jobs, or a command and the supervisor, may prepare a worker at once.
_LOCK = """
mkdir -p {root}/snapshots {root}/jobs
exec 9>>{root}/lock
flock -w 600 9
cd {root}
"""

_LIST = """# list the snapshots on the worker
mkdir -p {root}/snapshots
ls {root}/snapshots
"""

# Hard links: the files of a snapshot are never changed, and tar replaces files and does not write into them.
_UNPACK = (
    "# unpack the code"
    + _LOCK
    + """
archive=$OLDPWD/{archive} new=snapshots/.new-{id}
trap 'rm -rf "$new" "$archive"' EXIT
rm -rf snapshots/.new-*
if ! [ -d snapshots/{id} ]; then
    if [ -n {base} ]; then
        cp -al snapshots/{base} "$new"
        (cd "$new" && xargs -0 -r rm -f --) <"$archive.removed"
    else
        mkdir "$new"
    fi
    tar -xzf "$archive" -C "$new" --no-same-owner
    mv "$new" snapshots/{id}
fi
rm -f "$archive.removed"
touch snapshots/{id}
ls -1t snapshots | tail -n +{too_many} | while read -r old; do rm -rf "snapshots/$old"; done
"""
)

_INSTALL = (
    "# put the code into the job's directory"
    + _LOCK
    + """
job=jobs/{key}
if ! [ -d snapshots/{id} ]; then
    echo 'other jobs have sent code meanwhile'
    exit 1
fi
touch snapshots/{id}
mkdir -p "$job"
rm -f "$job.id"
if [ -e "$job.files" ]; then
    (cd "$job" && xargs -0 -r rm -f --) <"$job.files"
    # A directory without files would be in the way of a file of its name.
    xargs -0 -r dirname -z -- <"$job.files" >"$job.directories"
    (cd "$job" && xargs -0 -r rmdir -p --ignore-fail-on-non-empty --) <"$job.directories" 2>/dev/null || :
    rm "$job.directories"
fi
(cd snapshots/{id} && find . '(' -type f -o -type l ')' -print0) >"$job.files.new"
mv "$job.files.new" "$job.files"
cp -a --no-preserve=links --remove-destination snapshots/{id}/. "$job"
echo {id} >"$job.id.new"
mv "$job.id.new" "$job.id"
"""
)

_CHECK = """# check the code
if [ "$(cat {root}/jobs/{key}.id 2>/dev/null)" != {id} ] || ! [ -d {root}/jobs/{key} ]; then
    echo 'the code is not on the worker, or another version of it'
    exit 1
fi
"""


def directory(job: Job) -> str:
    """Return the job's directory on a worker, relative to the home directory."""
    return f"{ROOT}/jobs/{job.key}"


def check_steps(job: Job, snapshot: str) -> Sh:
    """Return the step that succeeds if the snapshot is in the job's directory."""
    return sh(_CHECK, root=ROOT, key=job.key, id=snapshot)


def send(snapshots: Snapshots, wanted: str) -> Steps:
    """Yield the steps that bring a snapshot to a worker: only the files that no earlier one there has."""
    listed = yield sh(_LIST, root=ROOT)
    there = listed.text.split()
    if wanted in there:
        return
    snapshot = snapshots.load(wanted)
    base = _closest(snapshot, snapshots.find(sorted(there)))
    archive = f"{ROOT}/{wanted}-{base.id if base else 'all'}.tar.gz"
    removed = sorted({file.path for file in base.files} - {file.path for file in snapshot.files}) if base else []
    # A file whose kind has changed to a directory, or back, is in the way of tar.
    yield put(b"".join(_encode(path) for path in removed), f"{archive}.removed")
    yield put(snapshots.archive(snapshot, base), archive)
    yield sh(_UNPACK, root=ROOT, id=wanted, base=base.id if base else "", archive=archive, too_many=str(KEPT + 1))


def install(job: Job, snapshot: str) -> Sh:
    """Return the step that puts a snapshot, which the worker has, into the job's directory."""
    return sh(_INSTALL, root=ROOT, key=job.key, id=snapshot)


def _closest(snapshot: Snapshot, candidates: list[Snapshot]) -> Snapshot | None:
    """Return the candidate that lacks the fewest bytes of a snapshot; None if none has any file of it."""
    wanted = set(snapshot.files)
    shared = {candidate: sum(f.size + 1 for f in wanted.intersection(candidate.files)) for candidate in candidates}
    best = max(candidates, key=lambda candidate: shared[candidate], default=None)
    return best if best is not None and shared[best] else None


def _encode(path: str) -> bytes:
    return path.encode(errors="surrogateescape") + b"\0"
