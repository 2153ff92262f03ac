"""Compare what `first-contact.sh` has recorded with what the emulator answers to the same calls.

Run it as `make first-contact-check DIR=DIR`. Each line is one difference; the exit code is 1 if there is one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tpux_emulator.emulator import Emulator

ROOT = Path(__file__).parent.parent
SHOWN = 3
"""How many values of a field are shown."""
# Answers say when and how often; that differs from run to run.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[-+]\d\d:\d\d)")
_COUNTED = re.compile(r"\b(OPERATION|ACCOUNT|IP|HOST|NUMBER|KEY)_\d+\b")
_HEX = re.compile(r"\b[0-9a-f]{8,}(-[0-9a-f]{4,})*\b")
_PORT = re.compile(r"^\d+$")
Fields = dict[str, set[str]]


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    if len(arguments) != 1 or not (Path(arguments[0]) / "about.json").is_file():
        print("usage: make first-contact-check DIR=what scripts/first-contact.sh has recorded", file=sys.stderr)
        return 2
    recorded = Path(arguments[0])
    about = json.loads((recorded / "about.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as home:
        emulated = Path(home) / "emulated"
        if not record_from_emulator(Path(home) / "emulator", emulated, about["zone"], about["type"]):
            return 2
        drift = list(compare(recorded, emulated))
    for line in drift:
        print(line)
    print(f"{len(drift)} difference(s) between {recorded} and the emulator")
    return int(bool(drift))


def record_from_emulator(home: Path, directory: Path, zone: str, accelerator: str) -> bool:
    """Make the same calls to an emulator of its own. Workers publish guest attributes: it needs sshd for them."""
    workers = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is not None
    with Emulator(home, workers=workers) as cloud:
        place = ["--project", "emulated", "--zone", zone, "--type", accelerator, "--endpoint", cloud.url]
        command = [str(ROOT / "scripts/first-contact.sh"), str(directory), *place]
        environment = {**os.environ, "PYTHON": sys.executable}
        done = subprocess.run(command, input="yes\n" * 20, text=True, capture_output=True, env=environment, check=False)
    if done.returncode:
        print(f"the recording from the emulator failed: {done.stdout[-1000:]}{done.stderr[-1000:]}", file=sys.stderr)
    return done.returncode == 0


def compare(recorded: Path, emulated: Path) -> Iterator[str]:
    """Yield each difference."""
    cloud, emulator = read_steps(recorded), read_steps(emulated)
    for step in [*cloud, *(step for step in emulator if step not in cloud)]:
        if step not in cloud or step not in emulator:
            yield f"{step}: only {'the emulator' if step not in cloud else 'the cloud'} has an answer"
            continue
        there, here = cloud[step], emulator[step]
        if there["HTTP status"] != here["HTTP status"]:
            yield f"{step}: HTTP status {_shown(there['HTTP status'])}, the emulator {_shown(here['HTTP status'])}"
        for name in sorted({*there, *here} - {"HTTP status"}):
            if name not in here:
                yield f"{step}: {name} is missing in the emulator: {_shown(there[name])}"
            elif name not in there:
                yield f"{step}: {name} is the emulator's only: {_shown(here[name])}"
            elif there[name] != here[name]:
                more, less = there[name] - here[name], here[name] - there[name]
                yield f"{step}: {name}: only the cloud has {_shown(more)}; only the emulator has {_shown(less)}"


def read_steps(directory: Path) -> dict[str, Fields]:
    """Return the fields of all answers of each step, with their values, in the order of the recording."""
    zone = json.loads((directory / "about.json").read_text(encoding="utf-8"))["zone"]
    steps: dict[str, Fields] = {}
    for path in sorted(directory.glob("[0-9]*.json")):
        text = path.read_text(encoding="utf-8").replace(zone, "ZONE")
        exchange = json.loads(text)
        fields = steps.setdefault(exchange["step"], {})
        fields.setdefault("HTTP status", set()).add(str(exchange["status"]))
        for name, value in _leaves(exchange["answer"], ""):
            fields.setdefault(name, set()).add(value)
    return steps


def _leaves(value: object, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield from ((name or "(empty)", "{}"),) if not value else ()
        for key, part in value.items():
            yield from _leaves(part, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part, f"{name}[]")
    else:
        text = _TIME.sub("TIME", value if isinstance(value, str) else json.dumps(value))
        text = _HEX.sub("HEX", _COUNTED.sub(r"\1", text))
        yield name, _PORT.sub("NUMBER", text) if isinstance(value, str) else text


def _shown(values: set[str]) -> str:
    some = [value if len(value) <= 200 else f"{value[:200]}..." for value in sorted(values)[:SHOWN]]
    more = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
    return f"{', '.join(some)}{more}" if some else "nothing else"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
