"""The labels on a TPU: the config's, those that name its job, and who owns a TPU that carries them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from tpux import ProvisionRequest
from tpux.api import is_active, store_id
from tpux_gcp.errors import InvalidConfigError
from tpux_gcp.validation import section_of

STORE, USER, JOB = "tpux-store", "tpux-user", "tpux-job"
# "Requirements for labels", Google Cloud documentation; the TPU API takes no upper case.
_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
MAX_VALUE = 63

Owner = Literal[
    "ours",
    "former",  # ours, taken over from another job, whose labels it still has
    "another",  # another store's, or another live job's
    "stale",  # a job of this store that no longer holds machines
    "nobody",  # not created by tpux
]


def build_labels(request: ProvisionRequest) -> dict[str, str]:
    """Return the labels of a job's TPU: the config's, and the owner's, which win.

    Raises:
        InvalidConfigError: the API does not accept one of the config's labels.
    """
    for key, value in section_of(request.tpu).labels.items():
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise InvalidConfigError(
                f"invalid label {key}={value}",
                "use at most 63 lower-case letters, digits, _ and -; start a key with a letter",
            )
    return {**section_of(request.tpu).labels, **owner_labels(request.labels)}


def owner_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that name the owner, in characters that the API accepts (a user may be `A.Smith`)."""
    return {key: re.sub("[^-_a-z0-9]", "-", value.lower())[:MAX_VALUE] for key, value in labels.items()}


def owner(labels: Mapping[str, str], request: ProvisionRequest) -> Owner:
    """Return whose a TPU with these labels is, seen from a job."""
    ours = owner_labels(request.labels)
    if _has(labels, ours):
        return "ours"
    if any(_has(labels, owner_labels(former)) for former in request.former):
        return "former"
    if JOB not in labels or STORE not in labels:
        return "nobody"
    if labels[STORE] == ours[STORE] and not is_active(labels[JOB]):
        return "stale"
    return "another"  # jobs of another store cannot be looked up here: they count as live


def _has(labels: Mapping[str, str], owner: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in owner.items())


def is_orphan(labels: Mapping[str, str]) -> bool:
    """Return True if a job of this store created the TPU and no longer holds machines."""
    return labels.get(STORE) == store_id() and JOB in labels and not is_active(labels[JOB])
