"""Tools for the tests of plugins: builders of what hooks are called with, runs of steps and jobs, and contracts.

A contract is a function that tests what core relies on, and raises `ContractError`, an AssertionError that names the
plugin and the hook. `hooks_contract` and `section_contract` run no steps. None of them imports pytest.
docs/plugins/testing.md has a complete example. Names are imported when they are first used (PEP 562), since every
session of pytest imports this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpux_testing.allocators import allocator_contract as allocator_contract
    from tpux_testing.builders import attempt as attempt
    from tpux_testing.builders import job as job
    from tpux_testing.builders import request as request
    from tpux_testing.builders import worker as worker
    from tpux_testing.commands import CommandLine as CommandLine
    from tpux_testing.commands import command_contract as command_contract
    from tpux_testing.contract import ContractError as ContractError
    from tpux_testing.environments import environment_contract as environment_contract
    from tpux_testing.modules import module_contract as module_contract
    from tpux_testing.modules import prepare as prepare
    from tpux_testing.observers import detector_contract as detector_contract
    from tpux_testing.observers import listener_contract as listener_contract
    from tpux_testing.plugin_check import LocalFixture as LocalFixture
    from tpux_testing.runs import JobRun as JobRun
    from tpux_testing.runs import run_job as run_job
    from tpux_testing.static import hooks_contract as hooks_contract
    from tpux_testing.static import section_contract as section_contract
    from tpux_testing.steps import StepsTaken as StepsTaken
    from tpux_testing.steps import WorkerSteps as WorkerSteps
    from tpux_testing.steps import steps_of as steps_of
    from tpux_testing.transports import transport_contract as transport_contract

_MODULES = {
    "allocators": "allocator_contract",
    "builders": "attempt job request worker",
    "commands": "CommandLine command_contract",
    "contract": "ContractError",
    "environments": "environment_contract",
    "modules": "module_contract prepare",
    "observers": "detector_contract listener_contract",
    "plugin_check": "LocalFixture",
    "runs": "JobRun run_job",
    "static": "hooks_contract section_contract",
    "steps": "StepsTaken WorkerSteps steps_of",
    "transports": "transport_contract",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)  # noqa: PLE0605  (the table above is the one list)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tpux_testing' has no attribute {name!r}")
    return getattr(import_module(f"tpux_testing.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
