"""The scripts of the steps (for `sh -e`, in the home directory), and the one that activates, for Bash."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpux import Sh, sh
from tpux_conda.section import CondaSection
from tpux_worker_tools import setup_lock

SETUP_LOCK_TIMEOUT = setup_lock.TIMEOUT
"""Seconds to wait for another job that sets up the environment of the same name on a machine that jobs share."""
FILES = ".tpux/conda"
"""Where the copied files and the marks of incomplete environments are, relative to the worker's home."""

# Sets conda to the program, and kind to micromamba or conda.
FIND_CONDA = """
find_conda() {
    kind=micromamba
    for conda in micromamba "$HOME/.local/bin/micromamba" "$HOME/bin/micromamba" /usr/local/bin/micromamba; do
        if command -v "$conda" >/dev/null; then return; fi
    done
    kind=conda
    for conda in conda "$HOME"/miniforge3/bin/conda "$HOME"/mambaforge/bin/conda "$HOME"/miniconda3/bin/conda \\
        "$HOME"/miniconda/bin/conda "$HOME"/anaconda3/bin/conda /opt/conda/bin/conda /opt/miniconda3/bin/conda; do
        if command -v "$conda" >/dev/null; then return; fi
    done
    return 1
}
"""

_PRELUDE = (
    FIND_CONDA
    + """
name={name} version={version} prune={prune} url={url} digest={digest} content={content} index={index}
files={files} file=$files/$name.yml requirements=$files/$name.txt building=$files/$name.building lock=$files/$name.lock
ready=$files/$name.ready indexes=$files/$name.index code={code} brought_file={brought_file} brought={brought}

exists() {
    "$conda" run -n "$name" sh -c 'test -d "$CONDA_PREFIX/conda-meta"' >/dev/null 2>&1
}

has_version() {
    [ -n "$version" ] || return 0
    found=$("$conda" run -n "$name" python --version) || return
    case $found in
        *"Python $version".* | *"Python $version") ;;
        *)
            echo "the environment $name has $found, not Python $version"
            return 1
            ;;
    esac
}
"""
)


# What tells that a script needs the functions for jobs that share a machine.
_SHARED = re.compile(r"setup_lock |lock_file |_used |remove_environment |find_prefix|mark ")
_USED = """
mark() { # STATE
    echo "$1" >"$building.new"
    mv -f "$building.new" "$building"
}
# Scripts that packages run at the activation may print something before.
find_prefix() {
    prefix=$("$conda" run -n "$name" sh -c 'cd "$CONDA_PREFIX" && printf "\\n@tpux@%s\\n" "$(pwd -P)"' 2>/dev/null |
        sed -n 's/^@tpux@//p')
    [ -n "$prefix" ]
}
environment_is_used() {
    find_prefix && is_used "$lock" CONDA_PREFIX "$prefix"
}
fail_if_environment_used() { # WHY
    find_prefix || return 0
    fail_if_used "$lock" CONDA_PREFIX "$prefix" "the environment $name" "$1" 'or set conda.name'
}
remove_environment() { # WHY
    fail_if_environment_used "$1"
    mark building
    unlock_file
    echo "removing the environment $name $1"
    "$conda" env remove -y -n "$name" || : # there may be little of it
    if exists; then
        echo "the environment $name cannot be removed"
        exit 1
    fi
}
"""


def environment_file(section: CondaSection) -> str:
    """Return the path of the copied environment.yml, relative to the worker's home."""
    return f"{FILES}/{section.name}.yml"


def requirements_file(section: CondaSection) -> str:
    """Return the path of the copied requirements, relative to the worker's home."""
    return f"{FILES}/{section.name}.txt"


