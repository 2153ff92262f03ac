"""The scripts of the steps, for a POSIX shell in the worker's home directory."""

from __future__ import annotations

import hashlib
import json
import shlex

from tpux import Sh, sh
from tpux_gcsfuse.section import Mount
from tpux_worker_tools import apt

DIRECTORY = ".tpux/gcsfuse"
"""Which options each directory was mounted with, relative to the worker's home directory."""
ANSWER_TIMEOUT = 30
"""Seconds that a mount may take to answer; one whose server hangs never does."""
MOUNT_TIMEOUT = 180.0
DEFAULT_FLAGS = ("--implicit-dirs", "--dir-mode=777", "--file-mode=777")
"""Directories that were uploaded without a marker exist, and every user of the worker may read and write."""

# The path is resolved without looking at the mount itself, which may hang.
_PRELUDE = """
path={path} bucket={bucket} options={options} record=$HOME/{record}
case $path in /*) ;; *) path=$HOME/$path ;; esac
resolve() {
    while :; do case $path in ?*/) path=${path%/} ;; *) break ;; esac; done
    parent=${path%/*}
    parent=$(cd -P -- "${parent:-/}" 2>/dev/null && pwd -P) && path=${parent%/}/${path##*/}
}

# Print what is mounted at the path. proc(5): the fifth field is the path, and two fields after "-" is the source.
mounted() {
    escaped=$path
    case $path in *\\\\* | *' '*) escaped=$(printf '%s' "$path" | sed 's/\\\\/\\\\134/g; s/ /\\\\040/g') ;; esac
    TPUX_PATH=$escaped awk '
        $5 == ENVIRON["TPUX_PATH"] { for (n = 7; $n != "-"; n++); source = $(n + 2); found = 1 }
        END { print source; exit !found }' /proc/self/mountinfo
}

# Look up a name that does not exist: the mount has to ask the bucket, and a large one is not listed. A process that
# waits for a server which has read its question cannot be killed: nothing here waits for it, needs a lock that it has
# inherited, or reads for longer from the pipe that it keeps open.
# So it is a simple command in the background: a shell around it would keep copies of what is open here.
answers() {
    answer=$({
        LC_ALL=C timeout {patience} stat -c found "$path/.tpux-check-$$" </dev/null 2>&1 9<&- &
    } | timeout {limit} cat) || :
    case $answer in
    *found | *"No such file or directory"*) ;;
    '') echo "$path: the mounted bucket does not answer within {patience} s"; return 1 ;;
    *) echo "$path: the mounted bucket cannot be read: ${answer##*: }"; return 1 ;;
    esac
}

# A mount that was made by hand, or by another tool, is as good as ours if it is of the bucket.
is_wanted() {
    if [ -e "$record" ]; then
        IFS= read -r recorded <"$record" || :
        [ "$recorded" = "$options $1" ]
    else
        case $1 in "$bucket" | *:"$bucket") ;; *) false ;; esac
    fi
}
"""

_CHECK = """
if ! resolve || ! source=$(mounted); then
    echo "nothing is mounted at $path"
    exit 1
fi
if ! is_wanted "$source"; then
    echo "$source is mounted at $path, and not the bucket $bucket with the options of the config"
    exit 1
fi
answers
"""

# Print why a mount does not answer; nothing if it does, or if there is none.
_EXAMINE = """
if resolve && mounted >/dev/null; then
    problem=$(answers) || printf '%s\\t%s\\n' "$path" "${problem#"$path: "}"
fi
"""

# A server that is alive, and only slow, is left alone.
_ONLY_IF_DEAD = """
resolve && mounted >/dev/null || exit 0
problem=$(answers) && exit 0
case $problem in *'endpoint is not connected') ;; *) exit 0 ;; esac
"""

_ANNOUNCE = """
echo "would unmount $path (${problem##*: }) and mount the bucket $bucket there again"
"""

