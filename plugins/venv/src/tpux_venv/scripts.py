"""What the steps run on a worker, in a POSIX shell, in the home directory."""

from __future__ import annotations

from tpux import Sh, sh
from tpux_venv.section import VenvSection

# `{name}` takes a quoted value. Only the worker knows its home, so `~/` and relative paths are resolved there.
# The mark is `ready` once all is installed, `building` before.
_BEGIN = """
path={path} version={version} settings=$HOME/{settings} requirements=$HOME/{requirements}
case $path in "~") path=$HOME ;; "~/"*) path=$HOME/${path#"~/"} ;; /*) ;; *) path=$HOME/$path ;; esac
mark=$path/.tpux-venv
PATH=$PATH:$HOME/.local/bin:$HOME/.tpux/uv/bin

# Whether a Python starts and is of the version that the config wants.
fits() {
    "$1" - "$version" <<'EOF'
import sys
wanted, have = sys.argv[1], "%d.%d" % sys.version_info[:2]
if wanted not in ("", have):
    sys.exit("%s is Python %s, not %s" % (sys.executable, have, wanted))
EOF
}
"""


def settings_file(section: VenvSection) -> str:
    """Where the variables that say where packages come from are, from the worker's home."""
    return f".tpux/venv/{section.name}.sh"


def requirements_file(section: VenvSection) -> str:
    """Where the copy of the requirements file is, from the worker's home."""
    return f".tpux/venv/{section.name}.txt"


def script_step(section: VenvSection, script: tuple[str, str], *, may_fail: bool = False) -> Sh:
    """One of the scripts below as a step; its title is its first line, which logs and failures show."""
    title, body = script
    return sh(
        f"# {title}{_BEGIN}{body}",
        may_fail=may_fail,
        path=section.place,
        version=section.python or "",
        settings=settings_file(section),
        requirements=requirements_file(section),
    )


CHECK = (
    "look for the environment",
    """
if [ "$(cat "$mark" 2>/dev/null)" != ready ]; then
    echo "there is no complete environment in $path"
    exit 1
fi
fits "$path/bin/python"
""",
)

# An environment that is whole stays, and what is missing is installed into it. One that was left half-built,
# or has another Python, goes; what is no environment is never touched.
PREPARE = (
    "see what is there",
    """
if [ -d "$path" ] && [ -n "$(ls -A "$path")" ] && ! [ -e "$path/pyvenv.cfg" ] && ! [ -e "$mark" ]; then
    echo "$path is there and is no virtual environment: name another place in venv.path"
    exit 1
fi
before=$(cat "$mark" 2>/dev/null || echo ready)
if [ "$before" = ready ] && [ -e "$path/pyvenv.cfg" ] && fits "$path/bin/python"; then
    echo building >"$mark"
    echo kept
else
    rm -rf -- "$path"
    mkdir -p -- "$path"
    echo building >"$mark"
fi
""",
)

CREATE = (
    "make the environment with the worker's own Python",
    """
for python in "python$version" python3; do
    if fits "$python" 2>/dev/null && "$python" -c 'import ensurepip, venv'; then
        exec "$python" -m venv "$path"
    fi
done
echo "there is no python${version:-3} with the module venv on this worker"
exit 1
""",
)

CREATE_WITH_UV = (
    "make the environment with uv",
    """
. "$settings"
exec uv venv --seed --allow-existing --python "${version:-3}" "$path"
""",
)

# The lists' lock is not among those that apt itself waits for: hence the pauses.
INSTALL_PYTHON = (
    "install Python with apt",
    """
python=python${version:-3} sudo=
if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true; then
        echo "there is no $python-venv on this worker, and nobody here may install it (no root, no sudo)"
        exit 1
    fi
    sudo='sudo -n'
fi
for pause in 5 10 20 40 ''; do
    if $sudo apt-get update -q || [ -z "$pause" ]; then break; fi
    sleep "$pause"
done
$sudo env DEBIAN_FRONTEND=noninteractive \\
    apt-get -q -y -o DPkg::Lock::Timeout=600 install "$python" "$python-venv"
""",
)

# `--target` installs beside everything else, so that Debian's "externally managed" does not forbid it.
GET_UV = (
    "look for uv, or get it",
    """
. "$settings"
if uv --version; then exit; fi 2>/dev/null
export PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p "$HOME/.tpux"
fresh=$(mktemp -d "$HOME/.tpux/uv.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
python=$path/bin/python
[ -x "$python" ] || python=python3
"$python" -m pip install --quiet --target "$fresh/uv" uv
rm -rf "$HOME/.tpux/uv"
mv "$fresh/uv" "$HOME/.tpux/uv"
uv --version
""",
)

INSTALL_WITH_UV = (
    "install the requirements with uv",
    """
. "$settings"
exec uv pip install --python "$path/bin/python" --requirement "$requirements"
""",
)

INSTALL_WITH_PIP = (
    "install the requirements with pip",
    """
. "$settings"
exec "$path/bin/python" -m pip install --disable-pip-version-check --requirement "$requirements"
""",
)

MARK_READY = (
    "say that the environment is ready",
    """
fits "$path/bin/python"
echo ready >"$mark"
""",
)

# Bash, as the command itself: $1 is the place, the rest the command. An environment that was moved, or has lost
# its Python, activates without complaint and gives the system's: hence the second look.
ACTIVATE = """
path=$1
shift
case $path in "~") path=$HOME ;; "~/"*) path=$HOME/${path#"~/"} ;; /*) ;; *) path=$HOME/$path ;; esac
if ! { . "$path/bin/activate" && [ "$VIRTUAL_ENV" -ef "$path" ] && [ -x "$path/bin/python" ]; }; then
    echo "tpux: the environment $path cannot be activated: nothing of the command was run" >&2
    exit 127
fi
exec "$@"
"""
