"""Sends the messages of an outbox; a program of its own, with nothing of tpux, so that it is small while it waits.

Its standard input is the task as JSON. It collects what is stored within `digest` seconds, and sends that as one
message in a child of its own, the only process that imports Apprise, whose memory goes with it. A failed try is
repeated for `KEEP`. A lock lets one sender at a time work on an outbox; a message that was stored while the last one
was ending is seen after the lock was released.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

DELAYS = (5.0, 15.0, 60.0, 300.0, 900.0)
"""Seconds before a try after one, two, ... failed ones."""
KEEP = 86400.0
"""Seconds after which a message that cannot be sent is dropped, and for which the numbers of sent ones are kept."""
TIMEOUT = 60
"""Real seconds that a try may take."""
MOST = 50
"""Events in one message."""


def main() -> int:
    """Do the task; return the exit code."""
    task = json.load(sys.stdin)
    if "heartbeat" in task:
        return int(bool(attempt(lambda: request(task["heartbeat"], None, {}))))
    if task.get("test"):
        error = attempt(lambda: send(task["recipient"], task["title"], task["text"]))
        print(error)  # noqa: T201  (the command reads it)
        return int(bool(error))
    directory, rate = Path(task["directory"]), float(task["clock_rate"])
    while pending(directory):
        with (directory / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return 0
            work(directory, task["recipient"], float(task["digest"]), rate)
    return 0


def pending(directory: Path) -> list[Path]:
    """Return the messages that are to be sent, the oldest first."""
    return sorted((directory / "pending").glob("[!.]*"), key=lambda path: path.stat().st_mtime)


def work(directory: Path, recipient: dict[str, str], digest: float, rate: float) -> None:
    """Send until nothing is left.

    Args:
        directory: the outbox.
        recipient: where to.
        digest: seconds that are one message.
        rate: seconds that pass in one real second.
    """
    failures = 0
    while found := pending(directory):
        age = (time.time() - found[0].stat().st_mtime) * rate
        if not failures and age < digest:
            time.sleep(max(0.01, (digest - age) / rate))
        found = pending(directory)[:MOST]
        title, text = compose([json.loads(path.read_text()) for path in found])
        error = attempt(lambda title=title, text=text: send(recipient, title, text))
        note(directory, error)
        if not error:
            failures = 0
            for path in found:
                path.replace(directory / "sent" / path.name)
            tidy(directory / "sent", rate)
            continue
        tidy(directory / "pending", rate)
        time.sleep(DELAYS[min(failures, len(DELAYS) - 1)] / rate)
        failures += 1


def compose(messages: list[dict[str, object]]) -> tuple[str, str]:
    """Return the title and the text of one message about several events, in their order."""
    messages.sort(key=lambda one: float(str(one["at"])))
    parts = []
    for one in messages:
        at = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(float(str(one["at"]))))
        parts.append(f"{one['title']}\n{one['text']}\n{at}, number {one['number']}")
    first = str(messages[0]["title"])
    return f"tpux: {first if len(messages) == 1 else f'{len(messages)} events, {first}'}", "\n\n".join(parts)


def note(directory: Path, error: str) -> None:
    """Write how the last try ended, for the supervisor's report."""
    new = directory / ".state.json"
    new.write_text(json.dumps({"error": error, "at": time.time()}))
    new.replace(directory / "state.json")


def tidy(directory: Path, rate: float) -> None:
    """Remove what is older than `KEEP`."""
    for path in directory.iterdir():
        if (time.time() - path.stat().st_mtime) * rate > KEEP:
            path.unlink(missing_ok=True)


def attempt(call: object) -> str:
    """Call a function in a child process that is killed after `TIMEOUT`. Returns its error, "" if there is none."""
    assert callable(call)  # noqa: S101
    reading, writing = os.pipe()
    if not (child := os.fork()):
        signal.alarm(TIMEOUT)
        try:
            error = str(call() or "")
        except BaseException as raised:  # noqa: BLE001  (a process of its own: it says what it can)
            error = f"{type(raised).__name__}: {raised}"
        os.write(writing, error.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        error = file.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"no answer within {TIMEOUT} s" if os.WTERMSIG(status) == signal.SIGALRM else "the sender was killed"
    return error


def send(recipient: dict[str, str], title: str, text: str) -> str:
    """Send a message. Returns why that failed, without a secret, "" if it did not."""
    if "receivers" in recipient:
        body = {
            "sender": {"email": recipient["sender"]},
            "to": [{"email": address} for address in recipient["receivers"].split("\n")],
            "subject": title,
            "textContent": text,
        }
        return mask(request(recipient["url"], body, {"api-key": recipient["api_key"]}), recipient["api_key"])
    return through_apprise(recipient["url"], title, text)


def request(url: str, body: object, headers: dict[str, str]) -> str:
    """Request a URL, with POST if there is a body. Returns why that failed."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    data = None if body is None else json.dumps(body).encode()
    own = {"User-Agent": "tpux", "Accept": "application/json"} | ({"Content-Type": "application/json"} if data else {})
    try:
        with urlopen(Request(url, data, {**own, **headers}), timeout=30) as answer:  # noqa: S310  (http by the schema)
            answer.read(4096)
    except HTTPError as error:
        said = error.read(300).decode(errors="replace").strip()
        return f"HTTP {error.code} {said or error.reason}"
    except URLError as error:
        return str(error.reason)
    except (OSError, HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def through_apprise(url: str, title: str, text: str) -> str:
    """Send a message by Apprise. Returns why that failed, as Apprise logs it."""
    import logging
    from urllib.parse import parse_qsl, unquote, urlsplit

    import apprise

    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger = logging.getLogger("apprise")
    logger.addHandler(Keep(logging.WARNING))
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    sender = apprise.Apprise()
    if not sender.add(url):
        return "it is no URL that Apprise knows (https://github.com/caronc/apprise/wiki)"
    if sender.notify(title=title, body=text, body_format=apprise.NotifyFormat.TEXT):
        return ""
    parts = urlsplit(url)
    secrets = [parts.username, parts.password, *parts.path.split("/"), *(value for _, value in parse_qsl(parts.query))]
    error = said[-1] if said else "it was not accepted"
    for secret in filter(None, secrets):
        error = mask(mask(error, secret), unquote(secret))
    return mask(error, url)


def mask(text: str, secret: str) -> str:
    """Return a text without a secret; one of three characters or less is none."""
    return text.replace(secret, "********") if len(secret) > 3 else text


if __name__ == "__main__":
    sys.exit(main())
