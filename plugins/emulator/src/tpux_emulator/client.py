"""The client of a running emulator, for the command line and for tests: reads its state and injects faults."""

from __future__ import annotations

import json
import time
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import portalocker
from pydantic import BaseModel, JsonValue, TypeAdapter

from tpux import TpuxError
from tpux_emulator.api.exchanges import Exchange
from tpux_emulator.paths import Home
from tpux_emulator.protojson import JsonObject

_PREFIX = "/emulator/v1"
_POLL_INTERVAL = 0.05
# Requests to loopback must not use the machine's proxy.
_OPENER = build_opener(ProxyHandler({}))
_EXCHANGES = TypeAdapter(list[Exchange])
_OBJECT: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)
_VALUE: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)
_HINT = "start one with `tpux emulator start --detach`"


class _Resource(BaseModel):
    name: str
    state: str


_RESOURCES = TypeAdapter(list[_Resource])


def find_running(home: Home) -> JsonObject | None:
    """Return the server file of the emulator that runs in a directory; None if none does.

    An emulator runs if its lock is held: the lock is released when the process ends, even after SIGKILL.
    """
    if not home.lock.exists() or not home.server.exists():
        return None
    with Path(home.lock).open("a", encoding="utf-8") as file:
        try:
            portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
        except portalocker.LockException:
            return _OBJECT.validate_python(json.loads(home.server.read_text(encoding="utf-8")))
        portalocker.unlock(file)
    return None


