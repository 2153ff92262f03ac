"""A list of nodes may be incomplete: nothing is deleted because of one, or of a node that is missing for a moment."""

from __future__ import annotations

import json

import pytest

from tpux import Ready, Waiting
from tpux_gcp.api import Api
from tpux_gcp.credentials import Place
from tpux_gcp.existence import MISSING_FILE, MISSING_FOR
from tpux_gcp.resource import Location

LOCATION = Location("emulated", "us-central2-b")


@pytest.fixture
def multislice(drive):
    job = drive(mode="queued-resources", node_count=2)
    job.ready()
    yield job
    job.release()


@pytest.fixture
def hide(monkeypatch):
    """Return a function that hides nodes from lists, or from all answers; none to show all again."""
    nodes, node, hidden = Api.nodes, Api.node, {"listed": set(), "asked": set()}

    def change(*, listed: set[str] = frozenset(), asked: set[str] = frozenset()) -> None:
        hidden.update(listed=listed | asked, asked=asked)

    monkeypatch.setattr(Api, "nodes", lambda *args: [n for n in nodes(*args) if n.name not in hidden["listed"]])
    monkeypatch.setattr(Api, "node", lambda *args: None if args[2] in hidden["asked"] else node(*args))
    return change


def deletions(job) -> list[object]:
    return job.requests("nodes.delete") + job.requests("queuedResources.delete")


def node_of(job, number: int) -> str:
    return f"{job.request.name}-{number}"


def test_an_incomplete_list_deletes_nothing(multislice, hide):
    hide(listed={node_of(multislice, 1)})
    answer = multislice.step()
    assert isinstance(answer, Ready), answer
    assert len(answer.allocation.workers) == 2
    assert multislice.inspect().state == "ready"
    assert deletions(multislice) == []


def test_a_node_that_is_absent_for_a_moment_deletes_nothing(multislice, hide):
    for _ in range(3):  # the minute begins anew each time
        hide(asked={node_of(multislice, 1)})
        for _ in range(2):
            assert multislice.inspect().state == "unknown"
            answer = multislice.step()
            assert isinstance(answer, Waiting)
            assert f"{node_of(multislice, 1)} does not exist" in answer.why
            multislice.at += MISSING_FOR * 0.4
        hide()
        assert multislice.inspect().state == "ready"
        assert isinstance(multislice.run(), Ready)
    assert deletions(multislice) == []


def test_a_node_is_missing_once_it_was_found_absent_twice_over_a_minute(multislice, hide):
    hide(asked={node_of(multislice, 1)})
    began = multislice.at
    while not deletions(multislice):
        multislice.pause(multislice.step())
    assert MISSING_FOR <= multislice.at - began < 3 * MISSING_FOR
    hide()
    assert isinstance(multislice.run(), Ready), "requested again"


def test_an_inspection_reports_a_node_that_stays_absent(multislice, hide):
    hide(asked={node_of(multislice, 0)})
    assert multislice.inspect().state == "unknown"
    multislice.at += MISSING_FOR
    assert multislice.inspect().state == "gone"


def test_what_was_missing_is_forgotten_once_all_is_gone(multislice, hide, tmp_path):
    hide(asked={node_of(multislice, 1)})
    multislice.inspect()
    assert list(json.loads((tmp_path / MISSING_FILE).read_text())) == [LOCATION.node(node_of(multislice, 1))]
    api = Api(Place("emulated", endpoint=multislice.cloud.url))
    api.delete(LOCATION, api.tpu(LOCATION, multislice.request.name, queue=True))  # by somebody
    while multislice.queued() or multislice.nodes():
        pass
    assert multislice.inspect().state == "gone"
    assert not (tmp_path / MISSING_FILE).exists()


def test_a_release_is_not_confirmed_by_an_incomplete_list(drive, hide, cloud):
    """The queued resource is gone, its nodes remain, and the list has none of them."""
    job = drive(mode="queued-resources", node_count=2)
    job.ready()
    nodes = {node_of(job, 0), node_of(job, 1)}
    for node in nodes:
        cloud.freeze(node)  # it remains, once it is being deleted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Api, "queued_resource", lambda *_: None)
        hide(listed=nodes)
        for _ in range(3):
            assert isinstance(job.release_step(), Waiting)
    assert deletions(job)
    hide()
    for node in nodes:
        cloud.unfreeze(node)
    job.release()
    assert not job.nodes()


def test_a_borrowed_multislice_is_not_deleted_while_a_node_is_missing(drive, hide, cloud):
    """The claims are labels of its first node."""
    job = drive(mode="queued-resources", node_count=2)
    made = job.ready().allocation.name
    for number in range(2):
        cloud_api = Api(Place("emulated", endpoint=cloud.url))
        cloud_api.update_node(Location("emulated", "us-central2-b"), f"{made}-{number}", "labels", {"team": "x"})
    borrower = drive(mode="queued-resources", node_count=2, name=made, release="always")
    while "team" not in cloud_api.node(Location("emulated", "us-central2-b"), f"{made}-0").labels:
        pass
    assert borrower.ready().allocation.borrowed
    hide(asked={f"{made}-0"})
    for _ in range(3):
        assert "does not exist" in borrower.release_step().why
    assert deletions(borrower) == []
    hide()
    borrower.release()
    assert deletions(borrower)
