"""Copies of environments: what is in them, how they become an environment, and those in the job's bucket."""

from __future__ import annotations

from pathlib import PurePosixPath

from tpux import Job, Sh
from tpux_venv.scripts import script_step
from tpux_venv.section import VenvSection

EXCLUDED = (
    "--exclude=./bin/python*",
    "--exclude=./bin/[Aa]ctivate*",
    "--exclude=./pyvenv.cfg",
    "--exclude=./lib64",
    "--exclude=./.tpux-venv",
    "--exclude=./.tpux-venv-co*",
)
"""Options of tar: what a new environment has already, and what is only true of the one that is copied."""

# Turns an empty environment into a copy of the one whose files are in "$new/files".
INSTALL_FILES = r"""
new=$path/.tpux-venv-copy
trap 'rm -rf "$new"' EXIT
rm -rf "$new"
mkdir "$new"
install_files() {
    site=$(cd "$new/files" && echo lib/python3*/site-packages)
    [ -d "$path/$site" ] || { echo "the copy is of another version of Python: $site"; return 1; }
    # Scripts name the Python of their environment in their first lines.
    "$path/bin/python" - "$new/files" "$path" <<'TPUX_REWRITE' || return
import os, sys
files, new = map(os.fsencode, sys.argv[1:])
with open(files + b"/.tpux-venv-home", "rb") as file:
    old = file.read().rstrip(b"\n")
if old != new and os.path.isdir(files + b"/bin"):
    for entry in os.scandir(files + b"/bin"):
        if entry.is_file(follow_symlinks=False):
            with open(entry.path, "r+b") as file:
                lines = file.read().split(b"\n", 3)
                head = [line.replace(old + b"/bin/", new + b"/bin/") for line in lines[:3]]
                if lines[0].startswith(b"#!") and head != lines[:3]:
                    file.seek(0)
                    file.truncate()
                    file.write(b"\n".join(head + lines[3:]))
TPUX_REWRITE
    mv "$path/$site" "$new/replaced" && mv "$new/files/$site" "$path/$site" || return
    rm -rf "$new/files/lib" "$new/files/.tpux-venv-home"
    cp -a "$new/files/." "$path/" || return
    "$path/bin/python" -c 'import site'
}
"""

# Compiled packages differ between versions of Python and machines.
_NAMED = r"""
archive={directory}/$content-$("$path/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-$(uname -m).tar
case $archive in /*) ;; *) archive=$HOME/$archive ;; esac
"""

_TAKE = r"""
[ -e "$archive" ] || { echo "there is no $archive"; exit 1; }
mkdir "$new/files"
tar -C "$new/files" -xf "$archive" && install_files || exit 1
echo "read from $archive"
"""

# Renamed when it is complete: another worker may read it, and this one may die.
_KEEP = r"""
if [ -e "$archive" ]; then exit 0; fi
mkdir -p "${archive%/*}"
code=0
tar -C "$path" -cf "$archive.new" {excluded} . || code=$?
[ "$code" -le 1 ] || { rm -f "$archive.new"; exit "$code"; }
mv -f "$archive.new" "$archive"
"""


def directory_of(job: Job) -> str | None:
    """Return the directory on the workers in which the job's environments are kept: one of its bucket, or None."""
    output = job.job.output_dir
    if not output or "://" in output:
        return None
    sections = (job.sections[word] for word in job.modules if word in job.sections)
    mounts = [path for section in sections for path in section.durable_paths()]
    if not any(PurePosixPath(output).is_relative_to(mount) for mount in mounts):
        return None
    return f"{output.removeprefix('~/')}/.tpux/venv"


def take(section: VenvSection, directory: str) -> Sh:
    """Return the step that copies the environment from the bucket into the new, empty one; it fails if it is not there."""
    script = INSTALL_FILES + _NAMED + _TAKE
    return script_step(section, ("read the environment from the bucket", script), may_fail=True, directory=[directory])


def keep(section: VenvSection, directory: str) -> Sh:
    """Return the step that stores the environment in the bucket, where it can be done without."""
    title = "keep the environment in the bucket"
    return script_step(section, (title, _NAMED + _KEEP), may_fail=True, directory=[directory], excluded=EXCLUDED)
