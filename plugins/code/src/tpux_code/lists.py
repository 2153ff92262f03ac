"""The list of what a snapshot consists of, by which a worker recognizes one that a crash of the machine has damaged.

`~/.tpux/code/lists/ID` has the digests of the files, as this machine knows them, in the format of `sha256sum`, and
`ID.sizes` the sizes and links of what was found to have these digests in the boot that `ID.boot` names. Sizes are
compared each time, digests once in each boot.
"""

from __future__ import annotations

from tpux_code.snapshots import Snapshot

# In the directory `~/.tpux/code`, with its lock held.
FUNCTIONS = """
read -r boot </proc/sys/kernel/random/boot_id

has_digests() { # DIRECTORY LIST
    [ -e "$2" ] || return 1
    [ ! -s "$2" ] || (cd "$1" && sha256sum --check --status) <"$2"
}

sizes() {
    (cd snapshots/{id} && find . ! -type d -printf '%s %l %p\\0') | LC_ALL=C sort -z
}

record_list() { # LIST
    mkdir -p lists
    mv "$1" lists/{id}
    sizes >lists/{id}.sizes
    echo "$boot" >lists/{id}.boot
}

is_whole() {
    [ -d snapshots/{id} ] && [ -e lists/{id}.boot ] || return 1
    sizes | cmp -s - lists/{id}.sizes || return 1
    read -r verified_in <lists/{id}.boot || return 1
    [ "$verified_in" != "$boot" ] || return 0
    has_digests snapshots/{id} lists/{id} || return 1
    echo "$boot" >lists/{id}.boot
}

drop_lists() {
    for list in lists/*; do
        name=${list#lists/}
        [ -d "snapshots/${name%%.*}" ] || rm -f "$list"
    done
    [ ! -d lists ] || rmdir lists 2>/dev/null || :
}
"""


def digests(snapshot: Snapshot) -> bytes:
    """Return the digests of a snapshot's files as `sha256sum` prints and reads them."""
    lines = (_line(file.content, f"./{file.path}") for file in snapshot.files if file.kind != "link")
    return "".join(lines).encode(errors="surrogateescape")


def _line(digest: str, path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    mark = "\\" if escaped != path else ""
    return f"{mark}{digest}  {escaped}\n"
