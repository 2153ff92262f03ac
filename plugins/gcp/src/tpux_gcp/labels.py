"""The name of a TPU, and its labels: the config's, those that name its job, and who owns a TPU that carries them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from tpux import ProvisionRequest
from tpux.api import machines
from tpux_gcp.errors import InvalidConfigError

# AIP-122 as the TPU API checks it: an RFC 1035 label.
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
MAX_NAME = 63
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


def tpu_name(request: ProvisionRequest) -> str:
    """Return the name under which a TPU is looked for: `tpu.name`, or the one that tpux creates without it.

    Raises:
        InvalidConfigError: `tpu.name` is not valid.
    """
    if request.tpu.name:
        check_name(request.name, _max_length(request))
        return request.name
    return unique_name(request)


def unique_name(request: ProvisionRequest) -> str:
    """Return the name under which a job creates its TPU: `tpu.name` or the job's name, with its id and token.

    So a config can run many times, and in many stores, although it names its TPU.
    """
    suffix = "-".join(filter(None, [request.labels.get("tpux-job"), request.labels.get("tpux-token")]))
    base = request.name if request.tpu.name else request.name.removesuffix(f"-{suffix}")
    base = base if re.match("[a-z]", base) else f"t-{base}".rstrip("-")
    return f"{base[: _max_length(request) - len(suffix) - 1].rstrip('-')}-{suffix}"


def _max_length(request: ProvisionRequest) -> int:
    """Return the longest name of a TPU; the nodes of several slices have its name and their number."""
    count = request.tpu.node_count
    return MAX_NAME - (len(f"-{count - 1}") if count > 1 else 0)


def check_name(name: str, max_length: int = MAX_NAME) -> None:
    """Check a name against the API's rules.

    Raises:
        InvalidConfigError: it is empty, too long, or contains other characters.
    """
    if not NAME.fullmatch(name) or len(name) > max_length:
        raise InvalidConfigError(
            f"invalid TPU name {name!r}",
            f"use at most {max_length} lower-case letters, digits and hyphens; start with a letter, do not end with -",
        )


def build_labels(configured: Mapping[str, str], of_job: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a job's TPU: the config's, and the owner's, which win.

    Args:
        configured: `tpu.labels`.
        of_job: `ProvisionRequest.labels`.

    Raises:
        InvalidConfigError: the API does not accept one of the config's labels.
    """
    for key, value in configured.items():
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise InvalidConfigError(
                f"invalid label {key}={value}",
                "use at most 63 lower-case letters, digits, _ and -; start a key with a letter",
            )
    return {**configured, **owner_labels(of_job)}


def owner_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that name the owner, in characters that the API accepts (a user may be `A.Smith`)."""
    return {key: label_value(value) for key, value in labels.items()}


def label_value(text: str) -> str:
    """Return a text in the characters, and in the length, that a label's value may have."""
    return re.sub("[^-_a-z0-9]", "-", text.lower())[:MAX_VALUE]


def owner(labels: Mapping[str, str], request: ProvisionRequest) -> Owner:
    """Return whose a TPU with these labels is, seen from a job."""
    ours = owner_labels(request.labels)
    if _has(labels, ours):
        return "ours"
    if any(_has(labels, owner_labels(former)) for former in request.previous_owners):
        return "former"
    if JOB not in labels or STORE not in labels:
        return "nobody"
    if labels[STORE] == ours[STORE] and not machines.is_active(labels[JOB]):
        return "stale"
    return "another"  # jobs of another store cannot be looked up here: they count as live


def _has(labels: Mapping[str, str], owner: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in owner.items())


def is_orphan(labels: Mapping[str, str]) -> bool:
    """Return True if a job of this store created the TPU and no longer holds machines."""
    return labels.get(STORE) == machines.store_id() and JOB in labels and not machines.is_active(labels[JOB])