def script_step(
    section: CondaSection, script: tuple[str, str], *, may_fail: bool = False, **values: str | int | Sequence[str]
) -> Sh:
    """Return a step that runs one of the scripts below. Its first line is the title, which logs and failures show.

    Args:
        section: the section.
        script: the title and the script.
        may_fail: continue if the script fails.
        values: the values of the script's own placeholders.
    """
    title, body = script
    return sh(
        f"# {title}{_PRELUDE}{setup_lock.functions() + _USED if _SHARED.search(body) else ''}{body}",
        may_fail=may_fail,
        example="",
        timeout=3600.0,
        content=section.digest(),
        index=section.index_digest(),
        name=section.name,
        version=section.python or "",
        prune="--prune" if section.prune else "",
        url=section.installer_url or "",
        digest=(section.installer_sha256 or "").lower(),
        code=section.brought[0].directory or section.brought[1].directory,
        brought_file=section.brought[0].file,
        brought=section.brought[1].file,
        files=FILES,
        **values,
    )


CHECK = (
    "check the environment",
    """
if ! find_conda; then
    echo 'conda is not installed'
    exit 1
fi
# While another job updates the environment that this one was to use, it stays.
is_complete() {
    state=ready
    if [ -e "$building" ]; then read -r state <"$building" || state=building; fi
    [ "$state" = ready ] || { [ "$state" = updating ] && is_updated "$lock" {owner} "$prefix"; }
}
if ! find_prefix || ! [ -d "$prefix/conda-meta" ] || ! is_complete; then
    echo "no complete environment $name"
    exit 1
fi
has_version
# Core compares the section, and not what the code brings.
if [ -n "$code" ] && [ "$(head -n 1 "$ready" 2>/dev/null)" != "$content" ]; then
    echo 'the requirements in the code have changed'
    exit 1
fi
lock_file "$lock"
if ! is_complete; then
    echo "another job sets up the environment $name"
    exit 1
fi
[ -n "${TPUX_CHECK_ONLY-}" ] || record_use "$lock" {owner} {job} "$prefix"
""",
)

# An installation that was cut off is begun again. Beside each installer of Miniforge is a file with its digest.
INSTALL = (
    "find or install conda",
    """
if ! [ -e $files/installing ] && find_conda; then
    echo "$conda"
    exit
fi
target=$HOME/miniforge3
if [ -e "$target" ] && ! [ -e $files/installing ]; then
    echo "$target exists and has no conda: remove it"
    exit 1
fi
mkdir -p $files
installer=$(mktemp)
trap 'rm -f "$installer"' EXIT
if [ -z "$url" ]; then
    url=https://github.com/conda-forge/miniforge/releases/latest/download/Miniforge3-Linux-$(uname -m).sh
    digest=$(curl -fsSL --retry 3 "$url.sha256" | cut -d ' ' -f 1)
fi
curl -fsSL --retry 3 -o "$installer" "$url"
if ! echo "$digest  $installer" | sha256sum --check --status; then
    echo "$url has the SHA-256 digest $(sha256sum <"$installer" | cut -d ' ' -f 1), not $digest"
    exit 1
fi
touch $files/installing
rm -rf "$target"
bash "$installer" -b -p "$target"
rm $files/installing
if ! find_conda; then
    echo "there is no conda in $target after the installation"
    exit 1
fi
""",
)

# The file `building` exists until everything is installed. It contains `updating` if the environment was complete
# before. What is there of one whose set-up was cut off is removed, and so is an environment with packages from another
# index, which pip would take for what the requirements name. None is removed while a program uses it; then an update
# that was cut off, or has failed, is tried again.
PREPARE = (
    "prepare the environment",
    """
acquire_setup_lock "$lock" {owner} {job} {limit} "the environment $name" 'or set conda.name'
lock_file "$lock"
state=ready has_conda= why=
if [ -e "$building" ]; then read -r state <"$building" || state=building; fi
if ! [ -e $files/installing ] && find_conda; then has_conda=yes; fi
if [ -z "$has_conda" ]; then
    state=building
elif [ "$state" = building ]; then
    why='from a set-up that was cut off'
elif [ "$state" = updating ] && ! environment_is_used; then
    why='from an update that was cut off or has failed'
elif ! exists; then
    state=building
elif [ -e "$indexes" ] && [ "$(cat "$indexes")" != "$index" ]; then
    why='with packages from another index'
elif [ -n {from_file} ]; then
    # An older micromamba cannot update from a file.
    "$conda" env --help | grep -qw update || why='and micromamba cannot update it'
elif ! has_version; then
    why='with another version of Python'
fi
if [ -n "$why" ]; then
    remove_environment "$why"
elif [ "$state" = building ]; then
    mark building
else
    mark updating
fi
[ -n "$has_conda" ] || echo 'no conda'
""",
)

