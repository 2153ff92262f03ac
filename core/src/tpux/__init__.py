"""What tpux gives to plugin authors, and nothing else: `from tpux import hookimpl, sh, Section`.

Names are imported when they are first asked for (PEP 562), so that `tpux --help` does not pay for pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpux.accelerators import workers_of as workers_of
    from tpux.console import confirm as confirm
    from tpux.console import emit as emit
    from tpux.console import new_app as new_app
    from tpux.console import say as say
    from tpux.env import clock_rate as clock_rate
    from tpux.env import home as home
    from tpux.errors import ConfigError as ConfigError
    from tpux.errors import HostUnreachableError as HostUnreachableError
    from tpux.errors import TpuxError as TpuxError
    from tpux.errors import UsageError as UsageError
    from tpux.lifecycle.connection import JobConnection as JobConnection
    from tpux.lifecycle.connection import allocation_of as allocation_of
    from tpux.lifecycle.connection import connect_job as connect_job
    from tpux.plugin import events as events
    from tpux.plugin.events import Event as Event
    from tpux.plugin.failures import Action as Action
    from tpux.plugin.failures import Failure as Failure
    from tpux.plugin.failures import FailureKind as FailureKind
    from tpux.plugin.failures import Finding as Finding
    from tpux.plugin.failures import Finished as Finished
    from tpux.plugin.host import CHUNK_SIZE as CHUNK_SIZE
    from tpux.plugin.host import Host as Host
    from tpux.plugin.job import Attempt as Attempt
    from tpux.plugin.job import Command as Command
    from tpux.plugin.job import Job as Job
    from tpux.plugin.job import WorkerExit as WorkerExit
    from tpux.plugin.machines import Allocation as Allocation
    from tpux.plugin.machines import Denied as Denied
    from tpux.plugin.machines import JsonValue as JsonValue
    from tpux.plugin.machines import MachineStatus as MachineStatus
    from tpux.plugin.machines import ProvisionRequest as ProvisionRequest
    from tpux.plugin.machines import Ready as Ready
    from tpux.plugin.machines import Released as Released
    from tpux.plugin.machines import Waiting as Waiting
    from tpux.plugin.machines import Worker as Worker
    from tpux.plugin.sections import Accelerator as Accelerator
    from tpux.plugin.sections import Duration as Duration
    from tpux.plugin.sections import LocalFile as LocalFile
    from tpux.plugin.sections import Section as Section
    from tpux.plugin.sections import TpuSection as TpuSection
    from tpux.plugin.spec import hookimpl as hookimpl
    from tpux.plugin.steps import Put as Put
    from tpux.plugin.steps import Result as Result
    from tpux.plugin.steps import Sh as Sh
    from tpux.plugin.steps import Step as Step
    from tpux.plugin.steps import Steps as Steps
    from tpux.plugin.steps import put as put
    from tpux.plugin.steps import sh as sh
    from tpux.store.leases import acquire_lease as acquire_lease
    from tpux.store.leases import is_active as is_active
    from tpux.store.leases import lease_holder as lease_holder
    from tpux.store.leases import release_lease as release_lease
    from tpux.store.leases import store_id as store_id

_HOME = {
    "accelerators": "workers_of",
    "console": "confirm emit new_app say",
    "env": "clock_rate home",
    "errors": "ConfigError HostUnreachableError TpuxError UsageError",
    "lifecycle.connection": "JobConnection allocation_of connect_job",
    "plugin.events": "Event events",
    "plugin.failures": "Action Failure FailureKind Finding Finished",
    "plugin.host": "CHUNK_SIZE Host",
    "plugin.job": "Attempt Command Job WorkerExit",
    "plugin.machines": "Allocation Denied JsonValue MachineStatus ProvisionRequest Ready Released Waiting Worker",
    "plugin.sections": "Accelerator Duration LocalFile Section TpuSection",
    "plugin.spec": "hookimpl",
    "plugin.steps": "Put Result Sh Step Steps put sh",
    "store.leases": "acquire_lease is_active lease_holder release_lease store_id",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)  # noqa: PLE0605  (the table above is the one list)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tpux' has no attribute {name!r}")
    module = import_module(f"tpux.{_MODULE_OF[name]}")
    return module if module.__name__.endswith(f".{name}") else getattr(module, name)
