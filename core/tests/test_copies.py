"""Copies between workers: how often each one sends, whichever of them have survived."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tpux import Peer, copies, sh

WORKERS = 12
SENDER = """
[ -e built ] || exit 76
[ "$1" = send ] || exit 0
echo >>sent
exec tar -cf - built
"""
# Does not wait for whole seconds.
MODULE = """
new={directory}/new
mkdir "$new"
install_files() { mv "$new/files/built" {directory}; }
sleep() { command sleep 0.05; }
"""


def set_up_all(root: Path, survivors: set[int]) -> None:
    """Copy to all the workers that have lost what was built, at the same time."""
    for number in range(WORKERS):
        (root / str(number)).mkdir()
    for number in survivors:
        (root / f"{number}/built").write_text("x")
    peers = [
        Peer(number, ("sh", "-c", 'cd "$1" && exec sh -s', "-", str(root / str(number)))) for number in range(WORKERS)
    ]
    running = []
    for number in set(range(WORKERS)) - survivors:
        others = [peer for peer in peers if peer.index != number]
        script, values = copies.from_workers(number, others, SENDER)
        step = sh(MODULE + script, directory=str(root / str(number)), **values)
        running.append(subprocess.Popen(["sh", "-e", "-c", step.script], stdout=subprocess.PIPE, text=True))
    for process in running:
        output, _ = process.communicate()
        assert process.returncode == 0, output


def test_no_worker_sends_more_than_twice():
    parents = [copies.parent_of(number, range(64)) for number in range(64)]
    assert parents[0] is None
    assert max(parents.count(number) for number in range(64)) == 2
    assert copies.parent_of(7, [3, 9]) == 3
    assert copies.parent_of(3, [7, 9]) is None


# Below worker 1 are 3 and 4, below 2 are 5 and 6, below 3 are 7 and 8, and below 5 is 11.
@pytest.mark.parametrize("survivors", [{2}, {5}, {1, 2}, {2, 5}, {3, 11}, {1, 3, 4}, {2, 3, 6}])
def test_no_survivor_sends_more_than_twice(tmp_path, survivors):
    set_up_all(tmp_path, survivors)
    sent = {path.parent.name: path.read_text().count("\n") for path in tmp_path.glob("*/sent")}
    assert sum(sent.values()) == WORKERS - len(survivors)
    assert max(sent.values()) <= 2, sent


@pytest.mark.parametrize(
    ("requirements", "url", "same"),
    [
        (b"-i https://a/cpu\njax==2\nnumpy", "https://b/cpu", True),
        (b"-i https://ann:p/w@a/cpu?token=1\njax", "https://ann:old@b/cpu", True),
        (b"dependencies:\n  - pip:\n    - -i https://a/cpu\n    - jax\n", "https://b/cpu", True),
        (b"-i https://a/cpu\n# see --index-url\njax\n-r more.txt", "https://b/cpu", True),
        (b"-i https://a/tpu\njax", "https://b/cpu", False),
        (b"-i https://a/cpu\n--find-links=https://a/x\njax", "https://b/cpu", False),
        (b"jax", "https://b/cpu", False),
        (b"-i https://a/cpu\njax", "https://b/tpu", False),
        (b"-i https://a/cpu\njax", None, False),
    ],
)
def test_the_digest_of_indexes_changes_with_them_only(requirements, url, same):
    digest = copies.index_digest(b"-i https://a/cpu\njax", "https://b/cpu")
    assert (copies.index_digest(requirements, url) == digest) == same
