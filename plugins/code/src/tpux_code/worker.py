"""The steps that bring a snapshot to a worker, and into the directory in which the program runs.

On a worker, below `~/.tpux/code`: `snapshots/ID` are directories as they were sent, which no program uses; the next
snapshot is built from the closest of them, so that only changed files are sent. `jobs/KEY` is the job's own directory:
files that the program has written there stay when the code changes. `jobs/KEY.id` and `jobs/KEY.sent` name the snapshot
in it and the last one sent for it; the other files `jobs/KEY.*` are those of a set-up. What a snapshot consists of is
in `lists` (see the module of this name): a snapshot that differs from its list is sent again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpux import Job, Peer, Result, Sh, Steps, put, sh
from tpux_code import relay
from tpux_code.lists import FUNCTIONS, digests
from tpux_code.snapshots import Snapshot, Snapshots

ROOT = ".tpux/code"
KEPT = 3
"""How many snapshots a worker keeps."""
GONE = 76
"""Exit code of the installation if other jobs have replaced the snapshot since it was sent."""
TIMEOUT = 3600.0
"""Seconds that a worker may take to copy a snapshot from another worker, or to unpack it."""
LIST_TIMEOUT = 700.0
"""Seconds that a worker may take to list its snapshots: the lock may be held for 600."""
LARGE = 50_000_000
"""Bytes to all workers together from which on one worker gets the code, and the others copy it from each other."""

# The lock is held as long as the shell lives: two jobs, or a command and the supervisor, may prepare a worker at once.
_LOCK = """
[ -d {root}/jobs ] || mkdir -p {root}/snapshots {root}/jobs
exec 9>>{root}/lock
flock -w 600 9
cd {root}
"""

# First the job's own: of two that are as close, that one can become the new one. The wanted one, if it is there, is
# noted as the job's before it is installed, so that no other job removes it meanwhile.
_NAMES = """
list_snapshots() {
    own=$(cat jobs/{key}.sent 2>/dev/null) || :
    if [ "$own" ] && [ -d snapshots/"$own" ]; then echo "$own"; fi
    ls snapshots
}

keep_snapshot() {
    touch snapshots/{id}
    echo {id} >jobs/{key}.sent
}
"""

_LIST = (
    "# list the snapshots on the worker"
    + _LOCK
    + _NAMES
    + """
list_snapshots
if [ -d snapshots/{id} ]; then keep_snapshot; fi
"""
)

# The former snapshot of the same job becomes the new one. One that another job has or had is copied, as hard links: the
# files of a snapshot are never changed, and tar replaces files and does not write into them.
_UNPACK = (
    "# unpack the code"
    + _LOCK
    + FUNCTIONS
    + """
archive=$OLDPWD/{archive} new=snapshots/.new-{id}
trap 'rm -rf "$new" "$archive"' EXIT
for old in snapshots/.new-*; do
    if [ -e "$old" ]; then rm -rf "$old"; fi
