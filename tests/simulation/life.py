"""One life of a job, simulated: the real core, with the time, the cloud, the workers and the disk's errors replaced.

What is replaced is all in `_seams`. A life is described by its scenario, its seed and its faults, and is the same each
time.
"""

from __future__ import annotations

import errno
import logging
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from unittest import mock

from tests.simulation.cloud import NAME, Cloud
from tests.simulation.faults import CUT, FULL, HANG, SUSPEND, DeathError, Disk, Fault, full
from tests.simulation.worker import Machine, Run, SimHost
from tpux import HostUnreachableError, TpuxError, hookimpl, sh, threads
from tpux.errors import UsageError
from tpux.lifecycle import allocator_calls
from tpux.lifecycle.create import create_job
from tpux.model import events
from tpux.plugin.manager import Plugins
from tpux.store import Store, locks, requests
from tpux.store.fold import apply_event
from tpux.store.locks import Lock
from tpux.store.record import Record
from tpux.store.state import State
from tpux.supervisor import scheduler
from tpux.supervisor.files import Files

T = TypeVar("T")
MEMORY = Path("/dev/shm")
MAX_WAITS = 8_000
"""Waits of the supervisor after which a life is taken for one that never ends."""
NEXT_COMMAND = 600.0
"""Seconds after which somebody types a command, which starts a supervisor, if the shell has died too."""
RETRY = 30.0
"""Seconds after which a user types a command again that has failed."""


@dataclass(frozen=True)
class Scenario:
    """A life without faults.

    Attributes:
        config: the job's config.
        script: what happens in the world, and when: seconds after the creation.
        ends: the states in which the job may end; "" if its record is removed.
        workers: how many workers it has.
    """

    config: str
    script: tuple[tuple[float, str, dict[str, object]], ...] = ()
    ends: frozenset[str] = frozenset({"succeeded"})
    workers: int = 2


_PROGRAM = "echo begin $TPUX_ATTEMPT $TPUX_WORKER; sleep 15; echo middle; sleep 15; echo end"
_BASE = "job: {rule: pre}\ntpu: {pricing: spot}\n"
_BASE += "watch: {verdict_grace: 10s, lost_after: 200s, poll_every: 5s}\nsetup: {modules: [prep]}\n"


def _config(program: str = _PROGRAM, more: str = "grace_period: 3s", base: str = _BASE) -> str:
    return f"{base}command: {{cmd: '{program}', {more}}}\n"


_LONG = "echo begin $TPUX_ATTEMPT; sleep 86400; echo end"
_AGAIN = "echo begin $TPUX_ATTEMPT; [ $TPUX_ATTEMPT = 1 ] && sleep 2000; sleep 5; echo end"
_DEAF = 'trap "" TERM; '
_STOPPED = frozenset({"stopped"})
SCENARIOS: dict[str, Scenario] = {
    "plain": Scenario(_config()),
    "one worker": Scenario(_config(), workers=1),
    "preempted": Scenario(_config(), ((40, "preempt", {}),)),
    "preempted while it is set up": Scenario(_config(), ((20.5, "preempt", {}),)),
    "fails once": Scenario(
        _config("echo try $TPUX_ATTEMPT; sleep 5; [ $TPUX_ATTEMPT = 1 ] && exit 3; echo done").replace(
            "rule: pre", "rule: pre, max_restarts: {program: 2}"
        )
    ),
    "stopped while it gets machines": Scenario(_config(_LONG), ((15, "stop", {"release": True}),), _STOPPED),
    "stopped": Scenario(_config(_LONG), ((40, "stop", {}),), _STOPPED),
    "stopped, does not listen": Scenario(_config(_DEAF + _LONG), ((40, "stop", {}),), _STOPPED),
    "stopped and released": Scenario(_config(_LONG), ((40, "stop", {"release": True}),), _STOPPED),
    "stopped and resumed": Scenario(_config(_AGAIN), ((40, "stop", {}), (90, "resume", {}))),
    "resumed while it is stopped": Scenario(
        _config(_DEAF + _AGAIN, "grace_period: 20s"), ((40, "stop", {}), (45, "resume", {}))
    ),
    "stopped and rerun": Scenario(_config(_AGAIN), ((40, "stop", {}), (1300, "rerun", {}))),
    "deleted": Scenario(_config(_LONG), ((40, "delete", {}),), frozenset({""})),
    "deleted after its end": Scenario(_config(), ((200, "delete", {}),), frozenset({""})),
}


