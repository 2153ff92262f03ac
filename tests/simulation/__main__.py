"""Let many simulated jobs live, something going wrong in each, and count violations: `make faults`.

`--life TEXT` runs one again, as a violation names it. Lives that were run since the last change of the code are not run
again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tests import figures, json_lines
from tests.simulation import results
from tests.simulation.faults import parse
from tests.simulation.life import Life, live
from tests.simulation.plan import life

ROOT = Path(__file__).parents[2]


def run(number: int) -> dict[str, object]:
    """Let the job of this number live, and return what became of it."""
    one = life(number)
    try:
        outcome = live(one)
        violations, happened = outcome.violations, outcome.hit
    except Exception as error:  # noqa: BLE001  (a bug, which the line names)
        violations, happened = [f"{type(error).__name__}: {error}"], list(one.faults)
    faults = [(fault.point, fault.kind) for fault in happened]
    return {"number": number, "life": str(one), "faults": faults, "violations": violations}


def read(text: str) -> Life:
    """Return the life that a text describes, as `str` has returned it."""
    head, *faults = text.split(" || ")
    scenario, seed = head.split(" | ")
    return Life(scenario, tuple(map(parse, faults)), int(seed))


def main() -> int:
    """Run lives; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--lives", type=int, default=10_000, help="how many lives (default: 10000)")
    parser.add_argument("--shard", default="1/1", help="which part of them: i/n")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at a time")
    parser.add_argument("--life", default="", help="run this one only")
    options = parser.parse_args()
    if options.life:
        outcome = live(read(options.life))
        print(*(outcome.violations or ["no violation"]), sep="\n")
        return bool(outcome.violations)
    shard, shards = map(int, options.shard.split("/"))
    wanted = range(shard - 1, options.lives, shards)
    cache = ROOT / ".cache/faults"
    cache.mkdir(parents=True, exist_ok=True)
    digest = results.digest()
    path = cache / f"{digest}-{shard}-{shards}.jsonl"
    done = {line["number"] for line in json_lines.read(path)}
    left, start = [number for number in wanted if number not in done], time.monotonic()
    with multiprocessing.Pool(options.jobs) as pool:
        for count, line in enumerate(pool.imap_unordered(run, left, chunksize=4), 1):
            json_lines.append(path, line)
            if line["violations"]:
                print(f"{line['life']}\n  " + "\n  ".join(map(str, line["violations"])), flush=True)  # type: ignore[call-overload]
            if count % 500 == 0:
                rate = count / (time.monotonic() - start) * 60
                print(f"{count} of {len(left)} lives, {rate:.0f} a minute", flush=True)
    every = {line["number"]: line for part in cache.glob(f"{digest}-*.jsonl") for line in json_lines.read(part)}
    found = results.summarize(every.values(), f"{datetime.now(UTC):%Y-%m-%d}", digest)
    results.FILE.write_text(json.dumps(found, indent=1) + "\n")
    figures.write_page()
    print(f"{found['lives']} lives, {found['violations']} with a violation; docs/reliability.md shows them")
    return bool(found["violations"])


if __name__ == "__main__":
    sys.exit(main())