done
if ! [ -d snapshots/{id} ]; then
    if [ -n {base} ]; then
        how='mv --'
        for file in $(grep -lxF {base} jobs/*.id jobs/*.sent 2>/dev/null); do
            case $file in jobs/{key}.id | jobs/{key}.sent) ;; *) how='cp -al --' ;; esac
        done
        $how snapshots/{base} "$new"
        if [ -s "$archive.removed" ]; then
            (cd "$new" && xargs -0 -r rm -f --) <"$archive.removed"
            find "$new" -mindepth 1 -type d -empty -delete
        fi
    else
        mkdir "$new"
    fi
    tar -xzf "$archive" -C "$new" --no-same-owner
    if ! has_digests "$new" jobs/{key}.list; then
        echo 'the code that was on the worker is damaged: it is sent again'
        [ -z {base} ] || rm -rf snapshots/{base}
        exit 1
    fi
    sync -f "$new" # a crash of the machine leaves a snapshot complete, or none
    mv "$new" snapshots/{id}
    record_list jobs/{key}.list
fi
for file in "$archive.removed" awaited-{id}; do
    if [ -e "$file" ]; then rm -f "$file"; fi
done
touch snapshots/{id}
echo {id} >jobs/{key}.sent
set -- snapshots/*
if [ $# -ge {too_many} ]; then
    ls -1t snapshots | tail -n +{too_many} | while read -r old; do rm -rf "snapshots/$old"; done
    drop_lists
fi
"""
)

# bash, since sh reads no names that end with a null character. The program may have put a symbolic link, such as one to
# a bucket, where the former code had a directory: what is behind it is not the code's.
_FORMER = r"""
while IFS= read -r -d "" path; do
    part=$path
    while [[ $part == */* ]]; do
        part=${part%/*}
        [[ -L $part ]] && continue 2
    done
    [[ -d $path && ! -L $path ]] || printf "%s\0" "$path"
done
"""

# $1 to $3: for the message about what is in the way: the job, the worker and the directory as users name it. $4: that
# directory, $5: the snapshot. stdin has the lines of `stat` of files that differ, fd 3 the names of all symbolic links.
_COPY = r"""
files=()
while IFS= read -r -d "" -u 3 path; do files+=("$path"); done
while IFS= read -r -d "" line; do
    [[ $line == *" a"??? ]] || files+=("${line% * * *}") # the mode of a symbolic link
done
cd "$4" || exit
for path in "${files[@]}"; do
    found= above= part=$path
    [[ -d $path && ! -L $path ]] && found=$path is="a directory" wanted="a file"
    while [[ $part == */*/* ]]; do
        part=${part%/*}
        [[ -e $part && ! -d $part ]] && found=$part is="a file" wanted="a directory"
        if [[ -d $part && ! $above ]]; then
            above=$part # the file, or a directory for it, is created there
            [[ -w $part ]] || found=$part is="a directory of another user" wanted="one of its own"
        fi
        [[ -L $part ]] && found=$part is="a symbolic link" wanted="a directory"
    done
    if [[ $found ]]; then
        name=${found#./}
        printf "the program has made %s where the code has %s: %q; " "$is" "$wanted" "$name"
        printf "rename or remove it: tpux exec %s --host --worker %s -- mv %q %q\n" "$1" "$2" "$3/$name" "$3/$name.old"
        exit 1
    fi
done
[[ $files ]] || exit 0
cd "$5" || exit
copy=(cp -a --no-preserve=links --remove-destination --parents -t "$4" --)
((${#files[@]} > 100)) || exec "${copy[@]}" "${files[@]}"
printf "%s\0" "${files[@]}" | xargs -0 "${copy[@]}"
"""

# What was installed is listed, sorted, before it is copied, so that the next set-up removes it, whatever happens in
# between. `find` writes to files: at the beginning of a pipe its failure, as on a full disk, would not be noticed.
# Files whose size, modification time and mode are the snapshot's are left alone, as by rsync: the time stands for the
# content (`snapshots._time_of`), and a program that writes a file changes it. They are listed by `stat`, which takes
# half as long as `find -printf`, in the order of the names. That is the order of the lines, but for a few names with
# blanks: there `comm` takes a file for changed that is not. Symbolic links are always copied. After a change of one
# file, all workers of a machine do this at once, so what is not needed starts no process.
_INSTALL = (
    "# put the code into the job's directory, if it is on the worker"
    + _LOCK
    + FUNCTIONS
    + _NAMES
    + """
export LC_ALL=C
job=jobs/{key}
if ! is_whole; then # also one from a version without lists
    rm -rf snapshots/{id} lists/{id}.*
    list_snapshots
    exit {gone}
fi
keep_snapshot
look="xargs -0 -r stat --printf %n\\40%s\\40%Y\\40%f\\0 --"
if [ -e "$job.id" ]; then : >"$job.id"; fi
(
    cd snapshots/{id}
    find . ! -type d -fprint0 "$OLDPWD/$job.new" -type l -fprint0 "$OLDPWD/$job.links"
)
sort -z -o "$job.new" "$job.new"
if ! [ -d "$job" ] && ! [ -e "$job.files" ]; then
    rm -rf "$job.copy"
    cp -a --no-preserve=links snapshots/{id} "$job.copy" # until its end a copy has other modes
    mv "$job.new" "$job.files"
    mv "$job.copy" "$job"
else
    : >>"$job.files"
    [ -d "$job" ] || mkdir "$job"
    (cd snapshots/{id} && $look) <"$job.new" >"$job.wanted"
    (cd "$job" && $look) <"$job.new" >"$job.have" 2>/dev/null || : # some may be missing
    changed=
    comm -z --nocheck-order -13 "$job.have" "$job.wanted" >"$job.differ"
    if ! cmp -s "$job.new" "$job.files"; then
        sort -z -u "$job.files" >"$job.both" # another version of this module may have written it
        comm -z -13 "$job.new" "$job.both" >"$job.removed"
        (cd "$job" && bash -c {former}) <"$job.removed" >"$job.former"
        (cd "$job" && xargs -0 -r rm -f --) <"$job.former"
        # A directory without files would be in the way of a file of its name.
        xargs -0 -r dirname -z -- <"$job.former" >"$job.directories"
        (cd "$job" && xargs -0 -r rmdir -p --ignore-fail-on-non-empty --) <"$job.directories" 2>/dev/null || :
        sort -z -m -u -o "$job.all" "$job.both" "$job.new"
        mv "$job.all" "$job.files"
        changed=yes
    fi
    set -- {number} {worker} {directory} "$PWD/$job" "$PWD"/snapshots/{id}
    bash -c {copy} - "$@" <"$job.differ" 3<"$job.links"
    [ -z "$changed" ] || mv "$job.new" "$job.files"
fi
set -- "$job.new" "$job.links" "$job.wanted" "$job.have" "$job.differ" "$job.copy"
rm -rf "$@" "$job.both" "$job.removed" "$job.former" "$job.directories"
sync -f "$job" # before what says that it is there
echo {id} >"$job.id"
"""
)

# What the program has written, or changed, stays: a file that it has not changed has a time before 2021. Mounted
# directories are left alone.
_REMOVE = (
    "# remove the code from the job's directory\n[ -d {root} ] || exit 0"
    + _LOCK
    + FUNCTIONS.replace("{id}", "")
    + """
export LC_ALL=C
job=jobs/{key}
# All but the list of what was installed, also what a set-up that was cut off has left.
for file in "$job".*; do
    case $file in *.files) ;; *) rm -rf "$file" ;; esac
done
rm -rf snapshots/.new-*
for snapshot in snapshots/*; do
    if ! cat jobs/*.id jobs/*.sent 2>/dev/null | grep -qxF -e "${snapshot#*/}"; then rm -rf "$snapshot"; fi
