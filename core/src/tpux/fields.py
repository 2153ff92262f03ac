"""Types for the keys of a plugin's section: `from tpux.fields import Duration, LocalFile`."""

from __future__ import annotations

from tpux.plugin.values import Accelerator as Accelerator
from tpux.plugin.values import Duration as Duration
from tpux.plugin.values import LocalFile as LocalFile
from tpux.plugin.values import OutputFailureKind as OutputFailureKind
from tpux.plugin.values import Pattern as Pattern
from tpux.plugin.values import PythonVersion as PythonVersion

__all__ = ["Accelerator", "Duration", "LocalFile", "OutputFailureKind", "Pattern", "PythonVersion"]
