"""Names, gcloud flags and the endpoint of a config: checked, and translated to what the API and tpux use."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tpux import ProvisionRequest
from tpux_gcp.errors import InvalidConfigError

if TYPE_CHECKING:
    from tpux import TpuSection
    from tpux_gcp.section import GcpTpuSection

# AIP-122 as the TPU API checks it: an RFC 1035 label.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
MAX_NAME = 63
MAX_TAGS = 64
# "Set custom metadata", Compute Engine documentation.
_METADATA_KEY = re.compile(r"[-_A-Za-z0-9]{1,128}")
# The REST reference of queuedResources has the form with a location, the guide to shared reservations the other one.
_RESERVATION = re.compile(r"(projects/[^/\s]+/(locations/[^/\s]+/)?reservations/)?([a-z]([-a-z0-9]{0,61}[a-z0-9])?|-)")
# A part of what `useradd` of Google's images accepts; 32 is the limit of Linux.
_USER = re.compile(r"[A-Za-z0-9_][-._A-Za-z0-9]{0,31}")
_SECRET_KEY = re.compile(r"token|secret|passw|api[-_]?key|credential|private[-_]?key", re.IGNORECASE)
# Hugging Face, GitHub, AWS, Google, a private key.
_SECRET_VALUE = re.compile(r"\bhf_\w{20}|\bgh[pousr]_\w{20}|\bAKIA[0-9A-Z]{16}|\bAIza[-\w]{35}|PRIVATE KEY-----")


def section_of(tpu: TpuSection) -> GcpTpuSection:
    """Return the section `tpu` of a job as this plugin's model, with which core has validated it."""
    return cast("GcpTpuSection", tpu)


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
    if not _NAME.fullmatch(name) or len(name) > max_length:
        raise InvalidConfigError(
            f"invalid TPU name {name!r}",
            f"use at most {max_length} lower-case letters, digits and hyphens; start with a letter, do not end with -",
        )


def check_values(tpu: GcpTpuSection, public_keys: Iterable[str]) -> None:
    """Check network tags, metadata keys and the users of public keys against the rules of Compute Engine.

    Args:
        tpu: the config's section.
        public_keys: `USER:KEY` each.

    Raises:
        InvalidConfigError: one of them is invalid.
    """
    for tag in tpu.tags:
        if not _NAME.fullmatch(tag):
            raise InvalidConfigError(
                f"invalid tag {tag!r} in tpu.tags",
                f"use at most {MAX_NAME} lower-case letters, digits and hyphens; start with a letter",
            )
    if len(tpu.tags) > MAX_TAGS:
        raise InvalidConfigError(f"tpu.tags has {len(tpu.tags)} tags", f"a VM has at most {MAX_TAGS}")
    if tpu.reservation is not None and not _RESERVATION.fullmatch(tpu.reservation):
        raise InvalidConfigError(
            f"invalid reservation {tpu.reservation!r} in tpu.reservation",
            "give its name, projects/P/locations/ZONE/reservations/NAME, or projects/OWNER/reservations/NAME",
        )
    for key in tpu.metadata:
        if not _METADATA_KEY.fullmatch(key):
            raise InvalidConfigError(
                f"invalid key {key!r} in tpu.metadata", "use at most 128 letters, digits, hyphens and underscores"
            )
    for user in (line.partition(":")[0] for line in public_keys):
        if not _USER.fullmatch(user):
            hint = "set job.remote_user to at most 32 letters, digits and . _ -"
            raise InvalidConfigError(f"invalid user {user!r} for the login on the workers", hint)


def check_login(public_keys: Iterable[str]) -> None:
    """Check that nobody is to log in as root, which Google's images refuse.

    Raises:
        InvalidConfigError: a public key is root's.
    """
    if any(line.startswith("root:") for line in public_keys):
        raise InvalidConfigError(
            "the login on the workers is root, which Google's images refuse", "set job.remote_user to another name"
        )


def secrets_in_metadata(tpu: GcpTpuSection) -> list[str]:
    """Return the keys of `tpu.metadata` that seem to hold a secret: everyone on the VMs can read metadata."""
    return [key for key, v in tpu.metadata.items() if _SECRET_KEY.search(key) or _SECRET_VALUE.search(str(v))]


