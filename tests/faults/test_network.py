"""Workers whose network is cut for a while: nothing that is alive is started again, and the log is whole."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.conftest import Tpux
from tests.faults import network as networks
from tests.faults.network import Network, Way

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
WORKERS = 2
CUT = 5.0
LONGER_CUT = 20.0
"""Longer than the plugin ssh waits for the answer to a poll, so that the worker is found unreachable."""
LONG_CUT = float(os.environ.get("TPUX_TEST_LONG_CUT", "0"))
"""Seconds; `make faults-real` sets them to five minutes."""
CODE_SIZE = 4_000_000
RATE = "8mbit"
CONFIG = """
tpu: {{allocation_mode: hosts}}
hosts: [{hosts}]
code: {{dir: {code}}}
ssh: {{connect_timeout: 3s}}
watch: {{lost_after: {lost_after}, poll_every: 0.5s}}
job: {{max_restarts: {{host-lost: 3, unreachable: 3}}}}
command:
  grace_period: 1s
  cmd: |
    echo $TPUX_ATTEMPT >>{starts}/$TPUX_WORKER
    sha256sum <weights | cut -c 1-64
    until [ -e {starts}/go ]; do echo $((n += 1)); sleep 0.1; done; echo end
"""


@pytest.fixture
def network(tpux: Tpux) -> Iterator[Network]:
    if reason := networks.missing():
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    with networks.open_network(tpux.work.parent / "workers", tpux.home, WORKERS) as network:
        yield network
        tpux("delete", "-y", "--name", "*")  # while its workers answer


class Life:
    """One job, from its creation to its end."""

    def __init__(self, tpux: Tpux, network: Network, lost_after: str) -> None:
        self.tpux, self.network = tpux, network
        self.starts = tpux.work / "starts"
        self.starts.mkdir()
        code = tpux.work / "code"
        code.mkdir()
        (code / "weights").write_bytes(os.urandom(CODE_SIZE))
        hosts = ", ".join(f"{server.address}:{server.port}" for server in network.servers)
        self.text = CONFIG.format(hosts=hosts, code=code, lost_after=lost_after, starts=self.starts)
        self.job = ""

    def create(self) -> None:
        self.job = self.tpux.create(self.text)

    def until_transfer(self, worker: int, since: int) -> None:
        self.tpux.until(lambda: self.network.sent(worker) > since + CODE_SIZE // 8, "for a part of the code")
        assert not (self.starts / str(worker)).exists()

    def until_lines(self) -> None:
        """Wait until each worker has written two more lines that are here."""
        before = [self.count(worker) for worker in range(WORKERS)]
        for worker in range(WORKERS):
            self.tpux.until(lambda: self.count(worker) > before[worker] + 2, f"for worker {worker}")  # noqa: B023

    def count(self, worker: int) -> int:
        return self.tpux.output_so_far(self.job, worker).count(b"\n")

    def cut(self, workers: list[int], way: Way, seconds: float = CUT) -> None:
        for worker in workers:
            self.network.cut(worker, way)
        time.sleep(1.5)
        before = [self.count(worker) for worker in workers]
        time.sleep(seconds - 1.5)
        assert [self.count(worker) for worker in workers] == before, "nothing comes through"
        for worker in workers:
            self.network.restore(worker, way)

    def finish(self) -> None:
        """Let the program end; check that it ran once on each worker, and that all that it wrote is here."""
        (self.starts / "go").touch()
        self.tpux("wait", self.job)
        shown = self.tpux.show(self.job)
        assert (shown["state"], shown["attempt"], shown["restarts"]) == ("succeeded", 1, {})
        assert {path.name: path.read_text() for path in self.starts.glob("[0-9]*")} == {"0": "1\n", "1": "1\n"}
        counts = Counter(str(event["type"]) for event in self.events())
        assert (counts["allocated"], counts["attempt-started"], counts["attempt-ended"]) == (1, 1, 1)
        for worker in range(WORKERS):
            digest, *numbers, end = self.tpux.output(self.job, worker).split()
            assert (len(digest), end) == (64, b"end")
            assert numbers == [str(number).encode() for number in range(1, len(numbers) + 1)]
            assert digest == self.tpux.output(self.job, 0).split()[0]

    def events(self) -> list[dict[str, object]]:
        kinds = ("allocated", "attempt-started", "attempt-ended")
        return [event for kind in kinds for event in self.tpux.events(self.job, kind)]


@pytest.mark.parametrize("way", ["both", "to", "from"])
def test_a_worker_that_is_cut_off_for_5_seconds_is_not_replaced(tpux: Tpux, network: Network, way: Way) -> None:
    """It is cut off during the login, in the middle of a transfer, and while its program runs."""
    life = Life(tpux, network, "60s")
    network.limit(1, RATE)
    network.cut(1, way)
    life.create()
    tpux.until_state(life.job, "setting-up")
    time.sleep(CUT)
    before = network.sent(1)
    network.restore(1, way)
    life.until_transfer(1, before)
    life.cut([1], way)
    network.unlimited(1)
    life.until_lines()
    life.cut([1], way)
    life.until_lines()
    life.cut([1], way, LONGER_CUT)
    life.until_lines()
    life.finish()


@pytest.mark.parametrize("way", ["both", "from"])
def test_no_worker_is_replaced_while_none_answers(tpux: Tpux, network: Network, way: Way) -> None:
    """It is this machine that has no network: for longer than `watch.lost_after`."""
    life = Life(tpux, network, "2s")
    life.create()
    life.until_lines()
    life.cut([0, 1], way, LONGER_CUT)
    life.until_lines()
    life.finish()


@pytest.mark.skipif(not LONG_CUT, reason="it takes five minutes: `make faults-real` runs it")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("workers", "lost_after"), [([1], "10m"), ([0, 1], "60s")], ids=["one worker", "all"])
def test_a_cut_of_five_minutes(tpux: Tpux, network: Network, workers: list[int], lost_after: str) -> None:
    life = Life(tpux, network, lost_after)
    life.create()
    life.until_lines()
    life.cut(workers, "both", LONG_CUT)
    life.until_lines()
    life.finish()