# Only what a job has mounted, or whose server is dead, is unmounted.
_MOUNT = """
sudo=
[ "$(id -u)" = 0 ] || sudo='sudo -n'

unmount() {
    for command in 'fusermount3 -u' 'fusermount -u' "$sudo umount"; do
        case $1:$command in lazy:*umount) command="$command -l" ;; lazy:*) command="$command -z" ;; esac
        $command "$path" 2>&1 && return
    done
    echo "cannot unmount $path: a program has a file open there, or it belongs to another user"
    return 1
}

make_directory() {
    mkdir -p -- "$1" 2>/dev/null || { $sudo mkdir -p -- "$1" && $sudo chown "$(id -u):$(id -g)" "$1"; } || {
        echo "cannot create the directory $1: set ${2:-gcsfuse.mount_path} to another one"
        return 1
    }
}

make_directory "$(dirname -- "$path")"
resolve
exec 9<"$parent"  # two jobs, or two workers with one directory tree, may mount here at the same time
flock -w {lock_patience} 9 || { echo "another mount at $path does not end"; exit 1; }

while source=$(mounted); do
    if ! problem=$(answers); then
        case $problem in
        *'endpoint is not connected') ;;
        *) [ -e "$record" ] || { echo "$problem, and no job has mounted it: unmount it"; exit 1; } ;;
        esac
        echo "$problem; unmounting it"
        # By root, this also ends those who wait for the server. One that is only slow may serve other jobs, too.
        case $problem in
        *'does not answer'*)
            answers >/dev/null || timeout -s KILL 10 $sudo umount -f -c "$path" >/dev/null 2>&1 9<&- || : ;;
        esac
        ! mounted >/dev/null || unmount lazy
    elif is_wanted "$source"; then
        [ -e "$record" ] || echo "$options $source" >"$record"
        echo "$source is mounted already"
        exit 0
    elif [ -e "$record" ]; then
        echo "unmounting $source, whose options have changed"
        unmount gently
        rm -f "$record"
    else
        echo "$source is mounted at $path: unmount it, or set gcsfuse.mount_path to another directory"
        exit 1
    fi
done
rm -f "$record"

if [ -e "$path" ] && ! [ -d "$path" ]; then
    echo "$path is a file: remove it, or set gcsfuse.mount_path to another directory"
    exit 1
fi
make_directory "$path"
if [ -n "$(ls -A -- "$path")" ]; then
    echo "$path has files, which the mount would hide: move them away, or set gcsfuse.mount_path to another directory"
    exit 1
fi

cache={cache}
case $cache in '' | /*) ;; *) cache=$HOME/$cache ;; esac
[ -z "$cache" ] || make_directory "$cache" gcsfuse.cache.dir
# To a file: what gcsfuse starts in the background keeps a pipe open. Nor may it keep the lock.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
code=0
gcsfuse ${cache:+"--cache-dir=$cache"} {flags} "$bucket" "$path" >"$log" 2>&1 9<&- || code=$?
tail -n 20 "$log"
if [ "$code" != 0 ]; then
    case $(cat "$log") in
    *"bucket doesn't exist"* | *"bucket does not exist"* | *"Error 404"*)
        echo "there is no bucket $bucket: correct gcsfuse.bucket_name" ;;
    *"Error 403"* | *"does not have storage."* | *"Error 401"* | *"could not find default credentials"*)
        echo "the worker may not read the bucket $bucket: grant its service account roles/storage.objectUser on it" ;;
    *allow_other*)
        echo "the mount needs allow_other: add the line user_allow_other to /etc/fuse.conf on the worker" ;;
    esac
    exit "$code"
fi
if ! problem=$(answers); then
    echo "$problem"
    unmount lazy
    exit 1
fi
if ! source=$(mounted); then
    echo "gcsfuse succeeded, and nothing is mounted at $path"
    exit 1
fi
echo "$options $source" >"$record"
"""

# `signed-by` trusts Google's key for its own packages only.
# As jobman does; what it makes, such as a RAM disk for a cache, is there before the cache's directory is.
_PREFIX = """
if resolve && mounted >/dev/null && is_wanted "$(mounted)" && problem=$(answers); then
    echo "the bucket is mounted already"
    exit 0
fi
bash -c {prefix} </dev/null || {
    code=$?
    echo "gcsfuse.cache.prefix ended with exit code $code"
    exit "$code"
}
"""

_INSTALL = """# install gcsfuse
mkdir -p {directory}
if command -v gcsfuse && { command -v fusermount3 || command -v fusermount; }; then exit 0; fi
sudo=
if [ "$(id -u)" != 0 ]; then
    sudo='sudo -n'
    if ! $sudo true; then
        echo 'gcsfuse is not installed, and installing it needs root or passwordless sudo'
        exit 1
    fi
fi
if ! command -v apt-get >/dev/null; then
    echo 'gcsfuse is not installed, and this worker has no apt: install gcsfuse and fuse3 on it'
    exit 1
fi
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
@apt@
command -v curl >/dev/null || { apt_update && apt install curl; }
codename=$(lsb_release -c -s 2>/dev/null || { . /etc/os-release && echo "$VERSION_CODENAME"; })
key=/usr/share/keyrings/tpux-gcsfuse.asc
curl -fsSL --retry 3 --max-time 60 -o "$new/key" https://packages.cloud.google.com/apt/doc/apt-key.gpg
$sudo install -m 644 "$new/key" $key
echo "deb [signed-by=$key] https://packages.cloud.google.com/apt gcsfuse-$codename main" |
    $sudo tee /etc/apt/sources.list.d/tpux-gcsfuse.list >/dev/null
apt_update
apt install gcsfuse fuse3
gcsfuse --version
"""

