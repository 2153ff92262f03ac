"""Delete the TPU to which this worker belongs once nobody attends to it; runs on each worker, from its boot on.

Its argument is JSON: `endpoint`, `seconds`, `slices`, and `labels`, those of the job that created the TPU. The TPU is
attended while somebody is logged in to one of its workers, as the supervisor is while it polls a program, or while a
program of tpux runs on one. The first worker of the first slice decides; each publishes as the guest attribute
`tpux/attended` whether it was attended within the last `seconds`. What it cannot learn is a reason to wait.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from typing import Dict, List, Optional

Message = Dict[str, object]
METADATA = f"http://{os.environ.get('GCE_METADATA_HOST', 'metadata.google.internal')}/computeMetadata/v1/instance"
LONGEST_PAUSE = 60.0
TIMEOUT = 60.0
# Of sshd (sshd-session since 9.8) once a user is logged in: `sshd: ann@notty`. Who only tries has no @.
_SESSION = re.compile(rb"sshd(-session)?: [^ @]+@")
_PROGRAM = re.compile(rb"(^|\0)TPUX_RUN_ID=")


def main() -> None:
    """Watch until the TPU is deleted, and this worker with it."""
    settings = json.loads(sys.argv[1])
    seconds = float(settings["seconds"])
    pause = min(LONGEST_PAUSE, max(0.5, seconds / 4))
    attended_at, published = time.monotonic(), None
    while True:
        if is_attended():
            attended_at = time.monotonic()
        # Until then others must not delete the TPU either: it counts from the last login to any of its workers.
        attended = time.monotonic() - attended_at < seconds
        if attended != published and publish("attended", "yes" if attended else "no"):
            published = attended
        if not attended:
            try:
                report = delete_unattended(settings)
            except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
                report = f"not deleted: {error}"
            if report:
                publish("unattended", report[:200])
        time.sleep(pause)


def is_attended() -> bool:
    """Return whether somebody is logged in, or a program of tpux runs."""
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  Python 3.8
        if _SESSION.match(_read(f"/proc/{pid}/cmdline")) or _PROGRAM.search(_read(f"/proc/{pid}/environ")):
            return True
    return False


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:  # the process has ended
        return b""


def delete_unattended(settings: Message) -> str:
    """Delete the TPU if it is this worker's task, all others are unattended too, and its labels are unchanged.

    Returns:
        What was done, or why not; empty if it is another worker's task.
    """
    env = dict(re.findall(r"^(\w+): *'([^']*)'", metadata("attributes/tpu-env"), re.MULTILINE))
    node, slices = env["NODE_ID"], int(str(settings["slices"]))
    base, _, number = node.rpartition("-") if slices > 1 else (node, "", "0")
    if env["WORKER_ID"] != "0" or number != "0":
        return ""
    names = [node] if slices == 1 else [f"{base}-{index}" for index in range(slices)]
    api = f"{settings['endpoint']}/v2"
    nodes = f"projects/{env['CONSUMER_PROJECT_ID']}/locations/{env['ZONE']}/nodes"
    token = str(json.loads(metadata("service-accounts/default/token"))["access_token"])
    for name in names:
        url = f"{api}/{nodes}/{name}"
        found = send("GET", url, token)
        if not is_of_job(part(found, "labels"), part(settings, "labels")):
            return f"not deleted: the labels of {name} are not those of the job that created it"
        published = parts(send("POST", f"{url}:getGuestAttributes", token, {"queryPath": "tpux/"}), "guestAttributes")
        if len(published) < len(parts(found, "networkEndpoints")) or not all(map(is_unattended, published)):
            return f"not deleted: a worker of {name} is attended, or does not say that it is not"
    queued = send("GET", f"{api}/{nodes}/{node}", token).get("queuedResource")
    send("DELETE", f"{api}/{queued}?force=true" if queued else f"{api}/{nodes}/{node}", token)
    return f"deleted: unattended for {settings['seconds']} s"


def is_of_job(found: Message, labels: Message) -> bool:
    """Return whether labels are those of the job that created the TPU, without anybody else's claim."""
    claimed = any(key.startswith("tpux-claim") for key in found)
    return not claimed and all(found.get(key) == value for key, value in labels.items())


def is_unattended(worker: Message) -> bool:
    """Return whether a worker has published that it is not attended."""
    items = parts(part(worker, "queryValue"), "items")
    return any((item["namespace"], item["key"], item["value"]) == ("tpux", "attended", "no") for item in items)


def part(message: Message, key: str) -> Message:
    """Return the message in a field; an empty one if there is none."""
    found = message.get(key)
    return found if isinstance(found, dict) else {}


def parts(message: Message, key: str) -> List[Message]:  # noqa: UP006
    """Return the messages in a field."""
    found = message.get(key)
    return [each if isinstance(each, dict) else {} for each in found] if isinstance(found, list) else []


def metadata(path: str) -> str:
    """Return what the metadata server has at a path."""
    request = urllib.request.Request(f"{METADATA}/{path}", headers={"Metadata-Flavor": "Google"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
        return str(answer.read().decode())


def publish(key: str, value: str) -> bool:
    """Publish a guest attribute; return False if that is not possible now."""
    request = urllib.request.Request(  # noqa: S310
        f"{METADATA}/guest-attributes/tpux/{key}", value.encode(), {"Metadata-Flavor": "Google"}, method="PUT"
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT):  # noqa: S310
            return True
    except OSError:
        return False


def send(verb: str, url: str, token: str, body: Optional[Message] = None) -> Message:  # noqa: UP045
    """Send a request to the TPU API; return its answer."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=verb)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
            found = json.loads(answer.read())
            return found if isinstance(found, dict) else {}
    except urllib.error.HTTPError as error:
        said = error.read(500).decode(errors="replace")
        raise OSError(f"HTTP {error.code}: {' '.join(said.split())}") from error


if __name__ == "__main__":
    main()