done
drop_lists
[ -d "$job" ] || { rm -f "$job.files"; exit 0; }
if [ -e "$job.files" ]; then
    (cd "$job" && bash -c {former}) <"$job.files" >"$job.former"
    unchanged='find "$@" -maxdepth 0 ! -newermt 2021-01-01 -print0 2>/dev/null || :' # the program may have removed some
    (cd "$job" && xargs -0 -r sh -c "$unchanged" -) <"$job.former" >"$job.own"
    (cd "$job" && xargs -0 -r rm -f --) <"$job.own" || :
    rm -f "$job.former" "$job.own"
fi
# What root has written, as in a container, stays.
find "$job" -xdev -path '*/__pycache__/*.pyc' -delete 2>/dev/null || :
find "$job" -xdev -depth -type d -empty -delete 2>/dev/null || :
[ -d "$job" ] || rm -f "$job.files"
"""
)

_CHECK = """# check the code
installed=
if [ -e {root}/jobs/{key}.id ]; then read -r installed <{root}/jobs/{key}.id || :; fi
if [ "$installed" != {id} ] || ! [ -d {root}/jobs/{key} ]; then
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


def remove_steps(job: Job) -> Sh:
    """Return the step that removes the code from the job's directory, that if nothing else is in it, and snapshots.

    Those that another job has, or was sent last, stay.
    """
    return sh(_REMOVE, root=ROOT, key=job.key, former=_FORMER)


