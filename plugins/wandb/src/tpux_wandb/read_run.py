"""Print what the newest run below a directory has recorded, as JSON. Runs on a worker: needs Python 3.7, no package.

A `.wandb` file is a LevelDB log: 7 bytes of header, then blocks of 32 KiB. Each record has a header of 7 bytes
(checksum, length, type) and a protobuf `wandb_internal.Record`. The file of a killed program may be torn at its end.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import BinaryIO, Dict, Iterable, Iterator, List, Optional, Tuple, Union, cast

MARKER = "tpux-wandb "  # before the answer: the interpreter itself may write warnings before and after it
BLOCK, HEADER = 32 * 1024, 7
HEAD, TAIL = 32 * BLOCK, 128 * BLOCK
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
# Field numbers of wandb_internal.proto.
RECORD_HISTORY, RECORD_SUMMARY, RECORD_RUN, RECORD_EXIT = 2, 3, 17, 18
RUN_NAMES = {1: "run_id", 2: "entity", 3: "project", 8: "name"}
RUN_SUMMARY, EXIT_CODE = 5, 1
ITEM, ITEM_KEY, ITEM_NESTED_KEY, ITEM_VALUE = 1, 1, 2, 16
LONGEST_VALUE = 200

Value = Union[int, bytes]


def records(file: BinaryIO, start: int, end: Optional[int]) -> Iterator[bytes]:  # noqa: UP045
    """Yield the whole records of a log from the block that begins at `start`; the rest of a torn file is left out.

    None begins at `end` or after it.
    """
    file.seek(start)
    parts: Optional[bytes] = None  # noqa: UP045
    position = 0 if start else HEADER
    while end is None or file.tell() < end:
        block = file.read(BLOCK)
        if not block:
            break
        while position + HEADER <= len(block):
            length, kind = struct.unpack_from("<HB", block, position + 4)
            data = block[position + HEADER : position + HEADER + length]
            if kind not in (FULL, FIRST, MIDDLE, LAST) or len(data) < length:
                parts = None
                break
            if kind in (FULL, FIRST):
                parts = data
            elif parts is not None:  # else it began before `start`
                parts += data
            if kind in (FULL, LAST) and parts is not None:
                yield parts
                parts = None
            position += HEADER + length
        position = 0


def fields(data: bytes) -> Iterator[Tuple[int, Value]]:  # noqa: UP006
    """Yield number and value of each field of a protobuf message."""
    position = 0
    while position < len(data):
        key, position = varint(data, position)
        value: Value = 0
        if key & 7 == 0:
            value, position = varint(data, position)
        elif key & 7 == 2:
            length, position = varint(data, position)
            value, position = data[position : position + length], position + length
        else:  # fixed64 and fixed32
            position += 8 if key & 7 == 1 else 4
        yield key >> 3, value


def varint(data: bytes, position: int) -> Tuple[int, int]:  # noqa: UP006
    """Return an integer of variable length, and the position after it."""
    result = shift = 0
    while position < len(data):
        byte = data[position]
        result |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            break
    return result, position


def text(value: Value) -> str:
    """Return a string field."""
    return cast("bytes", value).decode("utf-8", "replace")


def update(summary: Dict[str, str], data: Value) -> None:  # noqa: UP006
    """Apply a HistoryRecord or SummaryRecord: keys and JSON values; what is nested or long is left out."""
    for number, item in fields(cast("bytes", data)):
        values = list(fields(cast("bytes", item))) if number == ITEM else []
        keys = [text(value) for name, value in values if name in (ITEM_KEY, ITEM_NESTED_KEY)]
        value = text(dict(values).get(ITEM_VALUE, b""))
        if len(keys) == 1 and len(value) <= LONGEST_VALUE and value[:1] not in ("{", "["):
            summary[keys[0]] = value


def apply(record: bytes, found: Dict[str, object], summary: Dict[str, str]) -> None:  # noqa: UP006
    """Apply a record to what is known of the run, and to its summary."""
    for number, value in fields(record):
        if number == RECORD_RUN:
            for name, inner in fields(cast("bytes", value)):
                if name in RUN_NAMES:
                    found[RUN_NAMES[name]] = text(inner)
                elif name == RUN_SUMMARY:
                    update(summary, inner)
        elif number in (RECORD_HISTORY, RECORD_SUMMARY):
            update(summary, value)
        elif number == RECORD_EXIT:
            found["exit_code"] = dict(fields(cast("bytes", value))).get(EXIT_CODE, 0)


def read(path: Path) -> Dict[str, object]:  # noqa: UP006
    """Return what a run has recorded; of a large file only the first HEAD and about the last TAIL bytes are read.

    The run's names are in one of the first records, its exit in one of the last. A file of a million steps has some
    hundred MB, of which Python parses a few per second.
    """
    found: Dict[str, object] = dict.fromkeys(RUN_NAMES.values(), "")  # noqa: UP006
    summary: Dict[str, str] = {}  # noqa: UP006
    found["exit_code"] = None
    size = path.stat().st_size
    ranges = [(0, None)] if size <= HEAD + TAIL else [(0, HEAD), ((size - TAIL) // BLOCK * BLOCK, None)]
    with path.open("rb") as file:
        for start, end in ranges:
            summary.clear()  # what was logged between the two is newer
            for record in records(file, start, end):
                apply(record, found, summary)
    return {**found, "summary": summary, "at": path.stat().st_mtime, "directory": str(path.parent)}


def started(directory: Path) -> List[str]:  # noqa: UP006
    """Return what `tpux_wandb.STARTED` has written: the program's wandb, WANDB_DIR, the run's id, earlier runs."""
    try:
        found = os.fsdecode((directory / "started").read_bytes()).split("\0")[:-1]
    except OSError:
        found = []
    return found + [""] * (3 - len(found))


def offline(run_id: str, found: Iterable[Path]) -> List[str]:  # noqa: UP006
    """Return the directories of a run that were written offline, each once, in the order of their start."""
    each = {os.path.realpath(str(path)): path for path in found if path.name.endswith(f"-{run_id}")}
    return [str(path) for path in sorted(each.values(), key=lambda path: path.name) if "offline-run-" in path.name]


def main(directory: Path, *before: Path) -> None:
    """Print the program's run, else the newest one; null if there is none.

    `directories` are those of its run that were written offline, also those of the attempts `before`.

    If that run has the exit code 0, `unfinished` has the ids of all other runs that have no exit code.

    In a `WANDB_DIR` of the user's own, which others may use, only a run with the id that was given counts.
    """
    program, own, run_id, *earlier = started(directory)
    paths = set(directory.glob("wandb/*run-*/run-*.wandb"))
    if own and run_id:
        others = set(map(os.path.realpath, earlier))
        for path in Path(own).glob("wandb/*run-*/run-*.wandb"):
            if path.name == f"run-{run_id}.wandb" and os.path.realpath(str(path.parent)) not in others:
                paths.add(path)
    found: Optional[Dict[str, object]] = None  # noqa: UP006, UP045
    if paths:
        # The program's own run, if it has the id that was given: others may be those of an evaluation.
        given = {path for path in paths if run_id and path.name == f"run-{run_id}.wandb"}
        newest = max(given or paths, key=lambda path: path.stat().st_mtime)
        found = {**read(newest), "program": program if os.access(program, os.X_OK) else "", "unfinished": []}
        if found["exit_code"] == 0:
            other_runs = [read(path) for path in sorted(paths) if path.name != newest.name]
            found["unfinished"] = [run["run_id"] for run in other_runs if run["exit_code"] is None]
        left = [path for each in before for path in each.glob("wandb/offline-run-*")]
        found["directories"] = offline(newest.stem[len("run-") :], [*map(Path, earlier), *left, newest.parent])
    sys.stdout.write(f"{MARKER}{json.dumps(found)}\n")


if __name__ == "__main__":
    main(*(Path.cwd() / each for each in sys.argv[1:]))
