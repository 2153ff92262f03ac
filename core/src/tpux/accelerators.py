"""The accelerator types and how many workers each has (cloud.google.com/tpu/docs: the pages of the TPU versions)."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from tpux.errors import UsageError


@dataclass(frozen=True)
class Generation:
    """One TPU generation. "Size" is the number in an accelerator's name.

    Attributes:
        per_worker: the part of the size that one worker of a multi-host slice has.
        least, most: the smallest and the largest size.
        single_host: the sizes that have one worker.
    """

    per_worker: int
    least: int
    most: int
    single_host: tuple[int, ...] = ()


GENERATIONS = {
    # The size counts cores, two per chip; a worker has four chips.
    "v2": Generation(8, 8, 512),
    "v3": Generation(8, 8, 2048),
    "v4": Generation(8, 8, 4096),
    "v5p": Generation(8, 8, 12288),
    # The size counts chips; one worker has up to eight of them, a worker of a larger slice has four.
    "v5litepod": Generation(4, 1, 256, single_host=(1, 4, 8)),
    "v6e": Generation(4, 1, 256, single_host=(1, 4, 8)),
}


def canonical(accelerator: str) -> str:
    """Return the API's name of an accelerator: `v5litepod-8` for `v5e-8`."""
    return re.sub(r"^v5e-", "v5litepod-", accelerator)


def workers_of(accelerator: str | None) -> int:
    """Return the number of workers of one slice of `accelerator`; 1 if it is None.

    Raises:
        UsageError: there is no such accelerator.
    """
    if accelerator is None:
        return 1
    match = re.fullmatch(r"(v\w+)-(\d+)", accelerator)
    generation = GENERATIONS.get(match[1]) if match else None
    if accelerator.startswith(("tpu7x", "v7x")):
        raise UsageError(
            f"{accelerator} is not available as a TPU VM", hint="tpu7x (Ironwood) is available on GKE only"
        )
    if match is None or generation is None:
        close = difflib.get_close_matches(accelerator.removeprefix("tpu-").split("-")[0], GENERATIONS, n=1)
        hint = f"did you mean {close[0]}-N?" if close else f"known are {', '.join(GENERATIONS)}, each with -N"
        raise UsageError(f"unknown accelerator {accelerator!r}", hint=hint)
    size = int(match[2])
    if size in generation.single_host:
        return 1
    if not generation.least <= size <= generation.most or size % generation.per_worker:
        raise UsageError(
            f"{match[1]} has no size {size}",
            hint=f"a multiple of {generation.per_worker} up to {generation.most}"
            + (f", or one of {generation.single_host}" if generation.single_host else ""),
        )
    return size // generation.per_worker