def send(
    job: Job,
    snapshots: Snapshots,
    wanted: str,
    index: int = 0,
    peers: Sequence[Peer] = (),
    listed: Result | None = None,
) -> Steps:
    """Yield the steps that bring a snapshot to a worker: only the files that no earlier one there has.

    What is large for all workers together leaves this machine once, unless a worker cannot copy it from another one.

    Args:
        job: the job.
        snapshots: those on this machine.
        wanted: the id of the snapshot.
        index: the worker's number.
        peers: the other workers that it reaches.
        listed: the result of `install`, if that did not find the snapshot on the worker.
    """
    if listed is None:
        listed = yield sh(_LIST, timeout=LIST_TIMEOUT, root=ROOT, key=job.key, id=wanted)
    there = list(dict.fromkeys(listed.text.split()))
    if wanted in there:
        return
    snapshot = snapshots.load(wanted)
    base = _closest(snapshot, snapshots.find(there))
    size = sum(file.size for file in set(snapshot.files).difference(base.files if base else ()))
    yield put(digests(snapshot), f"{directory(job)}.list")
    if peers and size * (len(peers) + 1) > LARGE:
        script, values = relay.copy_script(snapshot, index, peers)
        if (yield _receive(job, wanted, script, may_fail=True, **values)).ok:
            return
    archive = f"{directory(job)}.{wanted}-{base.id if base else 'all'}.tar.gz"
    removed = sorted({file.path for file in base.files} - {file.path for file in snapshot.files}) if base else []
    # A file whose kind has changed to a directory, or back, is in the way of tar.
    if removed:
        yield put(b"".join(_encode(path) for path in removed), f"{archive}.removed")
    yield put(snapshots.archive(snapshot, base), archive)
    yield _receive(job, wanted, _UNPACK, base=base.id if base else "", archive=archive)


def _receive(job: Job, snapshot: str, script: str, *, may_fail: bool = False, **values: relay.Value) -> Sh:
    """Return a step that adds a snapshot to those on the worker, and removes old ones.

    Args:
        job: the job.
        snapshot: its id.
        script: unpacks or copies it.
        may_fail: whether a failure of the step is left to the caller.
        values: further variables of the script.
    """
    return sh(
        script,
        may_fail=may_fail,
        example="",
        timeout=TIMEOUT,
        root=ROOT,
        key=job.key,
        id=snapshot,
        too_many=KEPT + 1,
        **values,
    )


def not_awaited(snapshot: str) -> Sh:
    """Return the step after which no worker waits any longer for this one, which was to get a snapshot, to have it."""
    return sh("rm -f {root}/awaited-{id}", root=ROOT, id=snapshot)


def install(job: Job, snapshot: str, worker: int, *, may_fail: bool = False) -> Sh:
    """Return the step that puts a snapshot into the job's directory.

    It exits with `GONE` if the worker lacks the snapshot, and prints those that it has.

    Args:
        job: the job.
        snapshot: its id.
        worker: the number of the worker.
        may_fail: whether a failure of the step is left to the caller.
    """
    return sh(
        _INSTALL,
        may_fail=may_fail,
        gone=GONE,
        root=ROOT,
        key=job.key,
        id=snapshot,
        former=_FORMER,
        copy=_COPY,
        number=str(int(job.id)),
        worker=worker,
        directory=directory(job),
    )


def _closest(snapshot: Snapshot, candidates: list[Snapshot]) -> Snapshot | None:
    """Return the candidate that lacks the fewest bytes of a snapshot; None if none has any file of it."""
    wanted = set(snapshot.files)
    shared = {candidate: sum(f.size + 1 for f in wanted.intersection(candidate.files)) for candidate in candidates}
    best = max(candidates, key=lambda candidate: shared[candidate], default=None)
    return best if best is not None and shared[best] else None


def _encode(path: str) -> bytes:
    return path.encode(errors="surrogateescape") + b"\0"