CREATE_FROM_FILE = (
    "create or update the environment from its file",
    """
trap 'rm -f "$file"' EXIT
trap 'exit 143' HUP INT TERM
find_conda
# conda runs pip in the directory of the file, which brings what its requirements refer to.
source=$file
[ -z "$brought_file" ] || source=$HOME/$code/$brought_file
if exists; then
    set -- env update -n "$name" -f "$source" $prune
else
    set -- env create -n "$name" -f "$source"
fi
case $kind in micromamba) set -- "$@" -y ;; esac
if ! "$conda" "$@"; then
    echo "the environment $name cannot be made from conda.config_file: see above"
    exit 1
fi
has_version
""",
)

CREATE = (
    "create the environment",
    """
find_conda
if exists && has_version; then exit; fi
if exists; then
    lock_file "$lock"
    remove_environment 'with another version of Python'
fi
"$conda" create -y -n "$name" -c conda-forge "python${version:+=$version}"
""",
)

# In a file, not as arguments: it may contain the URL of an index with a password, which must not stay on the worker. So
# may environment.yml.
# dash runs no trap for EXIT when a signal ends it.
INSTALL_REQUIREMENTS = (
    "install the requirements with pip",
    """
said=
trap 'rm -f "$requirements" "$said"' EXIT
trap 'exit 143' HUP INT TERM
said=$(mktemp)
find_conda
requirements=$PWD/$requirements
set --
[ -z "$brought" ] || set -- --requirement "$PWD/$code/$brought"
[ ! -e "$requirements" ] || set -- "$@" --requirement "$requirements"
[ -z "$code" ] || cd "$code"
# conda prints all of it at the end, and its own report after that: what pip says is the reason.
code=0
"$conda" run -n "$name" python -m pip install --no-input --disable-pip-version-check "$@" \\
    >"$said" 2>&1 || code=$?
cat "$said"
if [ "$code" != 0 ]; then
    grep '^ERROR: ' "$said" | tail -n 1
    echo "conda.requirements cannot be installed: correct them, or see above"
    exit "$code"
fi
""",
)

# What has been made, and from what: the digest, the home directory, and, relative to that, the environment and conda
# itself. The latter two are empty if they are elsewhere, where a copy must not put anything.
MARK_READY = (
    "mark the environment as ready",
    """
find_conda
home=$(pwd -P)
find_prefix
root=$(command -v "$conda")
root=${root%/bin/conda}
in_home() { # PATH: print it relative to the home directory; nothing if it is elsewhere
    case $1 in "$home"/*) echo "${1#"$home"/}" ;; *) echo ;; esac
}
printf '%s\\n' "$content" "$home" "$(in_home "$prefix")" "$(in_home "$root")" >"$ready"
echo "$index" >"$indexes"
sync -f "$prefix" # a crash of the machine must not leave the mark without what it stands for
rm -f "$building"
record_use "$lock" {owner} {job} "$prefix"
release_setup_lock "$lock" {owner}
""",
)

# Another job that holds the lock needs its file.
CLEAN_UP = (
    "remove the files of a set-up that was cut off",
    """
drop_setup_lock "$lock" {owner} || exit 0
rm -f "$file" "$requirements"
""",
)

# Run by Bash, like the command: $1 is the name, the rest is the command. The hook defines the function that activates
# in this shell; `conda run` would not do: it accepts no newline in an argument.
ACTIVATE = (
    FIND_CONDA
    + """
name=$1 way_out=$2
shift 2
activate() {
    find_conda || return
    case $kind in
        micromamba) hook=$("$conda" shell hook --shell bash) ;;
        conda) hook=$("$conda" shell.bash hook) ;;
    esac && eval "$hook" && "$kind" activate "$name" && [ -d "$CONDA_PREFIX/conda-meta" ]
}
if ! activate; then
    echo "tpux: cannot activate the environment $name; the command was not run$way_out" >&2
    exit 127
fi
exec "$@"
"""
)
