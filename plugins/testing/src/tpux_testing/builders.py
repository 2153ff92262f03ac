"""Builders of what hooks are called with: a job, a worker, a request for machines, an attempt that has ended."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from tpux.model.job import Attempt, Job, WorkerExit
from tpux.model.json import SavedState
from tpux.model.machines import MachineState, MachineStatus, ProvisionRequest, Worker
from tpux_testing.sandbox import Config, Sandbox, provision_request


def job(
    config: Config | None = None,
    *,
    plugins: Mapping[str, object] | None = None,
    directory: Path | None = None,
) -> Job:
    """Return a job, validated from its config as `tpux create` does, with the answers of the plugins' `resolve`.

    Args:
        config: the config as text or as a mapping; without the section `command`, it runs `true`.
        plugins: plugins that are not installed, by name.
        directory: the job's directory; by default a new one, which is deleted when Python exits.

    Raises:
        ConfigError: the config is invalid, or needs a plugin that is neither installed nor given.

    Example:
        job({"apt": {"packages": ["htop"]}, "setup": {"modules": ["apt"]}}, plugins={"apt": tpux_apt})
    """
    return _job(config or {}, plugins, directory or _new_directory())


def worker(index: int = 0, *, slice: int = 0, address: str = "127.0.0.1", **details: str) -> Worker:  # noqa: A002
    """Return a worker.

    Args:
        index: its number in the whole allocation.
        slice: the number of its slice.
        address: the address that the transport connects to, also the internal one.
        details: further data for the transport.

    Example:
        worker(1, address="10.0.0.2", port="2222")
    """
    return Worker(index, slice=slice, address=address, internal_ip=address, details=details)


def request(
    config: Config | None = None,
    *,
    name: str = "train-000001",
    saved_state: SavedState | None = None,
    public_keys: tuple[str, ...] = (),
    plugins: Mapping[str, object] | None = None,
    directory: Path | None = None,
) -> ProvisionRequest:
    """Return what a job asks of the allocator that its config names.

    Args:
        config: the job's config, as for `job`.
        name: the request's name; `provision` is idempotent on it.
        saved_state: the state of the allocator's last answer.
        public_keys: the keys to install on the machines.
        plugins: plugins that are not installed, by name.
        directory: a directory that the allocator may write to; by default a new one.

    Raises:
        ConfigError: the config is invalid.

    Example:
        answer = provision(request({"tpu": {"allocation_mode": "local", "accelerator": "v4-16"}}))
    """
    directory = directory or _new_directory()
    made = _job(config or {}, plugins, directory)
    return provision_request(made, name, directory, saved_state=saved_state, public_keys=public_keys)


def attempt(
    logs: str | bytes | Mapping[int, str | bytes] = "",
    codes: int | Mapping[int, int | None] | None = 1,
    *,
    number: int = 1,
    machines: MachineState = "ready",
) -> Attempt:
    """Return an attempt that has ended, for `classify_failure`.

    Args:
        logs: the program's output by worker; text alone is the output of worker 0.
        codes: the exit codes by worker; a code alone is that of every worker, None is an unknown one.
        number: the attempt's number.
        machines: the state of the machines after the end.

    Example:
        [failure] = classify_failure(attempt(logs={0: "ok", 1: "RESOURCE_EXHAUSTED"}, codes={0: 0, 1: 1}))
        assert (failure.kind, failure.worker) == ("out-of-memory", 1)
    """
    outputs = logs if isinstance(logs, Mapping) else {0: logs}
    numbers = sorted({*outputs, *(codes if isinstance(codes, Mapping) else ())})
    directory = _new_directory()
    endings = []
    for index in numbers:
        log = directory / f"command_worker_{index}.log"
        content = outputs.get(index, "")
        log.write_bytes(content if isinstance(content, bytes) else content.encode())
        code = codes.get(index, 1) if isinstance(codes, Mapping) else codes
        endings.append(WorkerExit(index, code, log, at=1_000_000.0 + index))
    return Attempt(number, tuple(endings), MachineStatus(machines))


def _job(config: Config, plugins: Mapping[str, object] | None, directory: Path) -> Job:
    with Sandbox(plugins, _new_directory()) as sandbox:  # kept: the job's sections may name files in it
        return replace(sandbox.job(config), id="000001", directory=directory)


def _new_directory() -> Path:
    return Path(tempfile.mkdtemp(dir=_root()))


@cache
def _root() -> Path:
    path = Path(tempfile.mkdtemp(prefix="tpux-testing-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
