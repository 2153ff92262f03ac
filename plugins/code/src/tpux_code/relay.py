"""The step by which a worker copies a snapshot from another worker, in place of getting it from this machine.

`~/.tpux/code/awaited-ID` on a worker says that it is about to have the snapshot: those that copy from it wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpux import Peer
from tpux_code.lists import FUNCTIONS
from tpux_code.snapshots import Snapshot
from tpux_worker_tools import peer_copy

Value = str | int | Sequence[str]

# Runs on the other worker, without `-e`. It sends hard links: the snapshot itself may become the next one meanwhile.
_SENDER = """
cd {root} 2>/dev/null || exit 76
if ! [ -d snapshots/{id} ]; then
    [ -n "$(find awaited-{id} -mmin -60 2>/dev/null)" ] && exit 75
    exit 76
fi
[ "$1" = send ] || exit 0
links=$(mktemp -d .links-XXXXXX) || exit 77
trap 'rm -rf "$links"' EXIT
trap 'exit 143' HUP INT TERM PIPE
exec 9>>lock
flock -w 600 9 && cp -al snapshots/{id} "$links/files" || exit 77
exec 9>&-
tar -C "$links/files" -cf - .
"""

# What is received is counted: tar ends well after an archive that was cut off between two files.
_RECEIVE = """# copy the code from another worker
mkdir -p {root}/snapshots {root}/jobs
touch {root}/awaited-{id}
find {root} -maxdepth 1 '(' -name '.copy-*' -o -name '.links-*' ')' -mmin +1440 -exec rm -rf '{}' +
new=$(mktemp -d {root}/.copy-XXXXXX)
trap 'rm -rf "$new"' EXIT
trap 'exit 143' HUP INT TERM
install_files() {
    sizes=$(find "$new/files" -type f -printf '%s\\n' -o -type l -printf '0\\n')
    counted='NF { files++; bytes += $1 } END { printf "%d files, %.0f bytes", files, bytes }'
    found=$(printf '%s\\n' "$sizes" | awk "$counted")
    expected={expected}
    [ "$found" = "$expected" ] || { echo "the copy is not complete: $found, not $expected"; return 1; }
    (
        flock -w 600 9 || exit
        cd {root} || exit
        copy=$OLDPWD/$new/files
@@FUNCTIONS@@
        if ! [ -d snapshots/{id} ]; then
            has_digests "$copy" jobs/{key}.list || { echo 'the copy is damaged'; exit 1; }
            sync -f "$copy"
            mv "$copy" snapshots/{id} || exit
            record_list jobs/{key}.list
        fi
        touch snapshots/{id}
        echo {id} >jobs/{key}.sent
        rm -f awaited-{id}
        ls -1t snapshots | tail -n +{too_many} | while read -r old; do rm -rf "snapshots/$old"; done
        drop_lists
    ) 9>>{root}/lock
}
""".replace("@@FUNCTIONS@@", FUNCTIONS)


def copy_script(snapshot: Snapshot, index: int, peers: Sequence[Peer]) -> tuple[str, dict[str, Value]]:
    """Return the script that copies a snapshot from another worker, and values; it fails where no other worker has it.

    Args:
        snapshot: the snapshot.
        index: this worker's number.
        peers: the other workers that it reaches, at least one.
    """
    script, values = peer_copy.from_workers(index, peers, _SENDER)
    return _RECEIVE + script, {**values, "expected": f"{len(snapshot.files)} files, {snapshot.size} bytes"}
