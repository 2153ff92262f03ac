"""Types for the keys of a plugin's section: `from tpux.fields import Duration, LocalFile`."""

from __future__ import annotations

from tpux.model.values import Accelerator as Accelerator
from tpux.model.values import Duration as Duration
from tpux.model.values import LocalFile as LocalFile
from tpux.model.values import OutputFailureKind as OutputFailureKind
from tpux.model.values import Pattern as Pattern
from tpux.model.values import PythonVersion as PythonVersion

__all__ = ["Accelerator", "Duration", "LocalFile", "OutputFailureKind", "Pattern", "PythonVersion"]
