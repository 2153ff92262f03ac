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
    from tpux.failures import Action as Action
    from tpux.failures import Failure as Failure
    from tpux.failures import FailureKind as FailureKind
    from tpux.failures import Finding as Finding
    from tpux.failures import Finished as Finished
    from tpux.held.claims import claim as claim
    from tpux.held.claims import claimed as claimed
    from tpux.held.claims import holds_machines as holds_machines
    from tpux.held.claims import store_id as store_id
    from tpux.held.claims import unclaim as unclaim
    from tpux.held.machines import HeldMachines as HeldMachines
    from tpux.held.machines import held_machines as held_machines
    from tpux.held.machines import machines_of as machines_of
    from tpux.hookspecs import hookimpl as hookimpl
    from tpux.hosts import PIECE as PIECE
    from tpux.hosts import Host as Host
    from tpux.jobs import Job as Job
    from tpux.machines import Allocation as Allocation
    from tpux.machines import Denied as Denied
    from tpux.machines import JsonValue as JsonValue
    from tpux.machines import Machines as Machines
    from tpux.machines import Ready as Ready
    from tpux.machines import Released as Released
    from tpux.machines import Request as Request
    from tpux.machines import Waiting as Waiting
    from tpux.machines import Worker as Worker
    from tpux.programs import Attempt as Attempt
    from tpux.programs import Command as Command
    from tpux.programs import Ending as Ending
    from tpux.sections import LocalFile as LocalFile
    from tpux.sections import Seconds as Seconds
    from tpux.sections import Section as Section
    from tpux.sections import TpuSection as TpuSection
    from tpux.steps import Put as Put
    from tpux.steps import Result as Result
    from tpux.steps import Sh as Sh
    from tpux.steps import Step as Step
    from tpux.steps import Steps as Steps
    from tpux.steps import put as put
    from tpux.steps import sh as sh

_HOME = {
    "accelerators": "workers_of",
    "held.claims": "claim claimed holds_machines store_id unclaim",
    "env": "clock_rate home",
    "console": "confirm emit new_app say",
    "errors": "ConfigError HostUnreachableError TpuxError UsageError",
    "failures": "Action Failure FailureKind Finding Finished",
    "held.machines": "HeldMachines held_machines machines_of",
    "hookspecs": "hookimpl",
    "hosts": "PIECE Host",
    "jobs": "Job",
    "machines": "Allocation Denied JsonValue Machines Ready Released Request Waiting Worker",
    "programs": "Attempt Command Ending",
    "sections": "LocalFile Seconds Section TpuSection",
    "steps": "Put Result Sh Step Steps put sh",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)  # noqa: PLE0605  (the table above is the one list)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tpux' has no attribute {name!r}")
    return getattr(import_module(f"tpux.{_MODULE_OF[name]}"), name)