class Client:
    """The client of a running emulator.

    Durations are emulated seconds; `lasting` is for how long a fault applies, without it until it is cleared. Nodes
    and queued resources are given by id, or by full name if the id is ambiguous. Methods that add a fault rule return
    its id.

    Args:
        url: the emulator's URL, such as `http://127.0.0.1:9470`.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    def at(cls, home: Home) -> Client:
        """Return a client of the emulator that runs in a directory.

        Raises:
            TpuxError: no emulator runs there.
        """
        info = find_running(home)
        if info is None:
            raise TpuxError("no emulator is running", where=str(home.path), hint=_HINT)
        return cls(str(info["url"]))

    @property
    def requests(self) -> list[Exchange]:
        """The API requests since the emulator started, with their answers."""
        return self.requests_since(0)

    def requests_since(self, number: int) -> list[Exchange]:
        """Return the exchanges with a greater number."""
        return _EXCHANGES.validate_python(self._send("GET", f"/requests?since={number}"))

    def environment(self, *, project: str = "emulated", zone: str = "us-central2-b") -> dict[str, str]:
        """Return the environment variables with which gcloud and tpux use the emulator.

        Args:
            project: the project; any name is accepted.
            zone: the default zone.
        """
        return {
            "TPUX_GCP_ENDPOINT": self.url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{self.url}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{self.url}/compute/v1/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CORE_PROJECT": project,
            "CLOUDSDK_COMPUTE_ZONE": zone,
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
        }

    def status(self) -> JsonObject:
        """Return the emulator's status: nodes, queued resources, rules, scheduledFaults, settings and so on."""
        return _OBJECT.validate_python(self._send("GET", "/status"))

    def stop(self) -> None:
        """Ask the emulator to stop, together with its workers."""
        self._send("POST", "/stop", {})

    def inject(self, fault: str, **what: JsonValue) -> None:
        """Inject a fault as defined in `cloud/fault_injection.py`."""
        self._send("POST", "/injections", {"fault": fault, **what})

    def rule(self, effect: str, *, lasting: float | None = None, **what: JsonValue) -> str:
        """Add a fault rule as defined in `cloud/fault_rules.py`."""
        rule = _OBJECT.validate_python(self._send("POST", "/rules", {"effect": effect, "for": lasting, **what}))
        return str(rule["id"])

    def clear(self, rule: str = "") -> None:
        """Remove a fault rule, or all."""
        self._send("DELETE", f"/rules/{rule}" if rule else "/rules")

    def change(self, **settings: JsonValue) -> None:
        """Change settings as defined in `cloud/settings.py`; delays that are not given are kept."""
        self._send("PATCH", "/settings", settings)

    def kubernetes(self) -> JsonObject:
        """Return the status of the Kubernetes API: pods, jobsets, workloads, settings."""
        return _OBJECT.validate_python(self._send("GET", "/kubernetes"))

    def kubernetes_fault(self, fault: str, **what: JsonValue) -> JsonObject:
        """Inject a fault into the cluster as defined in `kubernetes/faults.py`."""
        return _OBJECT.validate_python(self._send("POST", "/kubernetes/faults", {"fault": fault, **what}))

    def change_kubernetes(self, **settings: JsonValue) -> None:
        """Change the cluster's settings as defined in `kubernetes/cluster.py`."""
        self._send("PATCH", "/kubernetes/settings", settings)

    def preempt(self, node: str, *, after: float = 0, notice: float = 0) -> None:
        """Preempt a node: after `after` seconds its workers get a notice, `notice` seconds later they are gone."""
        self.inject("preempt", node=node, after=after, notice=notice)

    def terminate(self, node: str, *, after: float = 0, notice: float = 0) -> None:
        """Terminate a node for maintenance."""
        self.inject("terminate", node=node, after=after, notice=notice)

    def maintenance(self, node: str, *, after: float = 0, notice: float = 0) -> None:
        """Plan a maintenance of a node: announced after `after` seconds, it begins `notice` seconds later."""
        self.inject("maintenance", node=node, after=after, notice=notice)

    def symptom(self, node: str, symptom: str = "OUT_OF_MEMORY") -> None:
        """Report a symptom of a node."""
        self.inject("symptom", node=node, symptom=symptom)

    def cut(self, node: str, *workers: int, how: str = "hang", lasting: float | None = None) -> None:
        """Cut workers (all if none is given) from the network; `how` is `hang` or `refuse`."""
        self.inject("cut", node=node, workers=list(workers), how=how, lasting=lasting)

    def restore(self, node: str, *workers: int) -> None:
        """Restore the network of workers (all if none is given)."""
        self.inject("restore", node=node, workers=list(workers))

    def rotate_host_key(self, node: str, *workers: int, published: bool = True) -> None:
        """Replace the host keys of workers (all if none is given), as if they had been rebuilt.

        If the keys are not `published`, the API still shows the old ones, as if somebody intercepted the logins.
        """
        self.inject("rotate_host_key", node=node, workers=list(workers), published=published)

    def fake_state(self, node: str, state: str | None, *, lasting: float | None = None) -> None:
        """Show another state than the node's; None shows the real one again."""
        self.inject("fake_state", node=node, state=state, lasting=lasting)

    def freeze(self, node: str, *, lasting: float | None = None) -> None:
        """Freeze a node in its current or next transient state, such as DELETING."""
        self.inject("freeze", node=node, lasting=lasting)

    def unfreeze(self, node: str) -> None:
        """Let a frozen node continue."""
        self.inject("unfreeze", node=node)

    def suspend(self, queued_resource: str) -> None:
        """Suspend a queued resource."""
        self.inject("suspend", queued_resource=queued_resource)

    def fail(self, queued_resource: str, *, code: int = 13, message: str = "an internal error has occurred") -> None:
        """Let a queued resource fail."""
        self.inject("fail", queued_resource=queued_resource, code=code, message=message)

    def forget(self, queued_resource: str, *, linked: bool = True) -> None:
        """Delete a queued resource while its nodes remain; without `linked`, they no longer name it either."""
        self.inject("forget", queued_resource=queued_resource, linked=linked)

    def stockout(
        self, zone: str = "", *, count: int | None = None, lasting: float | None = None, form: str = "zone"
    ) -> str:
        """Simulate a lack of capacity in a zone, or in all, for `count` requests or `lasting` seconds.

        Args:
            zone: the zone; empty for all.
            count: how many creations are affected.
            lasting: for how many seconds.
            form: the wording: `zone`, `resources` (Compute Engine's 429) or `pool` (its 503).
        """
        return self.rule("stockout", lasting=lasting, zone=zone, count=count, form=form)

    def quota(
        self,
        zone: str = "",
        *,
        generation: str = "",
        pricing: str = "",
        limit: int = 0,
        lasting: float | None = None,
        form: str = "region",
    ) -> str:
        """Limit the chips that a project may have in a zone; by default to 0.

        Args:
            zone: the zone; empty for each.
            generation: the TPU generation that is limited; empty for each.
            pricing: `spot` or `ondemand`; empty for each.
            limit: the number of chips.
            lasting: for how many seconds.
            form: the wording: `zone`, `region`, or `exhausted` (a queued resource is accepted, then fails).
        """
        what: JsonObject = {"generation": generation, "pricing": pricing, "limit": limit, "form": form}
        return self.rule("quota", lasting=lasting, zone=zone, **what)

    def forbid(self, zone: str, *, lasting: float | None = None, form: str = "zone") -> str:
        """Answer every request in a zone with 403, as for a project that may not use the zone.

        Args:
            zone: the zone.
            lasting: for how many seconds.
            form: the wording: `zone`, or `policy` (LOCATION_POLICY_VIOLATED).
        """
        return self.rule("forbid", lasting=lasting, zone=zone, form=form)

    def unreachable(self, zone: str, *, lasting: float | None = None) -> str:
        """Leave a zone's resources out of lists, which name it as one that the API could not reach."""
        return self.rule("unreachable", lasting=lasting, zone=zone)

    def throttle(self, method: str = "*.create", *, count: int | None = None, lasting: float | None = None) -> str:
        """Answer requests with 429, as after too many requests per minute."""
        return self.rule("error", lasting=lasting, status=429, method=method, count=count)

    def error(
        self,
        status: int,
        method: str = "*",
        *,
        count: int | None = None,
        lasting: float | None = None,
        message: str = "",
    ) -> str:
        """Answer requests with an HTTP status, such as 403, 500 or 503.

        Args:
            status: of the answers.
            method: the methods, as a pattern such as `*.create`.
            count: how many requests are affected; None is all.
            lasting: for how many seconds; None is until it is cleared.
            message: of the answers; by default that of the API for this status.
        """
        return self.rule("error", lasting=lasting, status=status, method=method, count=count, message=message)

    def drop(self, method: str = "*", *, count: int | None = None, lasting: float | None = None) -> str:
        """Close connections without handling their requests."""
        return self.rule("drop", lasting=lasting, method=method, count=count)

    def lose(self, method: str = "*", *, count: int | None = None, lasting: float | None = None) -> str:
        """Handle requests, but close the connection instead of answering."""
        return self.rule("lose", lasting=lasting, method=method, count=count)

    def late(
        self, seconds: float, method: str = "*.create", *, count: int | None = 1, lasting: float | None = None
    ) -> str:
        """Close connections without an answer, and handle their requests after `seconds`.

        Args:
            seconds: until a request is handled, of the emulator's clock.
            method: the methods, as a pattern such as `*.create`.
            count: how many requests are affected; None is all.
            lasting: for how many seconds; None is until it is cleared.
        """
        return self.rule("late", lasting=lasting, method=method, count=count, seconds=seconds)

    def hang(
        self, method: str = "*", *, count: int | None = None, lasting: float | None = None, seconds: float = 0
    ) -> str:
        """Accept requests without answering, for `seconds` each (0: until the client disconnects).

        Args:
            method: the methods, as a pattern such as `*.create`.
            count: how many requests are affected; None is all.
            lasting: for how many seconds; None is until it is cleared.
            seconds: how long each request hangs, of the emulator's clock; 0: until the client disconnects.
        """
        return self.rule("hang", lasting=lasting, method=method, count=count, seconds=seconds)

    def slow(self, seconds: float, method: str = "*", *, count: int | None = None, lasting: float | None = None) -> str:
        """Delay answers.

        Args:
            seconds: how long each answer is delayed, of the emulator's clock.
            method: the methods, as a pattern such as `*.create`.
            count: how many requests are affected; None is all.
            lasting: for how many seconds; None is until it is cleared.
        """
        return self.rule("slow", lasting=lasting, method=method, count=count, seconds=seconds)

    def fail_operation(
        self, method: str = "nodes.create", *, code: int = 13, message: str = "", count: int | None = 1
    ) -> str:
        """Let operations fail with an error.

        Args:
            method: the methods, as a pattern such as `*.create`.
            code: of the operation's error (google.rpc.Code).
            message: of the operation's error.
            count: how many operations fail; None is all.
        """
        return self.rule("fail", method=method, code=code, message=message, count=count)

    def delay(self, **seconds: float) -> None:
        """Set delays, with `_` for dots and hyphens: `node_CREATING=30`, `queued_resource_ACCEPTED=5`."""
        named = {}
        for key, value in seconds.items():
            kind, _, state = key.rpartition("_") if not key.startswith("queued_resource_") else (
                "queued-resource", "", key.removeprefix("queued_resource_"))  # fmt: skip
            named[f"{kind}.{state}"] = value
        self.change(delays=dict(named))

    def wait_for(self, node: str, state: str, *, seconds: float = 60) -> None:
        """Wait until a node is in a state.

        Args:
            node: the node.
            state: the state; `GONE` means that there is no such node.
            seconds: the timeout, in real seconds.

        Raises:
            TpuxError: the timeout has passed.
        """
        self._wait("nodes", node, state, seconds)

    def wait_for_queued(self, queued_resource: str, state: str, *, seconds: float = 60) -> None:
        """Wait until a queued resource is in a state, like `wait_for`."""
        self._wait("queuedResources", queued_resource, state, seconds)

    def _wait(self, table: str, name: str, state: str, seconds: float) -> None:
        deadline, current = time.monotonic() + seconds, ""
        while time.monotonic() < deadline:
            records = _RESOURCES.validate_python(self.status()[table])
            ids = {each.name.rpartition("/")[2]: each.state for each in records}
            states = [each.state for each in records if name in (each.name, each.name.rpartition("/")[2])]
            states = states or [state for one, state in ids.items() if one.startswith(f"{name}-")]
            current = states[0] if states else "GONE"
            if current == state:
                return
            time.sleep(_POLL_INTERVAL)
        raise TpuxError(f"{name} is {current}, not {state}, after {seconds:g} s", where=self.url)

    def _send(self, verb: str, path: str, content: JsonObject | None = None) -> JsonValue:
        data = None if content is None else json.dumps(content).encode()
        request = Request(self.url + _PREFIX + path, data, {"Content-Type": "application/json"}, method=verb)  # noqa: S310
        try:
            with _OPENER.open(request, timeout=60) as answer:
                return _VALUE.validate_json(answer.read())
        except HTTPError as refused:
            body = _OBJECT.validate_json(refused.read())
            texts = {key: str(body.get(key) or "") for key in ("message", "where", "hint")}
            raise TpuxError(texts["message"], where=texts["where"], hint=texts["hint"]) from refused
        except (OSError, HTTPException) as error:
            raise TpuxError(f"the emulator does not answer: {error}", where=self.url, hint=_HINT) from error
