"""Names, and `tpu.flags`: what the API allows, and the keys that gcloud's flags stand for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import Request
from tpux_gcp.errors import mistake

if TYPE_CHECKING:
    from tpux import TpuSection

# AIP-122 as the TPU API checks it: an RFC 1035 label.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LONGEST = 63
Update = dict[str, object]


def _pairs(value: str) -> dict[str, str]:
    """`a=b,c=d`, as gcloud reads it."""
    return {key: text for key, _, text in (part.partition("=") for part in value.split(",") if part)}


def _startup_script(value: str) -> Update:
    files = _pairs(value)
    if set(files) != {"startup-script"}:
        raise mistake(f"--metadata-from-file={value}: only startup-script is read from a file", "use tpu.metadata")
    path = Path(files["startup-script"]).expanduser()
    if not path.is_file():
        raise mistake(f"there is no file {path} (in tpu.flags)", "name it in tpu.startup_script")
    return {"startup_script": path}


_ALONE: dict[str, Update] = {
    "spot": {"pricing": "spot"},
    "preemptible": {"pricing": "preemptible"},
    "best-effort": {"pricing": "preemptible"},
    "internal-ips": {"internal_ips": True},
    "reserved": {"reservation": "-"},
    # How gcloud talks and waits is nothing to us.
    "async": {}, "quiet": {}, "q": {}, "guaranteed": {},
}  # fmt: skip
_WITH_VALUE: dict[str, Callable[[str], Update]] = {
    "accelerator-type": lambda value: {"accelerator": value},
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
    "tags": lambda value: {"tags": value.split(",")},
    "version": lambda value: {"version": value},
    "zone": lambda value: {"zone": value},
}
_NO_KEY = {
    "node-id": "tpu.name", "node-prefix": "tpu.name", "valid-until-duration": "tpu.valid_until",
    "valid-until-time": "tpu.valid_until", "type": "tpu.accelerator", "topology": "tpu.accelerator",
    "provisioning-model": "tpu.pricing",
}  # fmt: skip


def node_id(request: Request) -> str:
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


def in_request(request: Request) -> Request:
    """The request with what its flags say in the keys of its `tpu` section.

    Raises:
        RefusedError: as `applied`.
    """
    return replace(request, tpu=applied(request.tpu))


def applied(tpu: TpuSection) -> TpuSection:
    """The section with what its flags say.

    Raises:
        RefusedError: a flag has no key here, its value cannot be read, or it contradicts a key that is given.
    """
    update: Update = {}
    for name, value in _read([word for flag in tpu.flags for word in shlex.split(flag)]):
        update.update(_one(name, value))
    for key, wanted in update.items():
        given = getattr(tpu, key)
        default = type(tpu).model_fields[key].get_default(call_default_factory=True)
        if given not in (default, wanted):
            raise mistake(f"tpu.flags says {wanted!r} and tpu.{key} says {given!r}", f"keep tpu.{key} alone")
    return tpu.model_copy(update=update) if update else tpu


def _read(words: list[str]) -> Iterator[tuple[str, str | None]]:
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            raise mistake(f"{word!r} in tpu.flags belongs to no flag")
        name, sign, value = word.lstrip("-").partition("=")
        if sign:
            yield name, value
        elif name not in _ALONE and words and not words[0].startswith("-"):
            yield name, words.pop(0)
        else:
            yield name, None


def _one(name: str, value: str | None) -> Update:
    if name in _ALONE and value is None:
        return _ALONE[name]
    if name in _WITH_VALUE and value is not None:
        try:
            return _WITH_VALUE[name](value)
        except ValueError as error:
            raise mistake(f"--{name}={value} in tpu.flags: {error}") from error
    if name in _WITH_VALUE or name in _ALONE:
        raise mistake(f"--{name} in tpu.flags {'takes no' if name in _ALONE else 'needs a'} value")
    key = _NO_KEY.get(name)
    known = ", ".join(f"--{flag}" for flag in sorted({*_ALONE, *_WITH_VALUE}) if flag != "q")
    raise mistake(f"tpux does not know the flag --{name} in tpu.flags", f"use {key}" if key else f"it knows {known}")
