"""Names and labels: what the API allows, and whose a TPU is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from tpux import ProvisionRequest, is_active, store_id
from tpux_gcp.problems import mistake

# AIP-122 as the TPU API checks it: an RFC 1035 label.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
# "Requirements for labels", Google Cloud documentation; the API takes no upper case.
_LABEL_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
LONGEST = 63

STORE, USER, JOB = "tpux-store", "tpux-user", "tpux-job"
Owner = Literal["ours", "another", "left", "nobody"]
"""`left`: it bears the labels of a job of this store that holds no machines any more."""


def node_id(request: ProvisionRequest) -> str:
    """What the TPU is called: `tpu.name` as it is, or a legal form of what core made of the job's name and id.

    Raises:
        RefusedError: `tpu.name` is not what the API takes.
    """
    count = request.tpu.node_count
    room = LONGEST - (len(f"-{count - 1}") if count > 1 else 0)
    if request.tpu.name:
        check_name(request.name, room)
        return request.name
    base, _, job = request.name.rpartition("-")
    base = base if re.match("[a-z]", base) else f"t-{base}".rstrip("-")
    return f"{base[: room - len(job) - 1].rstrip('-')}-{job}"


def check_name(name: str, room: int = LONGEST) -> None:
    """Refuse a name that the API does not take.

    Raises:
        RefusedError: it is empty, too long, or has other characters.
    """
    if not _NAME.fullmatch(name) or len(name) > room:
        raise mistake(
            f"{name!r} is no name for a TPU",
            f"at most {room} lower-case letters, digits and hyphens, beginning with a letter and not ending with -",
        )


def labels(request: ProvisionRequest) -> dict[str, str]:
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


def owner(found: Mapping[str, str], request: ProvisionRequest) -> Owner:
    """Whose a TPU with these labels is, as the job of this request sees it."""
    mine = marks(request.labels)
    if all(found.get(key) == value for key, value in mine.items()):
        return "ours"
    if JOB not in found or STORE not in found:
        return "nobody"
    if found[STORE] == mine[STORE] and not is_active(found[JOB]):
        return "left"
    return "another"  # of another store nothing is known here: its job counts as living


def is_orphan(found: Mapping[str, str]) -> bool:
    """Whether these are the labels of a job of this store that holds no machines any more."""
    return found.get(STORE) == store_id() and JOB in found and not is_active(found[JOB])


def closest(word: str, choices: Iterable[str]) -> str:
    """The choice that `word` is most likely a misspelling of, empty where none is near."""
    return next(iter(difflib.get_close_matches(word, list(choices), n=1)), "")
