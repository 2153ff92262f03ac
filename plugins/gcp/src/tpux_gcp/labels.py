"""Labels: what the API allows, and whose a TPU is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from tpux import Request, holds_machines, store_id
from tpux_gcp.errors import mistake

LONGEST = 63

# "Requirements for labels", Google Cloud documentation; the API takes no upper case.
_LABEL_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
STORE, USER, JOB = "tpux-store", "tpux-user", "tpux-job"
Owner = Literal["ours", "another", "left", "nobody"]
"""`left`: it bears the labels of a job of this store that holds no machines any more."""


def labels(request: Request) -> dict[str, str]:
    """The labels of what is made for a job: the config's, and above them whose it is.

    Raises:
        RefusedError: the API does not take one of the config's.
    """
    for key, value in request.tpu.labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise mistake(
                f"the API takes no label {key}={value}",
                "lower-case letters, digits, _ and -, at most 63 of them; a key begins with a letter",
            )
    return {**request.tpu.labels, **marks(request.labels)}


def marks(given: Mapping[str, str]) -> dict[str, str]:
    """The labels that say whose it is, in letters that the API takes: a user may be called `A.Smith`."""
    return {key: re.sub("[^-_a-z0-9]", "-", value.lower())[:LONGEST] for key, value in given.items()}


def owner(found: Mapping[str, str], request: Request) -> Owner:
    """Whose a TPU with these labels is, as the job of this request sees it."""
    mine = marks(request.labels)
    if all(found.get(key) == value for key, value in mine.items()):
        return "ours"
    if JOB not in found or STORE not in found:
        return "nobody"
    if found[STORE] == mine[STORE] and not holds_machines(found[JOB]):
        return "left"
    return "another"  # of another store nothing is known here: its job counts as living


def is_orphan(found: Mapping[str, str]) -> bool:
    """Whether these are the labels of a job of this store that holds no machines any more."""
    return found.get(STORE) == store_id() and JOB in found and not holds_machines(found[JOB])
