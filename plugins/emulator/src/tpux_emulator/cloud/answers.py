"""Errors in the words of the real service (`answers.yaml`, with where each was seen)."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from pydantic import BaseModel, ConfigDict, TypeAdapter
from ruamel.yaml import YAML

from tpux_emulator.errors import ApiError, Status


class Known(BaseModel):
    """An error that was seen.

    Args:
        code: the google.rpc.Code.
        message: its text, with fields in braces.
        reason: of the ErrorInfo in its details; empty if it has none.
        source: where it was seen.
    """

    model_config = ConfigDict(extra="forbid")
    code: int
    message: str
    reason: str = ""
    source: str


_KNOWN = TypeAdapter(dict[str, Known])


@lru_cache(maxsize=1)
def known() -> dict[str, Known]:
    """Return all known errors by name."""
    text = (resources.files("tpux_emulator") / "cloud" / "answers.yaml").read_text(encoding="utf-8")
    return _KNOWN.validate_python(YAML(typ="safe", pure=True).load(text))


def status(name: str, **fields: object) -> Status:
    """Return an error as operations and queued resources carry it."""
    return Status(code=known()[name].code, message=known()[name].message.format(**fields))


def error(name: str, *, field: str = "", **fields: object) -> ApiError:
    """Return an error as the answer of a request; `field` is the invalid field of the request."""
    made = status(name, **fields)
    return ApiError(made.code, made.message, field=field, reason=known()[name].reason)
