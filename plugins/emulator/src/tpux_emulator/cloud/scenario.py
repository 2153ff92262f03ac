"""Scenario files: settings and faults to start with, in YAML."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError

from tpux import TpuxError
from tpux.fields import Duration
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.fault_rules import FaultRule
from tpux_emulator.cloud.settings import Settings

_HINT = "see the scenario in docs/emulator.md"


class TimedFaultRule(FaultRule):
    """A fault rule with a duration (`for`) in place of an end."""

    for_: Duration | None = Field(default=None, alias="for")


class Scenario(BaseModel):
    """A scenario.

    Args:
        settings: the settings of the cloud.
        faults: fault rules, in order.
    """

    model_config = ConfigDict(extra="forbid")
    settings: Settings = Settings()
    faults: list[TimedFaultRule] = []

    def apply(self, cloud: Cloud) -> None:
        """Replace the cloud's settings and fault rules."""
        cloud.change_settings(self.settings)
        for rule_id in list(cloud.rules):
            cloud.clear_rule(rule_id)
        for fault in self.faults:
            rule = FaultRule.model_validate(fault.model_dump(exclude={"for_"}))
            if fault.for_ is not None:
                rule.until = cloud.clock.now() + fault.for_
            cloud.add_rule(rule)


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file.

    Raises:
        TpuxError: the file cannot be read, or is invalid; the error has the line and column.
    """
    try:
        content = YAML(typ="rt", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TpuxError(f"cannot read the scenario: {error}", where=str(path)) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise TpuxError(f"not valid YAML: {error.problem}", where=where) from error
    try:
        return Scenario.model_validate({} if content is None else content)
    except ValidationError as error:
        first = error.errors()[0]
        line, column = _position(content, first["loc"])
        name = ".".join(str(part) for part in first["loc"])
        message = (
            f"unknown key {name!r}"
            if first["type"] == "extra_forbidden"
            else f"{name}: {first['msg']}{_given(first['input'])}"
        )
        raise TpuxError(message, where=f"{path}:{line}:{column}", hint=_HINT) from error


def _given(value: object) -> str:
    return f", not {value!r}" if isinstance(value, str | int | float) else ""


def _position(content: object, path: tuple[int | str, ...]) -> tuple[int, int]:
    """Return line and column, from 1, of the longest part of a path that exists in the file."""
    line, column = 0, 0
    for part in path:
        if isinstance(content, CommentedMap) and part in content:
            line, column = content.lc.key(part)
        elif isinstance(content, CommentedSeq) and isinstance(part, int) and part < len(content):
            line, column = content.lc.item(part)
        else:
            break
        content = content[part]
    return line + 1, column + 1
