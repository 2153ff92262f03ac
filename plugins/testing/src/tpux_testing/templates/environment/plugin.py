"""Environment `sample`: runs the program with a lower priority."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from tpux import Command, Section, Steps, hookimpl, sh


class SampleSection(Section):
    """A lower priority for the program."""

    level: int = Field(10, ge=0, le=19)
    """From 0 to 19, the lowest priority."""


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the plugin's section."""
    return SampleSection


@hookimpl
def check() -> Steps:
    """Yield steps that all succeed if the worker is ready; they change nothing."""
    yield sh("command -v nice")


@hookimpl
def run(command: Command, config: SampleSection) -> Command:
    """Return the command, wrapped. It may be called again, so it only builds the command."""
    return replace(command, argv=("nice", "-n", str(config.level), *command.argv))
