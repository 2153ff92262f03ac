"""Record the answers of the Cloud TPU API, and delete what was created for it: `scripts/first-contact.sh` runs this.

It needs nothing but Python. The name of a resource is on disk before its creation is sent, so that `delete`, which runs
after every end of `record`, knows what may exist. Answers are written without identifiers, and
lists without what others own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

GOOGLE = "https://tpu.googleapis.com"
PREFIX = "first-contact-"
INTENTS = "to-delete.jsonl"
# The smallest type of each generation: USD per hour, on demand, in us regions, by Google's price list of 2025. Other
# regions cost up to half more; a spot TPU costs less.
PRICES = {"v5litepod-1": 1.20, "v6e-1": 2.70, "v2-8": 4.50, "v3-8": 8.00, "v4-8": 12.88, "v5p-8": 16.80}
VERSIONS = {"v5litepod-1": "v2-alpha-tpuv5-lite", "v6e-1": "v2-alpha-tpuv6e", "v5p-8": "v2-alpha-tpuv5"}
DEFAULT_VERSION = "tpu-ubuntu2204-base"
MINUTES = 10
"""How long the recording may take, from the first creation."""
PATIENCE = {"node": 300.0, "queued resource": 180.0, "guest attributes": 60.0, "deletion": 300.0}
"""Seconds to wait for each of them."""
TOKEN_LIFE = 1800.0
TIMEOUT = 60.0
MAX_BACKOFF = 15.0
ENDED = {"READY", "PREEMPTED", "TERMINATED", "UNKNOWN", "ACTIVE", "FAILED", "SUSPENDED"}
# Runs on the VM at its start; it publishes what its metadata server says, at once and whenever it changes.
PUBLISH = """#!/bin/bash
url=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance
publish() { # KEY PATH ARGUMENT...
    local value
    value=$(curl -s -H Metadata-Flavor:Google "${@:3}" "$url/$2") || return 1
    curl -s -X PUT -H Metadata-Flavor:Google --data "$value" "$url/guest-attributes/first-contact/$1"
}
publish preempted preempted
publish maintenance-event maintenance-event
publish scopes service-accounts/default/scopes
publish preempted-later preempted --max-time 600 --get -d wait_for_change=true &
publish maintenance-event-later maintenance-event --max-time 600 --get -d wait_for_change=true &
wait
"""


class StopError(Exception):
    """The recording cannot go on."""


def say(text: str) -> None:
    """Print a line. The terminal may be gone while machines are being deleted."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


# --- the API --------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What the API has answered; the status is 0 without an answer."""

    status: int
    message: dict[str, object]

    def state(self) -> str:
        """Return the state of a node or a queued resource, or `HTTP n`."""
        state = self.message.get("state")
        state = state.get("state") if isinstance(state, dict) else state
        return str(state) if self.status == 200 and state else f"HTTP {self.status}"


@dataclass
class Api:
    """The API in one zone.

    Args:
        endpoint: Google's, or an emulator's on this machine, which gets no token.
        project: the project's id.
        zone: the zone.
    """

    endpoint: str
    project: str
    zone: str
    _token: str = ""
    _token_until: float = 0.0

    @property
    def parent(self) -> str:
        """`projects/P/locations/Z`."""
        return f"projects/{self.project}/locations/{self.zone}"

    @property
    def emulated(self) -> bool:
        """Whether nothing here costs money."""
        return self.endpoint != GOOGLE

    @property
    def pause(self) -> float:
        """Seconds between two polls."""
        return 0.2 if self.emulated else 5.0

    @property
    def late(self) -> float:
        """Seconds in which a creation may take effect although it was not answered."""
        return 5.0 if self.emulated else 120.0

    def send(
        self, verb: str, path: str, body: object = None, *, version: str = "v2", query: dict[str, str] | None = None
    ) -> Answer:
        """Send a request."""
        url = f"{self.endpoint}/{version}/{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        headers = {"Content-Type": "application/json"}
        if not self.emulated:
            headers["Authorization"] = f"Bearer {self._access_token()}"
            headers["X-Goog-User-Project"] = self.project
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return Answer(answer.status, _message(answer.read()))
        except urllib.error.HTTPError as error:
            if error.code == 401:
                self._token_until = 0.0
            return Answer(error.code, _message(error.read()))
        except OSError as error:
            return Answer(0, {"no answer": type(getattr(error, "reason", error)).__name__})

    def _access_token(self) -> str:
        if time.monotonic() >= self._token_until:
            self._token = _gcloud("auth", "print-access-token")
            self._token_until = time.monotonic() + TOKEN_LIFE
        return self._token