@dataclass(frozen=True)
class Life:
    """A life: which scenario, and what goes wrong.

    Attributes:
        scenario: its name.
        faults: what goes wrong.
        seed: decides what is random in it.
    """

    scenario: str
    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def __str__(self) -> str:
        return " || ".join([f"{self.scenario} | {self.seed}", *map(str, self.faults)])


@dataclass
class Outcome:
    """What became of a life.

    Attributes:
        life: the life.
        violations: what should not have happened.
        points: how often each point was visited.
        hit: the faults that have happened.
        deaths: how often a supervisor has died.
    """

    life: Life
    violations: list[str] = field(default_factory=list)
    points: Counter[str] = field(default_factory=Counter)
    hit: list[Fault] = field(default_factory=list)
    deaths: int = 0


class _Clock:
    """The time of a life; passes only where something waits."""

    def __init__(self, simulation: _Simulation) -> None:
        self._simulation = simulation
        self.running = 1_000_000.0
        self.suspended = 0.0

    def now(self) -> float:
        return 1_800_000_000.0 + self.boottime()

    def monotonic(self) -> float:
        return self.running

    def boottime(self) -> float:
        return self.running + self.suspended

    def sleep(self, seconds: float) -> None:
        self.running += max(0.0, seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return self._simulation.wait(event, seconds)


class _InlinePool(threads.Pool):
    """Does each task at once, in the thread that submits it."""

    def submit(self, run: Callable[[], object], *, wake: bool = True, first: bool = False) -> threads.Task:
        run()
        done = threads.Task(lambda: None)
        done.run()
        return done


class _Turns:
    """In the place of `TurnPool`: the turns are taken when the supervisor waits next, in its own thread."""

    def __init__(self, take_turn: Callable[[str], None]) -> None:
        self.take_turn = take_turn
        self.queue: list[str] = []
        self.paused = False

    def submit(self, job: str) -> None:
        self.queue.append(job)

    def wake(self, threads: int) -> None:
        del threads

    def blocked(self) -> list[object]:
        return []

    def running(self) -> list[object]:
        return []

    def end(self, timeout: float) -> None:
        self.queue.clear()


class _Module:
    """A module whose set-up takes a moment on each worker."""

    @hookimpl
    def check(self):
        yield sh("test -e prepared")

    @hookimpl
    def setup(self):
        yield sh("echo preparing; sleep 2; touch prepared")


class _Transport:
    def __init__(self, simulation: _Simulation) -> None:
        self._simulation = simulation

    @hookimpl
    def connect(self, worker) -> SimHost:
        machine = self._simulation.cloud.addresses[worker.address]
        self._simulation.exchange("connect", machine, lambda: None)
        return SimHost(worker, machine, self._simulation.exchange)


class _Simulation:
    def __init__(self, life: Life, directory: Path) -> None:
        self.life, self.scenario = life, SCENARIOS[life.scenario]
        self.outcome = Outcome(life)
        self.clock = _Clock(self)
        self.cloud = Cloud(self.clock.now, self._allocator_call, self._make_machine, self.scenario.workers)
        self.machines: list[Machine] = []
        self.starts: dict[tuple[int, str], list[tuple[Machine, Run, str]]] = {}
        self.directory, self.home = directory, directory / "home"
        self.plugins = Plugins({})
        self.plugins.add(NAME, self.cloud)
        self.plugins.add("simnet", _Transport(self))
        self.plugins.add("prep", _Module())
        self.store = Store(self.home, "ann")
        self.job = ""
        self.state = "created"
        self.supervisor: scheduler.Supervisor | None = None
        self.turns = _Turns(lambda _: None)
        self.dead = self.in_command = self.with_shell = False
        self.full_until = 0.0
        self.cut_until: dict[int, float] = {}
        self.locks: list[Lock] = []
        self.waits = 0
        self.pending: list[tuple[float, str, dict[str, object], int]] = []
        self.accepted: list[str] = []

    # --- points -----------------------------------------------------------------------------------

    def at(  # noqa: C901  (a case for each fault)
        self,
        kind: str,
        place: str,
        act: Callable[[], T],
        error: Callable[[], BaseException],
        middle: Callable[[], object] | None = None,
    ) -> T:
        """Do something at a point, and let what goes wrong there go wrong."""
        if self.dead:
            raise DeathError
        point = f"{kind}: {place} @{'command' if self.in_command else self._job_state()}"
        self.outcome.points[point] += 1
        fault = self._fault(point)
        if fault is None:
            return self._ordinary(kind, act)
        what, _, when = fault.kind.rpartition(" ") if fault.kind.endswith(("before", "after")) else (fault.kind, "", "")
        if when == "after" and what != "hang":
            self._ordinary(kind, act)
        match what:
            case "death" | "death with the shell":
                self._die(shell="shell" in what)
            case "death in the middle":
                if middle is not None:
                    middle()
                self._die(shell=False)
            case "error":
                raise error()
            case "hang":
                self.clock.sleep(HANG)
                if kind != "store":
                    self._ordinary(kind, act)
                    raise error()
            case "full disk":
                self.full_until = self.clock.now() + FULL
            case "preemption":
                self.cloud.preempt()
            case "suspend":
                self.clock.suspended += SUSPEND
            case "cut":
                self.cut_until[id(self._here)] = self.clock.now() + CUT
                raise error()
            case "wiped":
                self._here.wipe()
                self._die(shell=False)
            case "late effect":
                if self.cloud.asked is not None:
                    self.cloud.cut_off(self.cloud.asked)
                self._die(shell=True)
        return self._ordinary(kind, act)

    def _ordinary(self, kind: str, act: Callable[[], T]) -> T:
        if kind == "store" and self.clock.now() < self.full_until:
            raise full()
        return act()

    def _fault(self, point: str) -> Fault | None:
        for fault in self.life.faults:
            if fault.point == point and fault not in self.outcome.hit and self.outcome.points[point] >= fault.hit:
                self.outcome.hit.append(fault)
                return fault
        return None

    def _die(self, *, shell: bool) -> None:
        if not self.in_command:
            self.dead, self.with_shell = True, shell
        raise DeathError

    def _job_state(self) -> str:
        if self.supervisor is None:
            return self.state
        for controller in self.supervisor._controllers.values():
            if (state := controller.record._state) is not None:
                self.state = state.state
        return self.state

    def _disk_call(self, place: str, act: Callable[[], object], middle: Callable[[], object] | None) -> object:
        if place.startswith(("unlink", "sync")) and self.clock.now() < self.full_until:
            return act()  # a full disk does not prevent that
        return self.at("store", place, act, lambda: OSError(errno.EIO, "Input/output error"), middle)

    def _allocator_call(self, hook: str, act: Callable[[], object]) -> object:
        return self.at("allocator", hook, act, lambda: OSError("the cloud does not answer"))

    def exchange(self, what: str, machine: Machine, act: Callable[[], T]) -> T:
        self._here = machine
        lost = HostUnreachableError("the simulated worker does not answer")

        def reach() -> T:
            self.cloud.settle()
            if not machine.alive or self.clock.now() < self.cut_until.get(id(machine), 0.0):
                raise lost
            return act()

        return self.at("worker", what, reach, lambda: lost)

    # --- the world --------------------------------------------------------------------------------

    def _make_machine(self) -> Machine:
        machine = Machine(self.clock.now, self.clock.sleep, self._started)
        machine.started = lambda name, run: self._started(name, run, machine)
        self.machines.append(machine)
        return machine

    def _started(self, name: str, run: Run, machine: Machine | None = None) -> None:
        if machine is None or not name.endswith("/command"):
            return
        key, attempt, _ = name.rsplit("/", 2)
        worker = key.rsplit("-w", 1)[1]
        earlier = self.starts.setdefault((int(attempt), worker), [])
        earlier.append((machine, run, key))
        if len(earlier) > 1:
            self._violated(f"attempt {attempt} was started {len(earlier)} times on worker {worker}")
        if "prepared" not in machine.files and not machine.wiped:
            self._violated(f"attempt {attempt} was started on worker {worker}, which was not set up")
        for other in self.machines:
            for one in [*other.runs.values(), *other.forgotten]:
                beside = one is not run and one.id.endswith("/command") and one.id.split("/")[-2] != attempt
                if beside and one.runs(self.clock.now()):
                    self._violated(f"attempt {attempt} was started while {one.id} was running")

    def _violated(self, what: str) -> None:
        if what not in self.outcome.violations:
            self.outcome.violations.append(what)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Let the supervisor wait: its turns are taken, and the world moves on."""
        self.waits += 1
        if self.waits > MAX_WAITS:
            raise _NeverEndsError
        queue, self.turns.queue = self.turns.queue, []
        for job in queue:
            self.turns.take_turn(job)
            if self.dead:
                raise DeathError
        if event.is_set():
            return True
        until = self.clock.running + max(0.0, seconds)
        while self.pending and self.pending[0][0] <= until + self.clock.suspended:
            self._pass_to_next()
            if self._happen():
                return True  # there is a request, or a command has touched the file that wakes the supervisor
        self.clock.running = max(self.clock.running, until)
        self.cloud.settle()
        return event.is_set()

    def _pass_to_next(self) -> None:
        self.clock.running = max(self.clock.running, self.pending[0][0] - self.clock.suspended)

    def _happen(self) -> bool:
        """Let the next thing of the script happen; return whether it was a command of the user."""
        _, action, options, tries = self.pending.pop(0)
        if action == "preempt":
            self.cloud.preempt()
            return False
        if action == "any command":
            return True
        self.in_command = True
        try:
            record = self.store.record(self.job)
            if tries and self._is_requested(record, action):
                return True
            requests.write(record, action, **options)  # type: ignore[arg-type]
            files = Files(self.store.supervisor)
            files.directory.mkdir(parents=True, exist_ok=True)
            files.wake.touch()
        except UsageError:
            pass
        except (DeathError, OSError, TpuxError):
            self.pending = [(one[0] + RETRY, *one[1:]) for one in self.pending]  # the user's next commands wait
            self._schedule(self.clock.boottime() + RETRY, action, options, tries + 1)
        finally:
            self.in_command = False
        return True

    def _is_requested(self, record: Record, action: str) -> bool:
        if any(request.action == action for request in requests.pending(record)):
            return True
        return record.refresh().last_request.get("action") == action

    def _schedule(self, at: float, action: str, options: dict[str, object], tries: int = 0) -> None:
        if tries < 60:
            self.pending.append((at, action, options, tries))
            self.pending.sort(key=lambda one: one[0])

    # --- the life ---------------------------------------------------------------------------------

    def live(self) -> Outcome:
        disk = Disk(str(self.home), self._disk_call)
        with self._seams(), disk.installed():
            self._create()
            start = self.clock.boottime()
            for at, action, options in self.scenario.script:
                self._schedule(start + at, action, options)
            try:
                self._supervise()
            except _NeverEndsError:
                self._violated(f"it does not end: {self._describe()}")
        self._check()
        return self.outcome

    def _create(self) -> None:
        config = self.directory / "job.yaml"
        config.write_text(self.scenario.config)
        while not self.job:
            self.in_command = True
            try:
                overrides = [f"tpu.allocation_mode={NAME}"]
                create_job(self.store, config, overrides, warn=lambda _: None, clock=self.clock, plugins=self.plugins)
            except (DeathError, OSError, TpuxError):
                self.clock.sleep(RETRY)
            finally:
                self.in_command = False
            self._release_locks()
            self.store = Store(self.home, "ann")
            self.job = next(iter(self.store.ids()), "")

    def _supervise(self) -> None:
        while True:
            self.dead = False
            self.turns = _Turns(lambda _: None)
            try:
                self.supervisor = scheduler.Supervisor(Store(self.home, "ann"), self.clock)
                self.supervisor.run()
            except DeathError:
                self.outcome.deaths += 1
            died, self.dead = self.dead, False
            self._job_state()
            self.supervisor = None
            self._release_locks(may_be_held=died)
            self._check_snapshot()
            if died and self.with_shell:
                self._schedule(self.clock.boottime() + NEXT_COMMAND, "any command", {})
            if died and not self.with_shell:
                self.clock.sleep(1.0)  # `tpux run`, which follows the job, starts another one
                continue
            while self.pending:
                self._pass_to_next()
                if self._happen():
                    break
            else:
                if not died:
                    return

    def _release_locks(self, *, may_be_held: bool = True) -> None:
        for lock in self.locks:
            if lock.held and not may_be_held:
                self._violated(f"a lock is left: {lock.path.name}")
            lock.release()
        self.locks.clear()

    @contextmanager
    def _seams(self) -> Iterator[None]:
        """Replace the threads, the time, and what else a supervisor starts. All that is replaced in core is here."""
        acquire, pool = Lock.acquire, _InlinePool()

        def acquire_and_note(lock: Lock) -> bool:
            taken = acquire(lock)
            if taken:
                self.locks.append(lock)
            return taken

        def make_turns(take_turn: Callable[[str], None], clock: object) -> _Turns:
            del clock
            self.turns = _Turns(take_turn)
            return self.turns

        random.seed(self.life.seed)
        with ExitStack() as stack:
            for target, name, value in (
                (threads, "pool", lambda *_: pool),
                (allocator_calls, "_lanes", {}),
                (scheduler, "TurnPool", make_turns),
                (scheduler.heartbeat, "Watchdog", lambda *_: mock.Mock(busy=False)),
                (scheduler, "Server", lambda *_: mock.Mock(busy=False)),
                (scheduler, "Plugins", lambda: self.plugins),
                (scheduler, "POLL_EVERY", scheduler.LONGEST_DELAY),
                (scheduler.orphans, "search_in_background", lambda *_: None),
                (Lock, "acquire", acquire_and_note),
                (time, "sleep", self.clock.sleep),
                (locks, "_check_effect", lambda _: None),
            ):
                stack.enter_context(mock.patch.object(target, name, value))
            logging.disable(logging.CRITICAL)
            stack.callback(logging.disable, logging.NOTSET)
            yield

    # --- what must hold ---------------------------------------------------------------------------

    def _describe(self) -> str:
        try:
            state = Store(self.home, "ann").record(self.job).refresh()
        except TpuxError as error:
            return error.message
        return f"{state.state}, {state.why}"

    def _check_snapshot(self) -> None:
        """Check that the store can be read, and that what it says is what its events say."""
        record = Store(self.home, "ann").record(self.job)
        if not record.directory.exists():
            return
        try:
            cached, offset = record._snapshot(10**9)
            state: State | None = None
            for event, end in record.events():
                state = apply_event(state, event)
                if end == offset and cached != state:
                    self._violated(f"the state in memory is not that of the events, {_differences(cached, state)}")
        except TpuxError as error:
            self._violated(f"the store cannot be read: {error.message}")

    def _check(self) -> None:
        self._check_snapshot()
        self.clock.sleep(1000.0)  # a creation that was cut off has taken effect by then
        for problem in self.cloud.problems:
            self._violated(problem)
        record = Store(self.home, "ann").record(self.job)
        exists = record.directory.exists()
        end = record.refresh().state if exists else ""
        if end not in self.scenario.ends:
            why = record.state.why if exists else ""
            self._violated(f"it has ended as {end or 'deleted'} ({why}) and not as {'/'.join(self.scenario.ends)}")
        if live := self.cloud.live():
            self._violated(f"{len(live)} allocation(s) left by a job that is {end or 'deleted'}")
        if lost := [node.name for node in self.cloud.nodes.values() if node.state == "preempted"]:
            self._violated(f"preempted machines were not released: {lost}")
        for lock in self.store.jobs.glob(".tpux/locks/*"):
            if not locks.is_free(lock):
                self._violated(f"a lock is left: {lock.name}")
        if exists:
            history = [event for event, _ in record.events()]
            self._check_stop(history)
            self._check_attempts(record, history)

    def _check_stop(self, history: Sequence[events.Event]) -> None:
        stopped = False
        for event in history:
            if isinstance(event, events.RequestAccepted):
                stopped = event.action in {"stop", "delete"}
            if isinstance(event, events.AttemptStarted) and stopped:
                self._violated(f"attempt {event.attempt} was started after the user's stop")

    def _check_attempts(self, record: Record, history: Sequence[events.Event]) -> None:
        """Check that each attempt was started once on each worker, and that its log is what it has written."""
        ends = [event.attempt for event in history if isinstance(event, events.AttemptEnded)]
        starts = [event.attempt for event in history if isinstance(event, events.AttemptStarted)]
        if starts != ends:
            self._violated(f"the attempts {starts} were started, and {ends} have ended")
        ended = {event.attempt: event for event in history if isinstance(event, events.AttemptEnded)}
        running = {event.attempt for event in history if isinstance(event, events.AttemptRunning)}
        gentle = all(
            fault.kind.startswith(("death", "error")) and not fault.point.startswith("worker")
            for fault in self.life.faults
        )
        end = max((event.at for event in history if isinstance(event, events.StateChanged)), default=0.0)
        for run in [run for started in self.starts.values() for _, run, _ in started] if gentle else ():
            if (run.ended_at(self.clock.now()) or self.clock.now()) > end:
                self._violated(f"{run.id} ran on after the end of the job")
        for attempt in ended:
            for worker in range(self.scenario.workers):
                started = self.starts.get((attempt, str(worker)), [])
                if not started:
                    if attempt in running:
                        self._violated(f"attempt {attempt} counts as started on worker {worker}, and was not")
                    continue
                written = started[0][1].output(self.clock.now())
                log = record.output_log(attempt, worker)
                fetched = log.read_bytes() if log.exists() else b""
                failure = ended[attempt].failure
                whole = failure is None and not ended[attempt].stopped
                whole |= gentle and (failure is None or failure.kind == "program") and started[0][0].alive
                if fetched != written if whole else not written.startswith(fetched):
                    self._violated(f"the log of attempt {attempt}, worker {worker} is {fetched!r} and not {written!r}")


class _NeverEndsError(BaseException):
    """The life has lasted too long."""


def _differences(one: State | None, other: State | None) -> str:
    if one is None or other is None:
        return f"{one} and {other}"
    names = [name for name in vars(one) if getattr(one, name) != getattr(other, name)]
    return "; ".join(f"{name}: {getattr(one, name)} and {getattr(other, name)}" for name in names)


def live(life: Life) -> Outcome:
    """Let a job live, and return what became of it."""
    parent = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tpux-sim-", dir=parent) as directory:
        return _Simulation(life, Path(directory)).live()
