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


class ScriptSection(Section):
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

    def exposed_keys(self) -> dict[str, str]:
        """Return the keys that become arguments, or a script."""
        return {"args": "give it to the script in env", "check": "let the script save what the check needs"}

    @model_validator(mode="before")
    @classmethod
    def _path(cls, data: object) -> object:
        return {"path": data} if isinstance(data, str) else data

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