def apply_flags(tpu: TpuSection) -> GcpTpuSection:
    """Return the `tpu` section with its `flags` (of `gcloud compute tpus`, from jobman's configs) as keys.

    Raises:
        InvalidConfigError: a flag has no key, its value is invalid, or it contradicts a key.
    """
    update: Update = {}
    section = section_of(tpu)
    for name, value in _split_flags([word for flag in section.flags for word in shlex.split(flag)]):
        update.update(_parse_flag(name, value))
    for key, value_of_flag in update.items():
        configured = getattr(section, key)
        default = type(section).model_fields[key].get_default(call_default_factory=True)
        if configured not in (default, value_of_flag):
            raise InvalidConfigError(
                f"tpu.flags sets {value_of_flag!r}, but tpu.{key} is {configured!r}", f"keep only tpu.{key}"
            )
    return section.model_copy(update=update) if update else section


Update = dict[str, object]


def _pairs(value: str) -> dict[str, str]:
    """Parse `a=b,c=d` as gcloud does."""
    return {key: text for key, _, text in (part.partition("=") for part in value.split(",") if part)}


def _startup_script(value: str) -> Update:
    files = _pairs(value)
    if set(files) != {"startup-script"}:
        raise InvalidConfigError(
            f"--metadata-from-file={value} in tpu.flags: only startup-script is supported", "use tpu.metadata"
        )
    return {"startup_script": Path(files["startup-script"])}


_WITHOUT_VALUE: dict[str, Update] = {
    "spot": {"pricing": "spot"},
    "preemptible": {"pricing": "preemptible"},
    "best-effort": {"pricing": "preemptible"},
    "internal-ips": {"internal_ips": True},
    "reserved": {"reservation": "-"},
    # They change gcloud's own output and waiting, nothing of the TPU.
    "async": {}, "quiet": {}, "q": {}, "guaranteed": {},
}  # fmt: skip
_WITH_VALUE: dict[str, Callable[[str], Update]] = {
    "accelerator-type": lambda value: {"accelerator": re.sub("^v5e-", "v5litepod-", value)},
    "labels": lambda value: {"labels": _pairs(value)},
    "metadata": lambda value: {"metadata": _pairs(value)},
    "metadata-from-file": _startup_script,
    "network": lambda value: {"network": value},
    "node-count": lambda value: {"node_count": int(value)},
    "project": lambda value: {"project": value},
    "reservation": lambda value: {"reservation": value},
    "runtime-version": lambda value: {"version": value},
    "service-account": lambda value: {"service_account": value},
    "subnetwork": lambda value: {"subnetwork": value},
    "topology": lambda value: {"topology": value},
    "tags": lambda value: {"tags": value.split(",")},
    "version": lambda value: {"version": value},
    "zone": lambda value: {"zone": value},
}
_KEY_INSTEAD = {
    "node-id": "tpu.name", "node-prefix": "tpu.name", "valid-until-duration": "tpu.valid_until",
    "valid-until-time": "tpu.valid_until", "type": "tpu.accelerator",
    "provisioning-model": "tpu.pricing",
}  # fmt: skip


def _split_flags(words: list[str]) -> Iterator[tuple[str, str | None]]:
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            raise InvalidConfigError(f"{word!r} in tpu.flags is not a flag")
        name, sign, value = word.lstrip("-").partition("=")
        if sign:
            yield name, value
        elif name not in _WITHOUT_VALUE and words and not words[0].startswith("-"):
            yield name, words.pop(0)
        else:
            yield name, None


def _parse_flag(name: str, value: str | None) -> Update:
    if name in _WITHOUT_VALUE and value is None:
        return _WITHOUT_VALUE[name]
    if name in _WITH_VALUE and value is not None:
        try:
            return _WITH_VALUE[name](value)
        except ValueError as error:
            raise InvalidConfigError(f"--{name}={value} in tpu.flags: {error}") from error
    if name in _WITH_VALUE or name in _WITHOUT_VALUE:
        raise InvalidConfigError(f"--{name} in tpu.flags {'needs a' if name in _WITH_VALUE else 'takes no'} value")
    key = _KEY_INSTEAD.get(name)
    known = ", ".join(f"--{flag}" for flag in sorted({*_WITHOUT_VALUE, *_WITH_VALUE}) if flag != "q")
    raise InvalidConfigError(
        f"unsupported flag --{name} in tpu.flags", f"use {key}" if key else f"supported are {known}"
    )
