"""Copies between workers: how often each one sends, whichever of them have survived."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tpux import Peer, sh
from tpux_worker_tools import peer_copy

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
        script, values = peer_copy.from_workers(number, others, SENDER)
        step = sh(MODULE + script, directory=str(root / str(number)), **values)
        running.append(subprocess.Popen(["sh", "-e", "-c", step.script], stdout=subprocess.PIPE, text=True))
    for process in running:
        output, _ = process.communicate()
        assert process.returncode == 0, output


def test_no_worker_sends_more_than_twice():
    parents = [peer_copy.parent_of(number, range(64)) for number in range(64)]
    assert parents[0] is None
    assert max(parents.count(number) for number in range(64)) == 2
    assert peer_copy.parent_of(7, [3, 9]) == 3
    assert peer_copy.parent_of(3, [7, 9]) is None


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
        (b"-i https://a/cpu # the cluster's\r\njax", "https://b/cpu", True),
        (b"--index-url=https://a/cpu/\njax", "https://b/cpu/", True),
        (b"--index-url \\\n  https://a/cpu\njax", "https://b/cpu", True),
        (b"--pre -ihttps://a/cpu", "https://b/cpu", True),
        (b"  - '--index https://a/cpu'", "https://b/cpu", True),
        (b"# see \\\n-i https://a/cpu", "https://b/cpu", True),
        (b"-i https://a/tpu\njax", "https://b/cpu", False),
        (b"-i https://a/cpu#tpu\njax", "https://b/cpu", False),
        (b"--extra-index-url https://a/cpu\njax", "https://b/cpu", False),
        (b"-i https://a/cpu --no-index\njax", "https://b/cpu", False),
        (b"-i https://a/cpu\n--find-links=https://a/x\njax", "https://b/cpu", False),
        (b"jax", "https://b/cpu", False),
        (b"-i https://a/cpu\njax", "https://b/tpu", False),
        (b"-i https://a/cpu\njax", None, False),
    ],
)
def test_the_digest_of_indexes_changes_with_them_only(requirements, url, same):
    digest = peer_copy.index_digest(b"-i https://a/cpu\njax", "https://b/cpu")
    assert (peer_copy.index_digest(requirements, url) == digest) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("-fhttps://a/x", "-fhttps://b/x"),
        ("-ia", "-fa"),
        ("--index-url \\\nhttps://a", "--index-url \\\nhttps://b"),
        ("-i https://a.org/w@1/x", "-i https://b.org/w@1/x"),
        ("-i https://ann@a.org/w@1/x", "-i https://ann@b.org/w@1/x"),
        ("-i https://a.org:8080/w@1/x", "-i https://b.org:8080/w@1/x"),
        ("-i https://a.org:8080/w@1/x", "-i https://a.org:8080/v@1/x"),
        ("-f file:///a/w@1", "-f file:///b/w@1"),
        ("-f wheels@1", "-f more@1"),
    ],
)
def test_the_digests_of_two_indexes_differ(one, other):
    assert peer_copy.index_digest(one.encode()) != peer_copy.index_digest(other.encode())


def test_a_find_links_is_the_same_in_all_forms():
    forms = (b"-f https://a/x", b"-fhttps://a/x", b"--find-links https://a/x/", b"--find-links='https://a/x' # local")
    assert len({peer_copy.index_digest(form) for form in forms}) == 1


words = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")))


@given(words, words, st.sampled_from(["-i ", "--extra-index-url=", "-f"]))
def test_a_password_is_not_in_the_digest_of_an_index(user, password, option):
    assume(re.match("[^/@:]+:[0-9]+/", f"{user}:{password}") is None)  # a host with a port, and a path
    url, bare = f"https://{user}:{password}@host/simple", "https://host/simple"
    expected = peer_copy.index_digest(f"{option}{bare}".encode(), bare)
    assert peer_copy.index_digest(f"{option}{url}".encode(), url) == expected


@given(words.map(lambda word: re.sub("[:/]", "", word)))
def test_a_token_in_place_of_a_user_is_not_in_the_digest_of_an_index(token):
    url, bare = f"https://{token}@host/w@1/simple", "https://host/w@1/simple"
    assert peer_copy.index_digest(f"-i {url}".encode(), url) == peer_copy.index_digest(f"-i {bare}".encode(), bare)
