"""The config section `script`."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tpux import Section
from tpux.fields import Duration, LocalFile

Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# A null character ends a string in a process's arguments and variables.
Text = Annotated[str, Field(pattern=r"^[^\x00]*$")]


def _from_text(data: object) -> object:
    return {"path": data} if isinstance(data, str) else data


class Script(Section):
    """A set-up script of the user's own, run on each worker. A text is its path."""

    path: LocalFile
    """The script, a file on this machine; without a first line that begins with #!, bash runs it."""
    args: list[Text] = Field(default_factory=list)
    """Its arguments. Users of the worker can read them while it runs, so secrets belong in env."""
    env: dict[Variable, Text] = Field(default_factory=dict)
    """Environment variables of the script, such as {TOKEN: "${env:TOKEN}"}; they are sent in a file."""
    check: Annotated[str, Field(min_length=1)] | None = None
    """A shell script that succeeds where the set-up is still in effect; where it fails, the script runs again."""
    timeout: Duration = 3600.0
    """How long the script may take."""

    @model_validator(mode="before")
    @classmethod
    def _path(cls, data: object) -> object:
        data = _from_text(data)
        # Core treats null as "not set" in the section itself.
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema, in which a text stands for `path`."""
        made = handler.resolve_ref_schema(handler(schema))
        made["type"] = ["object", "string"]
        return made

    def digest(self) -> str:
        """Return a digest of the script, its arguments and its variables: a change runs it again."""
        facts = json.dumps([self.args, self.env], sort_keys=True).encode()
        return hashlib.sha256(self.path.read_bytes() + b"\0" + facts).hexdigest()


class ScriptSection(Script):
    """Set-up scripts of the user's own, run on each worker. A text is the path of one, a list are several."""

    path: LocalFile | None = None  # type: ignore[assignment]  # `all` has the scripts
    """The script, a file on this machine; without a first line that begins with #!, bash runs it."""
    scripts: list[Script] = Field(default_factory=list)
    """Several scripts, in the order in which they run, each with its own args, env, check and timeout."""

    def exposed_keys(self) -> dict[str, str]:
        """Return the keys that become arguments, or a script."""
        hints = {"args": "give it to the script in env", "check": "let the script save what the check needs"}
        return hints | {f"scripts.{key}": hint for key, hint in hints.items()}

    @property
    def all(self) -> list[Script]:
        """The scripts, in their order."""
        if self.scripts:
            return self.scripts
        return [Script.model_construct(**{name: getattr(self, name) for name in Script.model_fields})]

    @model_validator(mode="before")
    @classmethod
    def _list(cls, data: object) -> object:
        return {"scripts": data} if isinstance(data, list) else data

    @model_validator(mode="after")
    def _one_or_several(self) -> ScriptSection:
        if not self.scripts and self.path is None:
            raise ValueError("no script is named: write script: setup.sh, or a list of scripts")
        if own := sorted(self.model_fields_set - {"scripts"} if self.scripts else ()):
            raise ValueError(f"{', '.join(own)} and scripts exclude each other: give each of the scripts its own")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema, in which a text stands for `path`, and a list for `scripts`."""
        made = handler.resolve_ref_schema(handler(schema))
        made["type"] = ["object", "string", "array"]
        made["items"] = made["properties"]["scripts"]["items"]
        return made
