"""Environment `uv-run`: runs the program with `uv run`, in the project of the job's code."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from tpux import Command, Section, Steps, hookimpl, sh


class UvRunSection(Section):
    """How `uv run` is called."""

    options: list[str] = Field(default_factory=list)
    """Options of `uv run`, such as `--frozen` or `--extra=tpu`."""
    version: str = ""
    """The version of uv that is installed where there is none, such as `0.9.5`; empty is the newest one."""

    def exposed_keys(self) -> dict[str, str]:
        """Return the keys that become arguments, which other users of a worker can read."""
        return {"options": "give a secret to the program in command.env"}


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the plugin's section."""
    return UvRunSection


@hookimpl
def check() -> Steps:
    """Yield a step that succeeds if uv is there."""
    yield sh('PATH="$HOME/.local/bin:$PATH" && command -v uv')


@hookimpl
def setup(config: UvRunSection) -> Steps:
    """Yield the step that installs uv for the user of the worker."""
    requirement = f"uv=={config.version}" if config.version else "uv"
    yield sh("python3 -m pip install --user --quiet {requirement}", requirement=requirement)


@hookimpl
def run(command: Command, config: UvRunSection) -> Command:
    """Return the command, wrapped. uv passes SIGTERM on to it."""
    find = 'PATH="$HOME/.local/bin:$PATH" exec uv run "$@"'
    return replace(command, argv=("sh", "-c", find, "uv-run", *config.options, "--", *command.argv))
