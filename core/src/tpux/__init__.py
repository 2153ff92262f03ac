"""The API for plugins: `from tpux import hookimpl, sh, Section`.

The types of a section's keys are in `tpux.fields`, functions that plugins share in `tpux.helpers`. Scripts, notebooks
and command plugins use `tpux.api`, tests of plugins `tpux.testing`. All other modules are internal.

Names are imported when they are first used (PEP 562), so that `tpux --help` does not import pydantic. Nothing is
imported here: the command line installs its handler for Ctrl-C after this module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tpux.errors import ConfigError as ConfigError
    from tpux.errors import HostIdentityError as HostIdentityError
    from tpux.errors import HostUnreachableError as HostUnreachableError
    from tpux.errors import TpuxError as TpuxError
    from tpux.errors import UsageError as UsageError
    from tpux.plugin import events as events
    from tpux.plugin.events import Event as Event
    from tpux.plugin.failures import Action as Action
    from tpux.plugin.failures import Failure as Failure
    from tpux.plugin.failures import FailureKind as FailureKind
    from tpux.plugin.failures import Finding as Finding
    from tpux.plugin.failures import Finished as Finished
    from tpux.plugin.host import Host as Host
    from tpux.plugin.host import Stream as Stream
    from tpux.plugin.job import Attempt as Attempt
    from tpux.plugin.job import Command as Command
    from tpux.plugin.job import Job as Job
    from tpux.plugin.job import WorkerExit as WorkerExit
    from tpux.plugin.machines import Allocation as Allocation
    from tpux.plugin.machines import Denied as Denied
    from tpux.plugin.machines import JsonValue as JsonValue
    from tpux.plugin.machines import MachineStatus as MachineStatus
    from tpux.plugin.machines import Orphan as Orphan
    from tpux.plugin.machines import Peer as Peer
    from tpux.plugin.machines import ProvisionRequest as ProvisionRequest
    from tpux.plugin.machines import Ready as Ready
    from tpux.plugin.machines import Released as Released
    from tpux.plugin.machines import Waiting as Waiting
    from tpux.plugin.machines import Worker as Worker
    from tpux.plugin.sections import Bucket as Bucket
    from tpux.plugin.sections import Section as Section
    from tpux.plugin.sections import TpuSection as TpuSection
    from tpux.plugin.spec import API_VERSION as API_VERSION
    from tpux.plugin.spec import hookimpl as hookimpl
    from tpux.plugin.steps import Put as Put
    from tpux.plugin.steps import Result as Result
    from tpux.plugin.steps import Sh as Sh
    from tpux.plugin.steps import Step as Step
    from tpux.plugin.steps import Steps as Steps
    from tpux.plugin.steps import put as put
    from tpux.plugin.steps import sh as sh

_MODULES = {
    "errors": "ConfigError HostIdentityError HostUnreachableError TpuxError UsageError",
    "plugin.events": "Event events",
    "plugin.failures": "Action Failure FailureKind Finding Finished",
    "plugin.host": "Host Stream",
    "plugin.job": "Attempt Command Job WorkerExit",
    "plugin.machines": "Allocation Denied JsonValue MachineStatus Orphan Peer ProvisionRequest Ready Released"
    " Waiting Worker",
    "plugin.sections": "Bucket Section TpuSection",
    "plugin.spec": "API_VERSION hookimpl",
    "plugin.steps": "Put Result Sh Step Steps put sh",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)  # noqa: PLE0605  (the table above is the one list)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tpux' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"tpux.{_MODULE_OF[name]}")
    return module if module.__name__.endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
