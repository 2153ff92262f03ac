"""Linear regression by gradient descent on generated data, with the standard library only.

It shows how a program works with tpux: it reads its worker number from the environment, saves a checkpoint after each
step, and continues from the last checkpoint when the job is resumed.
"""

import json
import os
import random
import time
from pathlib import Path

STEPS = int(os.environ.get("STEPS", "40"))
RATE = 0.1

worker = int(os.environ["TPUX_RANK"])
workers = int(os.environ["TPUX_NUM_WORKERS"])
output = Path(os.environ["TPUX_OUTPUT_DIR"])
checkpoint = f"checkpoint-{worker}.json"


def make_data() -> list[tuple[float, float]]:
    """Return this worker's samples of y = 3x - 2, with noise."""
    rng = random.Random(worker)
    return [(x, 3 * x - 2 + rng.gauss(0, 0.05)) for x in (rng.uniform(-1, 1) for _ in range(256))]


def restore() -> tuple[int, float, float]:
    """Return the last completed step and its model: those of the checkpoint in a resumed attempt, otherwise zeros."""
    previous = Path(os.environ["TPUX_PREVIOUS_OUTPUT_DIR"]) / checkpoint
    if os.environ["TPUX_RESUME"] == "1" and previous.exists():
        step, a, b = json.loads(previous.read_text())
        print(f"resumed at step {step} (stage {os.environ['TPUX_STAGE']})", flush=True)
        return step, a, b
    print(f"from scratch, worker {worker} of {workers}", flush=True)
    return 0, 0.0, 0.0


def save(step: int, a: float, b: float) -> None:
    """Save a checkpoint atomically, since the machine may be preempted at any time."""
    draft = output / f".{checkpoint}"
    draft.write_text(json.dumps([step, a, b]))
    draft.replace(output / checkpoint)


data = make_data()
first, a, b = restore()
for step in range(first + 1, STEPS + 1):
    grad_a = sum(2 * (a * x + b - y) * x for x, y in data) / len(data)
    grad_b = sum(2 * (a * x + b - y) for x, y in data) / len(data)
    a, b = a - RATE * grad_a, b - RATE * grad_b
    loss = sum((a * x + b - y) ** 2 for x, y in data) / len(data)
    save(step, a, b)
    if step % 5 == 0:
        print(f"step {step}/{STEPS} loss {loss:.4f}", flush=True)
    time.sleep(float(os.environ.get("STEP_SECONDS", "0.2")))
print(f"done: y = {a:.2f}x {b:+.2f}", flush=True)
