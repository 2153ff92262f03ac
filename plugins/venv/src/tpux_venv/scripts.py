"""The scripts of the steps, for a POSIX shell in the worker's home directory, and the script that activates."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from tpux import Sh, sh
from tpux_venv.section import VenvSection
from tpux_worker_tools import apt, setup_lock

TIMEOUT = 3600.0
SETUP_LOCK_TIMEOUT = setup_lock.TIMEOUT
"""Seconds to wait for another job that sets up the environment of the same name on a machine that jobs share."""
# `{name}` is replaced by a quoted value. Relative paths are resolved on the worker, which knows its home.
# The marker file contains `building`, or `updating` if the environment was complete before, until everything is
# installed, then `ready`; `contents` says from what, and `indexes` from where.
_PRELUDE = """
path={path} version={version} content={content} index={index}
settings=$HOME/{settings} requirements=$HOME/{requirements} code={code} brought={brought}
packages={packages}
case $path in /*) ;; *) path=$HOME/$path ;; esac
marker=$path/.tpux-venv contents=$path/.tpux-venv-content indexes=$path/.tpux-venv-index
PATH=$PATH:$HOME/.local/bin:$HOME/.tpux/uv/bin

# The index's URL may have a password, which must not stay on the worker.
read_settings() {
    . "$settings"
    rm -f "$settings"
}

# Paths in requirements that the code brings count from its directory.
go_to_code() {
    [ -z "$code" ] || cd "$HOME/$code"
    [ -z "$brought" ] || requirements=$HOME/$code/$brought
}

# Succeeds if the given Python starts and has the configured version.
has_version() {
    "$1" - "$version" <<'EOF'
import sys
expected, actual = sys.argv[1], "%d.%d" % sys.version_info[:2]
if expected not in ("", actual):
    sys.exit("%s is Python %s, not %s" % (sys.executable, actual, expected))
EOF
}
"""


# What tells that a script needs the functions for jobs that share a machine.
_SHARED = re.compile(r"setup_lock |lock_file |_used |mark ")
# One file for each directory, however it is written. A link to one becomes a directory if it is created again, so that
# has the same file.
_USED = """
path_of_lock() {
    if [ -L "${path%/}" ]; then
        parent=$(dirname -- "$path")
        echo "$(readlink -m -- "$parent")/$(basename -- "$path")"
    else
        readlink -m -- "$path"
    fi
}
set -- $(path_of_lock | cksum)
lock=.tpux/venv/$1-$2.lock
mark() { # STATE
    if [ -e "$path/pyvenv.cfg" ]; then
        echo "$1" >"$marker.new"
        mv -f "$marker.new" "$marker"
    else
        echo "$1" >"$marker" # which says that the directory is to be an environment, even if it is empty
    fi
}
environment_is_used() {
    is_used "$lock" VIRTUAL_ENV "$path"
}
fail_if_environment_used() { # WHY
    fail_if_used "$lock" VIRTUAL_ENV "$path" "the environment $path" "$1" 'or set venv.name'
}
"""


def settings_file(section: VenvSection) -> str:
    """Return the path of the package index settings, relative to the worker's home."""
    return f"{_files(section)}.sh"


def requirements_file(section: VenvSection) -> str:
    """Return the path of the copied requirements file, relative to the worker's home."""
    return f"{_files(section)}.txt"


def _files(section: VenvSection) -> str:
    """Return the beginning of the paths of files for a set-up."""
    if section.path is None:
        return f".tpux/venv/{section.name}"
    return f".tpux/venv/+{hashlib.sha256(section.path.encode()).hexdigest()[:16]}"


def script_step(
    section: VenvSection, script: tuple[str, str], *, may_fail: bool = False, **values: str | int | Sequence[str]
) -> Sh:
    """Return a step that runs one of the scripts below. Its first line is the title, which logs and failures show.

    Args:
        section: the section.
        script: the title and the script.
        may_fail: go on if the script fails.
        values: the values of the script's own placeholders.
    """
    title, body = script
    return sh(
        f"# {title}{_PRELUDE}{setup_lock.functions() + _USED if _SHARED.search(body) else ''}{body}",
        may_fail=may_fail,
        example="",
        timeout=TIMEOUT,
        path="." if section.directory == "~" else section.directory.removeprefix("~/"),
        version=section.python or "",
        settings=settings_file(section),
        requirements=requirements_file(section),
        content=section.digest(),
        index=section.index_digest(),
        code=section.brought.directory,
        brought=section.brought.file,
        packages=section.brought.packages,
        **values,
    )


CHECK = (
    "check the environment",
    """
# While another job updates the environment that this one was to use, it stays.
is_complete() {
    state=
    if [ -e "$marker" ]; then read -r state <"$marker" || :; fi
    [ "$state" = ready ] || { [ "$state" = updating ] && is_updated "$lock" {owner} "$path"; }
}
if ! is_complete; then
    echo "no complete environment in $path"
    exit 1
fi
has_version "$path/bin/python"
# Core compares the section, and not what the code brings.
if [ -n "$code" ] && [ "$(cat "$contents" 2>/dev/null)" != "$content" ]; then
    echo 'the requirements in the code have changed'
    exit 1
fi
lock_file "$lock"
if ! is_complete; then
    echo "another job sets up $path"
    exit 1
fi
[ -n "${TPUX_CHECK_ONLY-}" ] || record_use "$lock" {owner} {job} "$path"
""",
)

_ACQUIRE_SETUP_LOCK = 'acquire_setup_lock "$lock" {owner} {job} {limit} "$path" \'or set venv.name\'\n'
_RELEASE_SETUP_LOCK = 'release_setup_lock "$lock" {owner}\n'

# A complete environment is kept and updated. An incomplete one, or one with another version of Python, is deleted, and
# so is one whose packages come from another index: an installer would take them for what the requirements name.
# A directory that is not an environment is never changed, and an environment that is used is not deleted: an update of
# it that was cut off, or has failed, is tried again.
PREPARE = (
    "prepare the directory",
    _ACQUIRE_SETUP_LOCK
    + """
if [ -d "$path" ] && [ -n "$(ls -A "$path")" ] && ! [ -e "$path/pyvenv.cfg" ] && ! [ -e "$marker" ]; then
    echo "$path exists and is not a virtual environment: set venv.path to another directory"
    exit 1
fi
lock_file "$lock"
previous=$(cat "$marker" 2>/dev/null || echo ready)
why=
if [ "$previous" = updating ] && environment_is_used; then previous=ready; fi
if [ "$previous" != ready ]; then
    why='from a set-up that was cut off'
elif ! [ -e "$path/pyvenv.cfg" ] || ! has_version "$path/bin/python"; then
    why='with another version of Python'
elif [ -e "$indexes" ] && [ "$(cat "$indexes")" != "$index" ]; then
    why='with packages from another index'
fi
if [ -z "$why" ]; then
    mark updating
    echo kept
else
    fail_if_environment_used "$why"
    [ ! -e "$path/pyvenv.cfg" ] || echo "the environment is created again: the former one, $why, is deleted"
    # Python creates no environment at a link, which may be one to a local SSD that is gone after a preemption.
    [ ! -L "${path%/}" ] || rm -f -- "${path%/}"
    mkdir -p -- "$path"
    mark building
    unlock_file
    find "$path/" -mindepth 1 -maxdepth 1 ! -name .tpux-venv -exec rm -rf '{}' +
fi
""",
)

_CREATE = """
for python in "python$version" python3; do
    if has_version "$python" 2>/dev/null && "$python" -c 'import @modules@'; then
        "$python" -m venv --without-pip "$path"
@pip@        exit
    fi
done
echo "no python${version:-3} with the venv module on this worker"
exit 1
"""

# `venv` would install pip with pip, which takes seconds. Its wheel is unpacked, as pip does. Where it is not whole, as
# that of some distributions, which needs others, pip is installed as usual. Python before 3.12 adds setuptools, which
# programs import.
_UNPACK_PIP = """
        "$path/bin/python" - <<'TPUX_PIP' || exec "$python" -m venv "$path"
import ensurepip, glob, os, sys, sysconfig, zipfile
site, scripts = sysconfig.get_path("purelib"), sysconfig.get_path("scripts")
places = [sysconfig.get_config_var("WHEEL_PKG_DIR"), os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")]
for name in ["pip", "setuptools"][: 1 if sys.version_info >= (3, 12) else 2]:
    found = [each for place in places if place for each in glob.glob(os.path.join(place, name + "-*.whl"))]
    if not found:
        sys.exit(1)
    with zipfile.ZipFile(found[0]) as wheel:
        if name == "pip" and "pip/_vendor/requests/__init__.py" not in wheel.namelist():
            sys.exit(1)
        wheel.extractall(site)
for name in ["pip", "pip3", "pip%d.%d" % sys.version_info[:2]]:
    with open(os.path.join(scripts, name), "w") as file:
        file.write('#!/bin/sh\\nexec "$(dirname -- "$0")/python" -m pip "$@"\\n')
    os.chmod(file.name, 0o755)
TPUX_PIP
"""

CREATE = (
    "create the environment with the worker's Python",
    _CREATE.replace("@modules@", "ensurepip, venv").replace("@pip@", _UNPACK_PIP),
)

# Needs neither ensurepip nor an index: a copy brings pip.
CREATE_WITHOUT_PIP = (
    "create an environment without pip",
    _CREATE.replace("@modules@", "venv").replace("@pip@", ""),
)

CREATE_WITH_UV = (
    "create the environment with uv",
    """
read_settings
exec uv venv --seed --allow-existing --python "${version:-3}" "$path"
""",
)

_INSTALL_PYTHON = """
python=python${version:-3} sudo=
if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true; then
        echo "$python-venv is not installed, and installing it needs root or passwordless sudo"
        exit 1
    fi
    sudo='sudo -n'
fi
@apt@
apt_update
apt install "$python" "$python-venv"
"""


def install_python() -> tuple[str, str]:
    """Return the title and the script that installs Python with apt."""
    return "install Python with apt", _INSTALL_PYTHON.replace("@apt@", apt.functions())


# `--target` installs into a separate directory, which Debian's "externally managed" Python allows.
GET_UV = (
    "find or install uv",
    """
read_settings
if uv --version; then exit; fi 2>/dev/null
export PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p "$HOME/.tpux"
new=$(mktemp -d "$HOME/.tpux/uv.XXXXXX")
trap 'rm -rf "$new"' EXIT
python=$path/bin/python
"$python" -c 'import pip' 2>/dev/null || python=python3
"$python" -m pip install --quiet --target "$new/uv" uv
rm -rf "$HOME/.tpux/uv"
mv "$new/uv" "$HOME/.tpux/uv"
uv --version
""",
)

INSTALL_WITH_UV = (
    "install the requirements with uv",
    """
read_settings
go_to_code
set -- --requirement "$requirements"
# Else uv takes a directory for unchanged if its pyproject.toml is.
if [ -n "$packages" ]; then set -- --refresh "$@"; fi
exec uv pip install --python "$path/bin/python" "$@"
""",
)

INSTALL_WITH_PIP = (
    "install the requirements with pip",
    """
read_settings
go_to_code
exec "$path/bin/python" -m pip install --no-input --disable-pip-version-check --requirement "$requirements"
""",
)

# The requirements may have a password too. The installation may be repeated, so they stay until it has succeeded.
MARK_READY = (
    "mark the environment as ready",
    """
rm -f "$settings" "$requirements"
has_version "$path/bin/python"
echo "$path" >"$path/.tpux-venv-home"
echo "$content" >"$contents"
echo "$index" >"$indexes"
sync -f "$path" # a crash of the machine must not leave the mark without what it stands for
mark ready
record_use "$lock" {owner} {job} "$path"
"""
    + _RELEASE_SETUP_LOCK,
)

# Another job that holds the lock needs its files.
CLEAN_UP = (
    "remove what a set-up that was cut off has left",
    """
drop_setup_lock "$lock" {owner} || exit 0
rm -f "$settings" "$requirements"
""",
)

# Run by Bash, like the command: $1 is the path, the rest is the command. Activating an environment that was moved or
# has no Python succeeds and leaves the system's Python in PATH, so the result is verified.
ACTIVATE = """
path=$1 way_out=$2
shift 2
case $path in "~") path=$HOME ;; "~/"*) path=$HOME/${path#"~/"} ;; /*) ;; *) path=$HOME/$path ;; esac
if ! { . "$path/bin/activate" && [ "$VIRTUAL_ENV" -ef "$path" ] && [ -x "$path/bin/python" ]; }; then
    echo "tpux: cannot activate the environment $path; the command was not run$way_out" >&2
    exit 127
fi
exec "$@"
"""
