"""Scenarios: settings, faults and events that a cloud begins with, from a YAML file."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError

from tpux import TpuxError
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.fault_rules import FaultRule
from tpux_emulator.cloud.settings import Settings
from tpux_emulator.durations import Seconds

_HINT = "docs/emulator.md shows a scenario with all that one can write"


class TimedFaultRule(FaultRule):
    """A standing fault whose end is given as a duration."""

    for_: Seconds | None = Field(default=None, alias="for", ge=0)


class Scenario(BaseModel):
    """A scenario.

    Args:
        settings: delays, randomness, events and the rest of `settings.py`.
        faults: standing faults, in their order.
    """

    model_config = ConfigDict(extra="forbid")
    settings: Settings = Settings()
    faults: list[TimedFaultRule] = []

    def begin(self, cloud: Cloud) -> None:
        """Put the scenario in the place of the cloud's settings and faults."""
        cloud.change_settings(self.settings)
        for rule_id in list(cloud.rules):
            cloud.clear_rule(rule_id)
        for fault in self.faults:
            rule = FaultRule.model_validate(fault.model_dump(exclude={"for_"}))
            if fault.for_ is not None:
                rule.until = cloud.clock.now() + fault.for_
            cloud.add_rule(rule)


def load_scenario(path: Path) -> Scenario:
    """Read a scenario.

    Raises:
        TpuxError: the file cannot be read, is no YAML, or has a mistake: with file, line and column.
    """
    try:
        content = YAML(typ="rt", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TpuxError(f"cannot read the scenario: {error}", where=str(path)) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise TpuxError(f"this is no YAML: {error.problem}", where=where) from error
    try:
        return Scenario.model_validate({} if content is None else content)
    except ValidationError as error:
        first = error.errors()[0]
        line, column = _position(content, first["loc"])
        name = ".".join(str(part) for part in first["loc"])
        message = (
            f"there is no key {name!r}"
            if first["type"] == "extra_forbidden"
            else f"{name}: {first['msg']}{_given(first['input'])}"
        )
        raise TpuxError(message, where=f"{path}:{line}:{column}", hint=_HINT) from error


def _given(value: object) -> str:
    return f", not {value!r}" if isinstance(value, str | int | float) else ""


def _position(content: object, path: tuple[int | str, ...]) -> tuple[int, int]:
    """Line and column, from 1, of the deepest part of a path that the file has."""
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