_ALLOW_OTHER = """# allow mounts for other users
if [ "$(id -u)" = 0 ] || grep -qx user_allow_other /etc/fuse.conf 2>/dev/null; then exit 0; fi
echo user_allow_other | sudo -n tee -a /etc/fuse.conf
"""


def install(lock_timeout: float) -> Sh:
    """Return the step that installs gcsfuse where it is missing.

    Args:
        lock_timeout: how many seconds it may wait for the lock of apt or dpkg.
    """
    script = _INSTALL.replace("@apt@", apt.functions(lock_timeout, "or set gcsfuse.lock_timeout"))
    return sh(script, directory=DIRECTORY, timeout=lock_timeout + 1800)


def allow_other() -> Sh:
    """Return the step that lets users other than root mount for others, such as root in a container."""
    return sh(_ALLOW_OTHER)


def check(mount: Mount, *, for_others: bool) -> Sh:
    """Return the step that checks one mount."""
    script = f"# check the mount of the bucket {mount.bucket_name}{_PRELUDE}{_CHECK}"
    facts = _facts(mount, _flags(mount, for_others=for_others))
    return sh(script, may_fail=False, example="", timeout=ANSWER_TIMEOUT + 30.0, **facts)


def examine(mount: Mount, *, for_others: bool) -> Sh:
    """Return the step that prints the path of a mount that does not answer, and why."""
    script = f"# examine the mount of the bucket {mount.bucket_name}{_PRELUDE}{_EXAMINE}"
    facts = _facts(mount, _flags(mount, for_others=for_others))
    return sh(script, may_fail=False, example="", timeout=ANSWER_TIMEOUT + 30.0, **facts)


def prepare(mount: Mount, *, for_others: bool) -> Sh | None:
    """Return the step that runs the script before one mount, unless that is mounted; None if it has none."""
    if mount.cache is None or mount.cache.prefix is None:
        return None
    return sh(
        f"# run cache.prefix for the bucket {mount.bucket_name}{_PRELUDE}{_PREFIX}",
        may_fail=False,
        example="",
        timeout=MOUNT_TIMEOUT,
        prefix=f"\n{mount.cache.prefix}",  # a value that begins with ~/ is refused, and here the shell expands it
        **_facts(mount, _flags(mount, for_others=for_others)),
    )


def mount(mount: Mount, *, for_others: bool) -> Sh:
    """Return the step that mounts one bucket, unless it is mounted.

    Args:
        mount: the bucket.
        for_others: other users must see it.
    """
    return _mount(f"# mount the bucket {mount.bucket_name}{_PRELUDE}", mount, for_others=for_others)


def remount(mount: Mount, *, for_others: bool) -> Sh:
    """Return the step that mounts one bucket again if the server of its mount is dead, and else does nothing."""
    title = f"# mount the bucket {mount.bucket_name} again if its mount is dead"
    facts = _facts(mount, _flags(mount, for_others=for_others))
    preview = sh(
        f"{_PRELUDE}{_ONLY_IF_DEAD}{_ANNOUNCE}", may_fail=False, example="", timeout=ANSWER_TIMEOUT + 30.0, **facts
    )
    return _mount(f"{title}{_PRELUDE}{_ONLY_IF_DEAD}", mount, for_others=for_others).with_preview(preview)


def _mount(beginning: str, mount: Mount, *, for_others: bool) -> Sh:
    flags = _flags(mount, for_others=for_others)
    return sh(
        f"{beginning}{_MOUNT}",
        may_fail=False,
        example="",
        timeout=MOUNT_TIMEOUT,
        flags=flags,
        cache=_cache_directory(mount),
        lock_patience=round(MOUNT_TIMEOUT) // 2,
        **_facts(mount, flags),
    )


def _facts(mount: Mount, flags: list[str]) -> dict[str, str | int]:
    """Return the values of the common part of both scripts."""
    options = json.dumps([mount.bucket_name, flags, _cache_directory(mount)])
    return {
        "path": mount.mount_path,
        "bucket": mount.bucket_name,
        "options": hashlib.sha256(options.encode()).hexdigest()[:16],
        "record": f"{DIRECTORY}/{hashlib.sha256(mount.mount_path.encode()).hexdigest()[:16]}",
        "patience": ANSWER_TIMEOUT,
        "limit": ANSWER_TIMEOUT + 2,
    }


def _cache_directory(mount: Mount) -> str:
    return ((mount.cache and mount.cache.dir) or "").removeprefix("~/")


def _flags(mount: Mount, *, for_others: bool) -> list[str]:
    shared = ["-o", "allow_other"] if for_others else []
    cache = mount.cache.flags() if mount.cache else []
    return [*DEFAULT_FLAGS, *shared, *cache, *(word for option in mount.options for word in shlex.split(option))]
