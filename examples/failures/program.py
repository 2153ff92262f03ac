"""Seven ways to fail, and what tpux makes of each: `sh run.sh` in this directory runs them all on this machine.

The lines are those that JAX and libtpu write. An attempt that is resumed succeeds.
"""

from __future__ import annotations

import os
import signal
import sys
import time

RESUMED = os.environ["TPUX_ATTEMPT"] != "1"
WORKER = int(os.environ["TPUX_WORKER"])


class XlaRuntimeError(RuntimeError):
    """Stands for jaxlib's exception."""


def out_of_memory() -> None:
    raise XlaRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.2G of 15.48G hbm.")


def lost_peer() -> None:
    if not RESUMED:
        raise XlaRuntimeError("UNAVAILABLE: Socket closed")


def tpu_busy() -> None:
    if RESUMED:
        return
    print("The TPU is already in use by process with pid 4242. Not attempting to load libtpu.so in this process.")
    raise RuntimeError("Unable to initialize backend 'tpu': ABORTED")


def nan() -> None:
    raise FloatingPointError("loss is NaN at step 1200")


def hang() -> None:
    while not RESUMED:
        time.sleep(1)


def finished_then_crash() -> None:
    import wandb

    run = wandb.init(project="demo", mode="offline")
    run.log({"loss": 0.1})
    run.finish()
    os.kill(os.getpid(), signal.SIGSEGV)


def typo() -> None:
    print("UNAVAILABLE: Socket closed; trying again")  # earlier lines do not count after a mistake of the program
    learning_rate = 0.1
    print(learnin_rate, learning_rate)  # type: ignore[name-defined]  # noqa: F821


if __name__ == "__main__":
    print(f"{sys.argv[1]}: worker {WORKER}", flush=True)
    globals()[sys.argv[1].replace("-", "_")]()
