"""What detectors and listeners promise: they are called for every job, so they must cope with anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import cast, get_args

from tpux.errors import TpuxError
from tpux.model import events
from tpux.model.events import Event
from tpux.model.failures import Failure, FailureKind, Finished
from tpux.model.job import Attempt, Job
from tpux.model.machines import Allocation, MachineState
from tpux.model.states import JobState
from tpux.plugin import spec
from tpux_testing.builders import attempt, worker
from tpux_testing.contract import ContractError, contract, require
from tpux_testing.sandbox import Config, Sandbox

_LINES_BEFORE, _LINES_AFTER = 20_000, 100
"""Lines of ordinary output around an example, which a program writes near its end."""
# Output that no detector may fail on, nor take for a failure.
_ORDINARY: dict[str, bytes] = {
    "no output": b"",
    "ordinary output": b"step 1 loss 0.5\nstep 2 loss 0.4\n",
    "output that is not UTF-8": b"\xff\xfe\x00\x80 step\n",
    "control characters and a progress bar": b"\x1b[2J\r 1%\r 50%\r100%\n",
    "a line of a million characters": b"x" * 1_000_000 + b"\n",
}


@contract
def detector_contract(
    word: str,
    examples: Mapping[str, FailureKind] | None = None,
    *,
    config: Config | None = None,
    plugin: object = None,
) -> None:
    """Test that a detector's `classify_failure` keeps what core relies on.

    It copes with any log, also a missing one, and with unknown exit codes; it finds nothing in ordinary output of a
    program that has succeeded; it finds each example among other output near its end and on any worker, and quotes the
    line. It is called for every job: also for one whose config does not have the detector's section, or has it empty.

    Args:
        word: the detector.
        examples: a line of a log, and the kind of failure that it stands for.
        config: a config that has the detector's section, if it needs one.
        plugin: the module or object to use, if it is not installed.

    Raises:
        ContractError: the detector does not keep it.

    Example:
        def test_contract():
            detector_contract("oom", {"RESOURCE_EXHAUSTED: Out of memory": "out-of-memory"})
    """
    with Sandbox({} if plugin is None else {word: plugin}) as sandbox:
        implemented = sandbox.plugins.implements(word, spec.classify_failure)
        require(implemented, word, spec.classify_failure, "a detector implements classify_failure")
        for what, job in sandbox.jobs(word, config).items():
            other = _Detector(sandbox, word, job)
            try:
                other.classify(attempt({0: "", 1: ""}), "no output")
            except ContractError as error:
                raise ContractError(word, "classify_failure", f"for a job {what}, {error}") from error
        detector = _Detector(sandbox, word, sandbox.job(config or {}))
        for what, log in _ORDINARY.items():
            for codes in ({0: 0, 1: 0}, {0: None, 1: None}, {0: 137, 1: 1}):
                found = detector.classify(attempt({0: log, 1: log}, codes), what)
                message = f"exit codes 0 and {what}: it reports {found}, for an attempt that succeeded"
                require(not found or set(codes.values()) != {0}, word, spec.classify_failure, message)
        for state in get_args(MachineState):
            detector.classify(attempt(machines=cast("MachineState", state)), f"machines that are {state}")
        missing = attempt({0: "", 1: ""})
        for ending in missing.endings:
            ending.log.unlink()
        detector.classify(missing, "a log that does not exist, since the worker was lost")
        for line, kind in (examples or {}).items():
            detector.finds(line, kind)


class _Detector:
    """A detector."""

    def __init__(self, sandbox: Sandbox, word: str, job: Job) -> None:
        self._plugins, self._word, self._job = sandbox.plugins, word, job

    def classify(self, ended: Attempt, what: str) -> list[Failure | Finished]:
        """Call `classify_failure`, and check the workers and the evidence."""
        logs = {end.worker: end.log.read_bytes() for end in ended.endings if end.log.exists()}
        try:
            found = self._call(ended)
        except TpuxError as error:
            raise ContractError(self._word, "classify_failure", f"with {what} as the log: {error.message}") from error
        workers = [None, *(end.worker for end in ended.endings)]
        for failure in found:
            if isinstance(failure, Failure):
                message = f"with {what} as the log, it names worker {failure.worker}; the attempt has {workers[1:]}"
                require(failure.worker in workers, self._word, spec.classify_failure, message)
        after = {end.worker: end.log.read_bytes() for end in ended.endings if end.log.exists()}
        require(after == logs, self._word, spec.classify_failure, "it changed a log")
        again = self._call(ended)
        message = f"called twice for the same attempt, it reports {found} and then {again}"
        require(found == again, self._word, spec.classify_failure, message)
        return found

    def _call(self, ended: Attempt) -> list[Failure | Finished]:
        section = self._job.sections.get(self._word)
        answer = self._plugins.call_one(self._word, spec.classify_failure, job=self._job, config=section, attempt=ended)
        return answer or []

    def finds(self, line: str, kind: FailureKind) -> None:
        """Require that the example is found, on any worker, among other output."""
        step = "step 1 loss 0.5\n"
        for index in (0, 1):
            for log in (f"{line}\n", f"{step * _LINES_BEFORE}{line}\n{step * _LINES_AFTER}", f" 50%\r{line}\r\n"):
                logs = {0: "", 1: "", index: log}
                found = self.classify(attempt(logs, 1), repr(line))
                failures = [one for one in found if isinstance(one, Failure)]
                matching = [one for one in failures if one.kind == kind and one.worker in (index, None)]
                message = f"{line!r} in the log of worker {index} is not found as {kind!r}; it reports {found}"
                require(matching, self._word, spec.classify_failure, message)
                evidence = matching[0].evidence
                message = f"the evidence {evidence!r} is not in the log; quote the line that shows the failure"
                require(evidence and evidence in log, self._word, spec.classify_failure, message)


@contract
def listener_contract(word: str, config: Config | None = None, *, plugin: object = None) -> None:
    """Test that a listener's `on_event` keeps what core relies on.

    It takes every type of event, in any order and more than once, as after a restart; also one that a newer tpux
    added, and for jobs whose config does not have the listener's section, or has it empty.

    Args:
        word: the listener.
        config: a config that has the listener's section.
        plugin: the module or object to use, if it is not installed.

    Raises:
        ContractError: the listener does not keep it.

    Example:
        def test_contract(mail_server):
            listener_contract("mail", {"mail": {"to": "me@example.com", "server": mail_server}})
    """
    with Sandbox({} if plugin is None else {word: plugin}) as sandbox:
        implemented = sandbox.plugins.implements(word, spec.on_event)
        require(implemented, word, spec.on_event, "a listener implements on_event")
        jobs = sandbox.jobs(word, config)
        newer = events.from_json({"type": "added-by-a-newer-tpux", "version": 1, "at": 1.0})
        every = [*_examples(), newer]
        for what, job in jobs.items():
            for event in [*every, *reversed(every), *every]:
                try:
                    sandbox.plugins.call_one(word, spec.on_event, job=job, event=event)
                except TpuxError as error:
                    message = f"{type(event).__name__}, for a job {what}: {error.message}"
                    raise ContractError(word, "on_event", message) from error


def _examples() -> list[Event]:
    """Return events of every type, optional fields with and without a value."""
    values: dict[str, object] = {
        "at": 1_000_000.0,
        "allocation": Allocation("train", "local", (worker(),)),
        "failure": Failure("program", 0, "exit code 1"),
        "action": "stop",
        "to": "running",
        "workers": (0,),
        "attempt": 1,
        "worker": 0,
        "stage": 0,
        "resume": False,
        "code": 1,
        "release_at": None,
    }
    found = [_example(model, values) for model in events.EVENT_TYPES.values()]
    found += [_example(events.AttemptEnded, {**values, "failure": None})]
    found += [_example(events.WorkerExited, {**values, "code": None})]
    to_recovering = {"kind": "preempted", "restart": "resume", "until": 1_000_001.0}
    for state in get_args(JobState):
        facts = to_recovering if state == "recovering" else {}
        found.append(events.StateChanged(at=1_000_000.0, to=state, **facts))  # type: ignore[arg-type]
    return found


def _example(model: type[Event], values: Mapping[str, object]) -> Event:
    needed = [one.name for one in fields(model) if one.default is MISSING and one.default_factory is MISSING]
    return model(**{name: values.get(name, name) for name in needed})  # type: ignore[arg-type]
