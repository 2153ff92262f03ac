"""What an allocator promises: one set of machines per request, whatever happens between two calls, and none after."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from tpux import env
from tpux.errors import TpuxError
from tpux.model.json import JsonValue, build
from tpux.model.machines import (
    Allocation,
    Denied,
    MachineState,
    MachineStatus,
    ProvisionRequest,
    Ready,
    Released,
    Waiting,
)
from tpux.plugin import spec
from tpux_testing.contract import ContractError, contract, require
from tpux_testing.sandbox import TIMEOUT, Config, Sandbox, only_environment, provision_request

_LONGEST_PAUSE = 0.1
_CRASHES = 12
"""The answers of at most so many steps are lost, one in each request."""
Existing = Callable[[], Collection[object]]


@contract
def allocator_contract(
    word: str,
    config: Mapping[str, object] | None = None,
    *,
    plugin: object = None,
    existing: Existing | None = None,
    timeout: float = TIMEOUT,
) -> None:
    """Test that an allocator keeps what core relies on, with emulated or local machines.

    A release before anything was requested, in the middle, and twice; a second `provision` changes nothing; the
    answer of each step of `provision` and of `release` is lost once, as in a crash before core could store it; a second
    job takes over the machines, if the section `tpu` is `transferable`, and releases them; the machines agree with what
    the section `tpu` declares; `inspect` says `ready` of machines that are ready, and not of released ones, and
    describes their workers or none. Only `resolve` sees the environment of the shell: the other hooks work in the one
    that a supervisor has. It creates and releases machines a dozen times or more: never test against a real cloud.

    Args:
        word: the allocator, the value of `tpu.allocation_mode`.
        config: the config; the section `tpu` names what to request.
        plugin: the module or object to use, if it is not installed.
        existing: returns what exists in the emulated cloud, to find machines that are requested twice or left behind.
        timeout: seconds that provisioning or a release may take.

    Raises:
        ContractError: the allocator does not keep it.

    Example:
        def test_contract(tpu_emulator, monkeypatch):
            cloud = tpu_emulator(workers=False)
            monkeypatch.setenv("TPUX_GCP_ENDPOINT", cloud.url)
            tpu = {"accelerator": "v4-8", "zone": "us-central2-b"}
            allocator_contract("tpu-vm", {"tpu": tpu}, existing=lambda: cloud.status()["nodes"])
    """
    with Sandbox({} if plugin is None else {word: plugin}) as sandbox:
        for hook in (spec.provision, spec.inspect, spec.release):
            message = "an allocator implements provision, inspect and release"
            require(sandbox.plugins.implements(word, hook), word, hook, message)
        given = dict(config or {})
        tpu = given.get("tpu")
        given["tpu"] = {**(tpu if isinstance(tpu, Mapping) else {}), "allocation_mode": word}
        allocator = _Allocator(sandbox, word, given, existing or list, timeout)
        allocator.release_before_anything()
        steps = allocator.provision_and_release()
        allocator.provision_in_another_shell()
        for lost in range(min(steps, _CRASHES)):
            allocator.lose_an_answer_of_provision(lost)
            allocator.release_after(lost)
        allocator.lose_answers_of_release()
        allocator.take_over()


class _Allocator:
    """An allocator, and requests for machines."""

    def __init__(self, sandbox: Sandbox, word: str, config: Config, existing: Existing, timeout: float) -> None:
        self._sandbox, self._word, self._config = sandbox, word, config
        self._existing, self._timeout = existing, timeout
        self._before = len(existing())
        self._number = 0
        self._machines: int | None = None
        self._state_before: MachineState = "unknown"
        self._release_steps = 0

    def release_before_anything(self) -> None:
        """Release what was never requested."""
        request = self._new()
        self._state_before = self.inspect(request).state
        self.release(request, "before anything was requested")
        self.release(request, "a second time, before anything was requested")

    def provision_in_another_shell(self) -> None:
        """Provision and release as the supervisor does: without the variables of the shell that created the job."""
        request = self._new()
        variables = {**env.supervisor_environment(os.environ), "PATH": os.defpath}
        kept = {name: value for name, value in variables.items() if name == env.HOME or not name.startswith("TPUX_")}
        try:
            with only_environment(kept):
                provisioned, _, _ = self.provision(request, "with another environment")
                self.release(provisioned, "with another environment")
        except TpuxError as error:
            message = f"in another environment than that of the shell which created the job, whose PATH is {os.defpath}"
            hint = "return what it needs of the shell from resolve(job), and read request.resolved"
            raise ContractError(self._word, "provision", f"{message}: {error.message}; {hint}") from error

    def provision_and_release(self) -> int:
        """Provision twice, and release twice; return how many steps the provisioning took."""
        request, allocation, steps = self.provision(self._new(), "of new machines")
        self._declared(allocation)
        message = f"it says {self._state_before!r} before anything was requested; say 'gone'"
        self._no_machines(allocation, self._state_before, message)
        self._count_machines("after provisioning", self._present())
        again, second, _ = self.provision(request, "of machines that are ready")
        other = _difference(allocation.to_json(), second.to_json())
        message = f"called again when the machines were ready, it gave other ones: {other}"
        require(second == allocation, self._word, spec.provision, message)
        self._count_machines("after a second provision", self._present())
        state = self.inspect(again).state
        require(state == "ready", self._word, spec.inspect, f"it says {state!r} of machines that are ready")
        self._describes_the_same_workers(again, allocation)
        released = self.release(again, "when the machines were ready")
        self.release(released, "a second time")
        state = self.inspect(released).state
        message = f"it says {state!r} of machines that were released; a job would wait for them or use them"
        self._no_machines(allocation, state, message)
        fresh, _, _ = self.provision(replace(released, saved_state={}), "after a release, of the same request")
        self.release(fresh, "when the machines were ready again")
        return steps

    def _describes_the_same_workers(self, request: ProvisionRequest, allocation: Allocation) -> None:
        """Check that the workers that `inspect` describes, if it does, are those of the machines."""
        described = self.inspect(replace(request, describe_workers=True)).workers
        here, there = [one.index for one in allocation.workers], [one.index for one in described or allocation.workers]
        message = f"it describes the workers {there}, and the machines have {here}"
        require(here == there, self._word, spec.inspect, message)

    def lose_an_answer_of_provision(self, lost: int) -> None:
        """Provision with one answer not stored, as after a crash; then release."""
        when = f"after a crash that lost the answer of step {lost + 1}"
        request, _, _ = self.provision(self._new(), when, lost=lost)
        self._count_machines(when, self._present(), spec.provision)
        self.release(request, when)

    def release_after(self, steps: int) -> None:
        """Release in the middle of provisioning: with the state that was stored, and with the last answer lost."""
        for lost in (None, steps):
            request = self._provision_steps(self._new(), steps + 1, lost)
            when = f"after {steps + 1} step(s) of provision" + (", the last answer lost in a crash" if lost else "")
            self.release(request, when)

    def lose_answers_of_release(self) -> None:
        """Release with the answer of each step lost in turn."""
        for lost in range(_CRASHES):
            request, _, _ = self.provision(self._new(), "of new machines")
            released = self.release(request, f"after a crash that lost the answer of its step {lost + 1}", lost=lost)
            if self._release_steps <= lost:
                return
            self.release(released, "a second time, after a crash")

    def take_over(self) -> None:
        """Let another request take over the machines, with the answer of each step lost once, and release them."""
        if not self._sandbox.job(self._config).tpu.transferable:
            return
        for lost in range(-1, _CRASHES):
            when = "after they were taken over" + (f", with the answer of step {lost + 1} lost" if lost >= 0 else "")
            before, allocation, _ = self.provision(self._new(), "of new machines")
            own = self._new()
            taken = replace(own, name=before.name, saved_state=before.saved_state, previous_owners=(before.labels,))
            taken, second, steps = self.provision(taken, when, lost=lost)
            message = f"{when}, it gave other machines: {_difference(allocation.to_json(), second.to_json())}"
            require(second.workers == allocation.workers, self._word, spec.provision, message)
            self._count_machines(when, self._present())
            state = self.inspect(before).state
            self._no_machines(allocation, state, f"{when}, it says {state!r} to the job that had them")
            self.release(taken, when)
            if steps <= lost + 1:
                return

    def provision(
        self, request: ProvisionRequest, when: str, lost: int = -1
    ) -> tuple[ProvisionRequest, Allocation, int]:
        """Call `provision` until the machines are ready.

        Args:
            request: the request.
            when: for messages.
            lost: the number of the step whose answer is not stored.

        Returns:
            The request with the stored state, the machines, and the number of steps.
        """
        deadline = time.monotonic() + self._timeout
        steps, why = 0, ""
        while True:
            if time.monotonic() > deadline:
                raise ContractError(self._word, "provision", f"not ready after {self._timeout:.0f} s {when}: {why}")
            answer = self._provision_once(request)
            steps += 1
            if steps - 1 == lost:
                continue
            if isinstance(answer, Ready):
                self._must_be_json(answer.allocation)
                return self._stored(request, answer), answer.allocation, steps
            why = answer.why
            request = self._stored(request, answer)
            time.sleep(min(answer.poll_after, _LONGEST_PAUSE))

    def inspect(self, request: ProvisionRequest) -> MachineStatus:
        """Call `inspect`."""
        return self._sandbox.plugins.call_one(self._word, spec.inspect, request=request) or MachineStatus("unknown")

    def release(self, request: ProvisionRequest, when: str, lost: int = -1) -> ProvisionRequest:
        """Call `release` until the machines are released; then nothing may be left."""
        deadline = time.monotonic() + self._timeout
        self._release_steps, why = 0, ""
        while True:
            if time.monotonic() > deadline:
                raise ContractError(self._word, "release", f"not released after {self._timeout:.0f} s {when}: {why}")
            answer = self._sandbox.plugins.call_one(self._word, spec.release, request=request)
            self._release_steps += 1
            if self._release_steps - 1 == lost:
                continue
            if isinstance(answer, Waiting):
                why, request = answer.why, self._stored(request, answer)
                time.sleep(min(answer.poll_after, _LONGEST_PAUSE))
                continue
            left = self._present()
            message = f"called {when}, it says Released, but {left} machine(s) still exist"
            require(isinstance(answer, Released) and not left, self._word, spec.release, message)
            return request

    def _new(self) -> ProvisionRequest:
        self._number += 1
        job = self._sandbox.job(self._config)
        directory = job.directory / "machines"
        directory.mkdir()
        return provision_request(job, job.tpu.name or f"contract-{job.id}", directory)

    def _provision_once(self, request: ProvisionRequest) -> Ready | Waiting:
        answer = self._sandbox.plugins.call_one(self._word, spec.provision, request=request)
        if isinstance(answer, Denied):
            failure = answer.failure
            raise ContractError(
                self._word,
                "provision",
                f"it was denied: {failure.kind}: {failure.evidence}; use a config that the test cloud can serve",
            )
        if not isinstance(answer, (Ready, Waiting)):
            raise ContractError(self._word, "provision", f"it returned {answer!r}")
        return answer

    def _provision_steps(self, request: ProvisionRequest, steps: int, lost: int | None) -> ProvisionRequest:
        for number in range(steps):
            answer = self._provision_once(request)
            if number != lost:
                request = self._stored(request, answer)
            if isinstance(answer, Ready):
                return request
            time.sleep(min(answer.poll_after, _LONGEST_PAUSE))
        return request

    def _stored(self, request: ProvisionRequest, answer: Ready | Waiting) -> ProvisionRequest:
        """Return the next step's request: the state as JSON, as it is read from disk after a crash."""
        if answer.saved_state is None:
            return request
        return replace(request, saved_state=json.loads(json.dumps(dict(answer.saved_state))))

    def _must_be_json(self, allocation: Allocation) -> None:
        data: dict[str, JsonValue] = json.loads(json.dumps(allocation.to_json()))
        message = "the allocation is not the same once it is stored as JSON; details of workers are strings"
        require(build(Allocation, data) == allocation, self._word, spec.provision, message)

    def _declared(self, allocation: Allocation) -> None:
        tpu = self._sandbox.job(self._config).tpu
        count, declared = len(allocation.workers), tpu.count_workers()
        message = f"count_workers() says {declared}, and provision gave {count} worker(s)"
        require(declared in (None, count), self._word, spec.tpu_section, message)
        message = f"the section declares transport {tpu.transport!r}, and the machines need {allocation.transport!r}"
        require(tpu.transport in ("", allocation.transport), self._word, spec.tpu_section, message)
        slices = [worker.slice for worker in allocation.workers]
        message = f"there are {allocation.slices} slice(s), and the workers are in slices {slices}"
        require(
            slices == sorted(slices) and {*slices} == {*range(allocation.slices)}, self._word, spec.provision, message
        )

    def _no_machines(self, allocation: Allocation, state: MachineState, message: str) -> None:
        """Require that there are none, unless they are borrowed: those exist whoever uses them."""
        require(allocation.borrowed or state in {"gone", "unknown"}, self._word, spec.inspect, message)

    def _present(self) -> int:
        return len(self._existing()) - self._before

    def _count_machines(self, when: str, present: int, hook: Callable[..., object] = spec.provision) -> None:
        expected = self._machines = present if self._machines is None else self._machines
        message = f"{when}, {present} machine(s) exist instead of {expected}; provision is idempotent on request.name"
        require(present == expected, self._word, hook, message)


def _difference(first: object, second: object, path: str = "") -> str:
    """Return the first difference between two JSON values, "" if they are equal."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        found = (_difference(first[key], second[key], f"{path}.{key}".lstrip(".")) for key in first)
        return next(filter(None, found), "")
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)) and len(first) == len(second):
        found = (_difference(*both, f"{path}[{index}]") for index, both in enumerate(zip(first, second, strict=True)))
        return next(filter(None, found), "")
    return "" if first == second else f"{path} is {second!r} instead of {first!r}"