def _message(body: bytes) -> dict[str, object]:
    try:
        message = json.loads(body)
    except ValueError:
        message = {"not JSON": body[:300].decode(errors="replace")}
    return message if isinstance(message, dict) else {"not an object": message}


def _gcloud(*arguments: str) -> str:
    try:
        done = subprocess.run(["gcloud", *arguments], check=False, capture_output=True, text=True, timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StopError(f"cannot run gcloud {' '.join(arguments)}: {error}") from error
    if done.returncode or not done.stdout.strip():
        raise StopError(f"gcloud {' '.join(arguments)} failed: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


# --- what is on disk ------------------------------------------------------------------------------


class Mask:
    """Replaces identifiers, the same one always by the same word.

    Args:
        project: the project's id.
        token: the random part of the names of this run.
    """

    _PATTERNS = (
        ("TOKEN", re.compile(r"ya29\.[-\w.]+")),
        ("KEY", re.compile(r"AAAA[A-Za-z0-9+/=]{20,}")),
        ("OPERATION", re.compile(r"operation-[-\w]+")),
        ("ACCOUNT", re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+")),
        ("IP", re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")),
        ("HOST", re.compile(r"\bt1v-n-\w+-w-\d+\b")),
        ("NUMBER", re.compile(r"\b\d{10,}\b")),
    )
    _PROJECT_NUMBER = re.compile(r"(?<=projects/)\d{6,}|(?<=project_number:)\d{6,}|\b\d{6,}(?=-compute@)")

    def __init__(self, project: str, token: str) -> None:
        self._words = {project: "PROJECT"}
        self._token = token
        self._counts: dict[str, int] = {}

    def __call__(self, message: object) -> object:
        """Return JSON with identifiers replaced."""
        text = json.dumps(message).replace(f"{PREFIX}{self._token}-", PREFIX)
        for number in self._PROJECT_NUMBER.findall(text):
            self._words[number] = "PROJECT_NUMBER"
        for known, word in self._words.items():
            if word.startswith("PROJECT"):
                text = text.replace(known, word)
        for word, pattern in self._PATTERNS:
            text = pattern.sub(partial(self._named, word), text)
        return json.loads(text)

    def _named(self, word: str, match: re.Match[str]) -> str:
        found = match.group()
        if found not in self._words:
            self._counts[word] = self._counts.get(word, 0) + 1
            self._words[found] = f"{word}_{self._counts[word]}"
        return self._words[found]


@dataclass
class Recording:
    """The answers in a directory, one file each."""

    directory: Path
    mask: Mask
    own: str
    """What the JSON of each resource and operation of this run contains."""
    _OWNED: ClassVar = re.compile(r'"name": "[^"]*/(nodes|queuedResources|operations)/')
    count: int = 0
    began: float = field(default_factory=time.monotonic)

    def write(self, step: str, request: dict[str, object], answer: Answer) -> None:
        """Write one exchange."""
        self.count += 1
        shown = {key: self._own(value) for key, value in answer.message.items()}
        message = {key: value for key, value in shown.items() if value != []}
        exchange = {
            "step": step, "seconds": round(time.monotonic() - self.began, 1), "request": request,
            "status": answer.status, "answer": message,
        }  # fmt: skip
        path = self.directory / f"{self.count:03}-{step}.json"
        path.write_text(json.dumps(self.mask(exchange), indent=1) + "\n", encoding="utf-8")

    def _own(self, value: object) -> object:
        """Return a list without the nodes, queued resources and operations of other people."""
        if not isinstance(value, list):
            return value
        return [item for item in value if not self._OWNED.search(json.dumps(item)) or self.own in json.dumps(item)]


def intend(directory: Path, entry: dict[str, object]) -> None:
    """Append a line to the list of what may have to be deleted; it is on disk when this returns."""
    with (directory / INTENTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())


# --- recording ------------------------------------------------------------------------------------


class Recorder:
    """Makes the calls, in order.

    Args:
        api: the API.
        accelerator: the accelerator's type.
        token: the random part of the names.
        directory: where the answers are written.
    """

    def __init__(self, api: Api, accelerator: str, token: str, directory: Path) -> None:
        self._api, self._accelerator, self._token, self._directory = api, accelerator, token, directory
        own = f"{PREFIX}{token}-"
        self._recording = Recording(directory, Mask(api.project, token), own)
        self._deadline = float("inf")
        self._parent_process = os.getppid()

    def run(self) -> None:
        """Record everything."""
        nodes, queue = f"{self._api.parent}/nodes", f"{self._api.parent}/queuedResources"
        for collection in ("acceleratorTypes", "runtimeVersions", "nodes", "queuedResources", "operations"):
            self._call(f"list-{collection}", "GET", f"{self._api.parent}/{collection}", query={"pageSize": "1000"})
        self._call("get-missing", "GET", f"{nodes}/{self._name('missing')}")
        self._create("wrong-accelerator", nodes, "w", {**self._node(), "acceleratorType": "v9-8"}, "refused: nothing")
        self._while_creating(nodes)
        self._spot_node(nodes)
        self._queued_resource(queue, nodes)

    def _while_creating(self, nodes: str) -> None:
        """Create a node with a subnetwork and no network; PATCH and DELETE it, or another one, in CREATING."""
        only_subnetwork = {**self._node(), "networkConfig": {"subnetwork": "default", "enableExternalIps": True}}
        path = self._create("subnetwork-without-network", nodes, "s", only_subnetwork)
        if path is None or self._call("get-in-creating", "GET", path).status != 200:
            path = self._create("for-creating", nodes, "c", self._node())
        if path is not None:
            self._call("patch-in-creating", "PATCH", path, {"labels": {"a": "b"}}, query={"updateMask": "labels"})
            self._call("delete-in-creating", "DELETE", path)
            self._until("wait-deleted-in-creating", path, "deletion", lambda answer: answer.status == 404)
            self._operations("operations-after-creating")

    def _spot_node(self, nodes: str) -> None:
        """Take a spot node from its creation to its deletion, with a simulated maintenance event."""
        metadata = {"startup-script": PUBLISH, "enable-guest-attributes": "TRUE"}
        path = self._create("create-node", nodes, "n", {**self._node(), "metadata": metadata})
        if path is None:
            return
        self._until("wait-ready", path, "node", lambda answer: answer.state() in ENDED or answer.status == 404)
        self._call("list-nodes-with-node", "GET", nodes, query={"pageSize": "1000"})
        self._operations("operations-after-create")
        self._published("guest-attributes", path, "scopes")
        workers = {"workerIds": ["0"]}
        self._call("simulate-maintenance", "POST", f"{path}:simulateMaintenanceEvent", workers, version="v2alpha1")
        self._operations("operations-after-alpha")
        self._published("guest-attributes-after-maintenance", path, "maintenance-event-later")
        self._call("get-after-maintenance", "GET", path)
        self._call("delete-node", "DELETE", path)
        self._until("wait-deleted", path, "deletion", lambda answer: answer.status == 404)
        self._operations("operations-after-delete")

    def _queued_resource(self, queue: str, nodes: str) -> None:
        """Take a queued resource with one spot node from its creation to its deletion."""
        name = self._name("q")
        intend(self._directory, {"path": f"{nodes}/{name}", "sent": False})
        spec = {"parent": self._api.parent, "nodeId": name, "node": self._node(queued=True)}
        path = self._create("create-queued", queue, "q", {"tpu": {"nodeSpec": [spec]}, "spot": {}})
        if path is None:
            return
        self._until("wait-active", path, "queued resource", lambda answer: answer.state() in ENDED)
        self._call("list-queued-with-one", "GET", queue, query={"pageSize": "1000"})
        self._call("get-node-of-queued", "GET", f"{nodes}/{name}")
        self._call("delete-queued-without-force", "DELETE", path)
        self._call("delete-queued", "DELETE", path, query={"force": "true"})
        self._until("wait-queued-deleted", path, "deletion", lambda answer: answer.status == 404)
        self._operations("operations-after-queued")

    def _name(self, suffix: str) -> str:
        return f"{PREFIX}{self._token}-{suffix}"

    def _node(self, *, queued: bool = False) -> dict[str, object]:
        node: dict[str, object] = {
            "acceleratorType": self._accelerator,
            "runtimeVersion": VERSIONS.get(self._accelerator, DEFAULT_VERSION),
            "networkConfig": {"network": "default", "enableExternalIps": True},
        }
        return node if queued else {**node, "schedulingConfig": {"spot": True}}

    def _call(
        self,
        step: str,
        verb: str,
        path: str,
        body: object = None,
        *,
        version: str = "v2",
        query: dict[str, str] | None = None,
    ) -> Answer:
        answer = self._api.send(verb, path, body, version=version, query=query)
        request = {"verb": verb, "version": version, "path": path, "query": query or {}, "body": body}
        self._recording.write(step, request, answer)
        return answer

    def _create(
        self, step: str, collection: str, suffix: str, body: dict[str, object], price: str | None = None
    ) -> str | None:
        """Ask, and create a resource. Return its path; None if it was declined or refused.

        Raises:
            StopError: the API did not answer, so that it may exist.
        """
        name = self._name(suffix)
        kind = collection.rpartition("/")[2]
        if not _confirmed(f"{step}: create {name} in {kind} of {self._api.zone}? {price or self._price()}"):
            return None
        if os.getppid() != self._parent_process:
            raise StopError("the script that deletes everything is gone")
        path = f"{collection}/{name}"
        if self._deadline == float("inf"):
            self._deadline = time.monotonic() + 60 * MINUTES
        intend(self._directory, {"path": path, "sent": True})
        key = "nodeId" if kind == "nodes" else "queuedResourceId"
        answer = self._call(step, "POST", collection, body, query={key: name})
        if answer.status == 0 or answer.status >= 500:
            raise StopError(f"{step}: no useful answer (HTTP {answer.status}): {name} may exist, and is deleted")
        intend(self._directory, {"path": path, "answered": True})
        if answer.status != 200:
            say(f"{step}: refused, HTTP {answer.status}")
            return None
        operation = answer.message.get("name")
        if isinstance(operation, str) and re.fullmatch(r"[-\w/.]+", operation):
            self._call(f"{step}-operation", "GET", operation)
        return path

    def _price(self) -> str:
        hourly = PRICES[self._accelerator]
        most = hourly * MINUTES / 60
        price = (
            f"at most USD {most:.2f} for {MINUTES} minutes (on demand USD {hourly:.2f}/h in us regions; spot is less)"
        )
        return "an emulator: nothing" if self._api.emulated else f"{self._accelerator}: {price}"

    def _operations(self, step: str) -> None:
        self._call(step, "GET", f"{self._api.parent}/operations", query={"pageSize": "1000"})

    def _until(self, step: str, path: str, what: str, reached: Callable[[Answer], bool]) -> None:
        """Poll a resource and record each of its states, until one is reached or the time is over."""
        until, last = min(time.monotonic() + PATIENCE[what], self._deadline), ""
        while True:
            answer = self._api.send("GET", path)
            if answer.state() != last:
                last = answer.state()
                say(f"{step}: {last}")
                self._recording.write(step, {"verb": "GET", "path": path}, answer)
            if reached(answer):
                return
            if time.monotonic() > until:
                say(f"{step}: not within the time")
                return
            time.sleep(self._api.pause)

    def _published(self, step: str, path: str, key: str) -> None:
        """Record the guest attributes, once the startup script has published one of them or the time is over."""
        until = min(time.monotonic() + PATIENCE["guest attributes"] / (10 if self._api.emulated else 1), self._deadline)
        while True:
            answer = self._api.send("POST", f"{path}:getGuestAttributes", {})
            if answer.status != 200 or f'"key": "{key}"' in json.dumps(answer.message) or time.monotonic() > until:
                self._recording.write(step, {"verb": "POST", "path": f"{path}:getGuestAttributes", "body": {}}, answer)
                return
            time.sleep(self._api.pause)


def _confirmed(question: str) -> bool:
    say(f"{question}\nyes or no: ")
    answer = sys.stdin.readline().strip().lower()
    if answer not in {"yes", "y"}:
        say("left out")
    return answer in {"yes", "y"}


def record(arguments: argparse.Namespace) -> None:
    """Record the answers into a new directory.

    Raises:
        StopError: the directory is not empty, or the zone has none of the smallest types.
    """
    directory: Path = arguments.directory
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise StopError(f"{directory} is not empty; give a new directory")
    endpoint = arguments.endpoint or GOOGLE
    if endpoint != GOOGLE and not re.fullmatch(r"http://(127\.[\d.]+|localhost):\d+", endpoint):
        raise StopError(f"--endpoint {endpoint} is not an emulator on this machine")
    api = Api(endpoint, arguments.project or _gcloud("config", "get-value", "project"), arguments.zone)
    offered = api.send("GET", f"{api.parent}/acceleratorTypes", query={"pageSize": "1000"})
    if offered.status != 200:
        raise StopError(f"{api.parent}: HTTP {offered.status}: {json.dumps(offered.message)[:500]}")
    types = [name for name in PRICES if f'"{name}"' in json.dumps(offered.message)]
    accelerator = arguments.type or (types[0] if types else "")
    if accelerator not in types:
        raise StopError(
            f"{api.zone} offers {', '.join(types) or 'none of ' + ', '.join(PRICES)}; not {accelerator or 'others'}"
        )
    token = secrets.token_hex(2)
    intend(directory, {"endpoint": endpoint, "project": api.project, "zone": api.zone, "own": f"{PREFIX}{token}-"})
    about = {"zone": api.zone, "type": accelerator, "emulated": api.emulated, "date": time.strftime("%Y-%m-%d")}
    (directory / "about.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
    Recorder(api, accelerator, token, directory).run()
    say(f"the answers are in {directory}")


# --- deleting -------------------------------------------------------------------------------------


def delete(directory: Path) -> None:
    """Delete everything that a recording may have created, and return only once the API shows that nothing is left."""
    if not (directory / INTENTS).is_file():
        return
    lines = (directory / INTENTS).read_text(encoding="utf-8").splitlines()
    about, *entries = [json.loads(line) for line in lines if line.endswith("}")]  # the last one may be incomplete
    api = Api(about["endpoint"], about["project"], about["zone"])
    # A queued resource first: its node belongs to it.
    paths = sorted({entry["path"] for entry in entries}, key=lambda path: "/nodes/" in path)
    answered = {entry["path"] for entry in entries if "answered" in entry}
    unanswered = {entry["path"] for entry in entries if entry.get("sent")} - answered
    if not any(entry.get("sent") for entry in entries):
        (directory / INTENTS).unlink()
        return
    since, said, pause = time.monotonic(), "", api.pause
    while True:
        try:
            left = _delete_once(api, paths, about["own"])
        except StopError as error:
            left = [str(error)]
        if not left and unanswered and time.monotonic() < since + api.late:
            left = [f"a creation was not answered; it may still take effect ({api.late:.0f} s)"]
        if not left:
            break
        if (message := f"deleting; left: {', '.join(left)}") != said:
            said, pause = message, api.pause
            say(message)
        time.sleep(pause)
        pause = min(pause * 1.5, MAX_BACKOFF)
    (directory / INTENTS).unlink()
    say("deleted: the API answers 404 for everything that was created, and lists none of it")


def _delete_once(api: Api, paths: list[str], own: str) -> list[str]:
    """Delete what exists. Return what is left, or may be."""
    left = []
    for path in paths:
        answer = api.send("GET", path)
        if answer.status == 404:
            continue
        left.append(f"{path.rpartition('/')[2]} ({answer.state()})")
        if answer.state() not in {"DELETING", "SUSPENDING"}:
            api.send("DELETE", path, query={"force": "true"} if "/queuedResources/" in path else None)
    return left or [
        f"{collection} of {api.zone} (HTTP {answer.status}, or one of them is listed)"
        for collection in ("queuedResources", "nodes", "operations")
        if (answer := _whole_list(api, collection)).status != 200 or _is_listed(collection, answer.message, own)
    ]


def _whole_list(api: Api, collection: str) -> Answer:
    """Return the items on all pages, or the answer that is none; one is incomplete if a location was unreachable."""
    items: list[object] = []
    token = ""
    while True:
        query = {"pageSize": "1000", **({"pageToken": token} if token else {})}
        answer = api.send("GET", f"{api.parent}/{collection}", query=query)
        if answer.status != 200 or answer.message.get("unreachable"):
            return Answer(answer.status if answer.status != 200 else 0, answer.message)
        found = answer.message.get(collection)
        items += found if isinstance(found, list) else []
        if not (token := str(answer.message.get("nextPageToken") or "")):
            return Answer(200, {collection: items})


def _is_listed(collection: str, message: dict[str, object], own: str) -> bool:
    """Return whether a list has a resource of this run, or an operation of it that runs."""
    items = message.get(collection)
    of_run = [item for item in items if own in json.dumps(item)] if isinstance(items, list) else []
    if collection == "operations":
        of_run = [item for item in of_run if isinstance(item, dict) and item.get("done") is not True]
    return bool(of_run)


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="first-contact.sh", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("directory", type=Path, metavar="DIR")
    recording.add_argument("--zone", required=True)
    recording.add_argument("--project", help="by default gcloud's")
    recording.add_argument("--type", choices=PRICES, help="by default the cheapest that the zone has")
    recording.add_argument("--endpoint", help="an emulator on this machine, instead of Google's API")
    commands.add_parser("delete").add_argument("directory", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    try:
        if arguments.command == "record":
            record(arguments)
        else:
            delete(arguments.directory)
    except (StopError, OSError) as error:
        say(f"first-contact: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
