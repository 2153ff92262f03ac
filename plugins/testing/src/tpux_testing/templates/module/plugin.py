"""Module `sample`: writes a greeting to a file on every worker."""

from __future__ import annotations

from tpux import Section, Steps, hookimpl, put, sh


class SampleSection(Section):
    """A greeting for the program, in a file on every worker."""

    text: str = "hello"
    """What to write."""
    path: str = "greeting"
    """The file, relative to the home directory."""


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the plugin's section."""
    return SampleSection


@hookimpl
def check(config: SampleSection) -> Steps:
    """Yield steps that all succeed if the worker is ready; they change nothing."""
    yield sh("test -s {path}", path=config.path)


@hookimpl
def setup(config: SampleSection) -> Steps:
    """Yield steps that make the worker ready; safe to repeat."""
    yield put(config.text.encode(), config.path)
    yield sh("echo the greeting has $(wc -c < {path}) bytes", path=config.path)
