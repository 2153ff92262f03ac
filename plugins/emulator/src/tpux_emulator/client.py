"""Talks to a running emulator: looks at its cloud and breaks it. The command line and the tests use this."""

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
# The machine's proxy settings are for other places than loopback.
_OPENER = build_opener(ProxyHandler({}))
_EXCHANGES = TypeAdapter(list[Exchange])
_OBJECT: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)
_VALUE: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)
_RUN = "`tpux emulator start --detach` starts one"


class _Stated(BaseModel):
    name: str
    state: str


_RECORDS = TypeAdapter(list[_Stated])


def find_running(home: Home) -> JsonObject | None:
    """What the emulator on this state says about itself; None when none runs.

    The lock says whether one runs: a held lock has a living holder.
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
    """One running emulator. Durations are emulated seconds; nodes go by id, or by full name where it is not clear.

    Args:
        url: as `http://127.0.0.1:9470`.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    def at(cls, home: Home) -> Client:
        """The emulator that runs on a state.

        Raises:
            TpuxError: none does.
        """
        facts = find_running(home)
        if facts is None:
            raise TpuxError("no emulator is running", where=str(home.path), hint=_RUN)
        return cls(str(facts["url"]))

    @property
    def requests(self) -> list[Exchange]:
        """What it was asked so far, and answered."""
        return self.requests_since(0)

    def requests_since(self, number: int) -> list[Exchange]:
        """The exchanges with a number above this one."""
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
        """Everything there is: nodes, queued resources, faults, plans, settings."""
        return _OBJECT.validate_python(self._send("GET", "/status"))

    def stop(self) -> None:
        """Tell it to end, with all its workers."""
        self._send("POST", "/stop", {})

    def inject(self, fault: str, **what: JsonValue) -> None:
        """Give an order as `faults/orders.py` has them."""
        self._send("POST", "/injections", {"fault": fault, **what})

    def rule(self, effect: str, *, lasting: float | None = None, **what: JsonValue) -> str:
        """Set a standing fault as `faults/rules.py` has them, for so many seconds; its id."""
        rule = _OBJECT.validate_python(self._send("POST", "/rules", {"effect": effect, "for": lasting, **what}))
        return str(rule["id"])

    def clear(self, rule: str = "") -> None:
        """Lift one standing fault, or all."""
        self._send("DELETE", f"/rules/{rule}" if rule else "/rules")

    def change(self, **settings: JsonValue) -> None:
        """Change settings as `settings.py` has them; delays not named stay as they are."""
        self._send("PATCH", "/settings", settings)

    def preempt(self, node: str, *, after: float = 0, notice: float = 0) -> None:
        """Preempt a node after a while; `notice` seconds before, its workers are told."""
        self.inject("preempt", node=node, after=after, notice=notice)

    def terminate(self, node: str, *, after: float = 0, notice: float = 0) -> None:
        """Take a node for maintenance."""
        self.inject("terminate", node=node, after=after, notice=notice)

    def cut(self, node: str, *workers: int, how: str = "hang", lasting: float | None = None) -> None:
        """Cut workers (all when none is named) from the network; `how` is `hang` or `refuse`."""
        self.inject("cut", node=node, workers=list(workers), how=how, lasting=lasting)

    def restore(self, node: str, *workers: int) -> None:
        """End a cut."""
        self.inject("restore", node=node, workers=list(workers))

    def rekey(self, node: str, *workers: int) -> None:
        """Give workers (all when none is named) other host keys, as rebuilt machines have."""
        self.inject("rekey", node=node, workers=list(workers))

    def lie(self, node: str, state: str | None, *, lasting: float | None = None) -> None:
        """Show a state that is not the node's; None shows the truth again."""
        self.inject("lie", node=node, state=state, lasting=lasting)

    def stick(self, node: str, *, lasting: float | None = None) -> None:
        """Keep a node in the state that it is in or comes to next, such as DELETING."""
        self.inject("stick", node=node, lasting=lasting)

    def unstick(self, node: str) -> None:
        """Let a stuck node go on."""
        self.inject("unstick", node=node)

    def suspend(self, queued_resource: str) -> None:
        """Suspend a queued resource."""
        self.inject("suspend", queued_resource=queued_resource)

    def fail(self, queued_resource: str, *, code: int = 13, message: str = "an internal error has occurred") -> None:
        """Let a queued resource fail."""
        self.inject("fail", queued_resource=queued_resource, code=code, message=message)

    def stockout(self, zone: str = "", *, count: int | None = None, lasting: float | None = None) -> str:
        """No capacity in a zone (in all, without one) for so many requests or seconds."""
        return self.rule("stockout", lasting=lasting, zone=zone, count=count)

    def quota(self, zone: str = "", *, generation: str = "", limit: int = 0, lasting: float | None = None) -> str:
        """A quota of chips; the default leaves none."""
        return self.rule("quota", lasting=lasting, zone=zone, generation=generation, limit=limit)

    def throttle(self, method: str = "*.create", *, count: int | None = None, lasting: float | None = None) -> str:
        """Answer 429 as for too many requests a minute."""
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
        """Answer with an HTTP status: 403, 500, 503, ..."""
        return self.rule("error", lasting=lasting, status=status, method=method, count=count, message=message)

    def drop(self, method: str = "*", *, count: int | None = None, lasting: float | None = None) -> str:
        """Close connections without having done anything."""
        return self.rule("drop", lasting=lasting, method=method, count=count)

    def lose(self, method: str = "*", *, count: int | None = None, lasting: float | None = None) -> str:
        """Do what is asked and never answer: the connection is closed instead."""
        return self.rule("lose", lasting=lasting, method=method, count=count)

    def hang(
        self, method: str = "*", *, count: int | None = None, lasting: float | None = None, seconds: float = 0
    ) -> str:
        """Take requests and never answer, for so many seconds each (0: until the client gives up)."""
        return self.rule("hang", lasting=lasting, method=method, count=count, seconds=seconds)

    def slow(self, seconds: float, method: str = "*", *, count: int | None = None, lasting: float | None = None) -> str:
        """Answer late."""
        return self.rule("slow", lasting=lasting, method=method, count=count, seconds=seconds)

    def fail_operation(
        self, method: str = "nodes.create", *, code: int = 13, message: str = "", count: int | None = 1
    ) -> str:
        """Let operations end in an error."""
        return self.rule("fail", method=method, code=code, message=message, count=count)

    def delay(self, **seconds: float) -> None:
        """Set delays, with `_` for the dot and dashes: `node_CREATING=30`, `queued_resource_ACCEPTED=5`."""
        named = {}
        for key, value in seconds.items():
            kind, _, state = key.rpartition("_") if not key.startswith("queued_resource_") else (
                "queued-resource", "", key.removeprefix("queued_resource_"))  # fmt: skip
            named[f"{kind}.{state}"] = value
        self.change(delays=dict(named))

    def wait_for(self, node: str, state: str, *, seconds: float = 60) -> None:
        """Wait until a node is in a state; `GONE` is no node at all. `seconds` are real ones.

        Raises:
            TpuxError: it does not come to that.
        """
        self._wait("nodes", node, state, seconds)

    def wait_for_queued(self, queued_resource: str, state: str, *, seconds: float = 60) -> None:
        """The same for a queued resource."""
        self._wait("queuedResources", queued_resource, state, seconds)

    def _wait(self, table: str, name: str, state: str, seconds: float) -> None:
        deadline, now = time.monotonic() + seconds, ""
        while time.monotonic() < deadline:
            records = _RECORDS.validate_python(self.status()[table])
            states = [each.state for each in records if name in (each.name, each.name.rpartition("/")[2])]
            now = states[0] if states else "GONE"
            if now == state:
                return
            time.sleep(_POLL_INTERVAL)
        raise TpuxError(f"{name} is {now} and not {state} after {seconds:g} s", where=self.url)

    def _send(self, verb: str, path: str, content: JsonObject | None = None) -> JsonValue:
        data = None if content is None else json.dumps(content).encode()
        asked = Request(self.url + _PREFIX + path, data, {"Content-Type": "application/json"}, method=verb)  # noqa: S310
        try:
            with _OPENER.open(asked, timeout=60) as answer:
                return _VALUE.validate_json(answer.read())
        except HTTPError as refused:
            said = _OBJECT.validate_json(refused.read())
            words = {key: str(said.get(key) or "") for key in ("message", "where", "hint")}
            raise TpuxError(words["message"], where=words["where"], hint=words["hint"]) from refused
        except (OSError, HTTPException) as error:
            raise TpuxError(f"the emulator does not answer: {error}", where=self.url, hint=_RUN) from error
