"""The API for plugins: `from tpux import hookimpl, sh, Section`.

The types of a section's keys are in `tpux.fields`. Scripts, notebooks and command plugins use `tpux.api`. All other
modules are internal. Two libraries for plugins are dists of their own: `tpux_worker_tools` has parts of scripts for
modules, `tpux_testing` is for tests.

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
    from tpux.errors import plain_reason as plain_reason
    from tpux.model import events as events
    from tpux.model.failures import Action as Action
    from tpux.model.failures import Failure as Failure
    from tpux.model.failures import Finding as Finding
    from tpux.model.failures import Finished as Finished
    from tpux.model.host import CHUNK_SIZE as CHUNK_SIZE
    from tpux.model.host import Host as Host
    from tpux.model.job import Attempt as Attempt
    from tpux.model.job import Checkpoint as Checkpoint
    from tpux.model.job import Command as Command
    from tpux.model.job import Job as Job
    from tpux.model.job import WorkerExit as WorkerExit
    from tpux.model.json import JsonValue as JsonValue
    from tpux.model.machines import Allocation as Allocation
    from tpux.model.machines import Denied as Denied
    from tpux.model.machines import MachineStatus as MachineStatus
    from tpux.model.machines import Orphan as Orphan
    from tpux.model.machines import Peer as Peer
    from tpux.model.machines import ProvisionRequest as ProvisionRequest
    from tpux.model.machines import Ready as Ready
    from tpux.model.machines import Released as Released
    from tpux.model.machines import Waiting as Waiting
    from tpux.model.machines import Worker as Worker
    from tpux.model.progress import Progress as Progress
    from tpux.model.sections import Section as Section
    from tpux.model.sections import TpuSection as TpuSection
    from tpux.model.steps import Put as Put
    from tpux.model.steps import Result as Result
    from tpux.model.steps import Sh as Sh
    from tpux.model.steps import Step as Step
    from tpux.model.steps import Steps as Steps
    from tpux.model.steps import put as put
    from tpux.model.steps import sh as sh
    from tpux.plugin.spec import API_VERSION as API_VERSION
    from tpux.plugin.spec import hookimpl as hookimpl

_MODULES = {
    "errors": "ConfigError HostIdentityError HostUnreachableError TpuxError UsageError plain_reason",
    "model.events": "events",
    "model.failures": "Action Failure Finding Finished",
    "model.host": "CHUNK_SIZE Host",
    "model.job": "Attempt Checkpoint Command Job WorkerExit",
    "model.json": "JsonValue",
    "model.machines": "Allocation Denied MachineStatus Orphan Peer ProvisionRequest Ready Released Waiting Worker",
    "model.progress": "Progress",
    "model.sections": "Section TpuSection",
    "plugin.spec": "API_VERSION hookimpl",
    "model.steps": "Put Result Sh Step Steps put sh",
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
