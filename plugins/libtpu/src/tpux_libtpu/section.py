"""The section `libtpu` of a config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from tpux import ConfigError, Section
from tpux.fields import LocalFile
from tpux_libtpu.table import table_with


def _valid_table(path: Path) -> Path:
    if path.is_file():  # a file that is missing is reported where that is an error
        try:
            table_with(path)
        except ConfigError as error:
            raise ValueError(str(error)) from error
    return path


class LibtpuSection(Section):
    """The signatures of failures, and what keeps a TPU occupied."""

    signatures: Annotated[LocalFile, AfterValidator(_valid_table)] | None = None
    """A YAML file of signatures, in the format of tpux' own table; they are tried before these."""
    devices: list[Annotated[str, Field(pattern="^/")]] = Field(default_factory=lambda: ["/dev/accel*", "/dev/vfio/*"])
    """Patterns of the paths of the accelerator's devices; processes that have one open hold the accelerator."""
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(default_factory=lambda: [8353, 8431, 8471, 8476, 8482])
    """Ports on which libtpu and JAX's coordinator listen; processes that listen there hold the accelerator too."""
    directory: Annotated[str, Field(pattern="^/")] = "/tmp"  # noqa: S108  (libtpu's own)
    """The directory on the workers in which libtpu keeps its lock file and its logs."""
    full_percent: Annotated[int, Field(ge=0, le=100)] = 95
    """At how many percent of use that directory's disk is full, so that a solver deletes libtpu's logs."""

    def never_finished(self) -> str:
        """Return that signatures are of failures only."""
        return "libtpu reports only failures"
