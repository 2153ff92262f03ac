"""Transport `sample`: reaches workers through a command such as `kubectl exec`; with a small allocator."""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, ClassVar, cast

from pydantic import Field

from tpux import (
    CHUNK_SIZE,
    Allocation,
    Host,
    HostUnreachableError,
    Job,
    JsonValue,
    MachineStatus,
    ProvisionRequest,
    Ready,
    Released,
    Result,
    Section,
    TpuSection,
    Worker,
    hookimpl,
)

COPY_TIMEOUT = 600.0


class SampleSection(Section):
    """Workers that a command reaches."""

    prefix: list[str]
    """The command that runs what follows on a worker; {} in it is the worker's address."""
    addresses: list[str] = Field(default_factory=list)
    """The workers, for `tpu: {allocation_mode: sample}`."""


class SampleTpuSection(TpuSection):
    """Workers that exist already."""

    transport: ClassVar[str] = "sample"


class SampleHost:
    """A connection to a worker. No method retries: what does not answer is a `HostUnreachableError`."""

    def __init__(self, worker: Worker, prefix: list[str], path: str) -> None:
        self.worker = worker
        self._environment = {**os.environ, "PATH": path}
        self._prefix = [part.replace("{}", worker.address) for part in prefix]

    def run(self, script: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Result:
        """Run a script in the home directory and wait until it ends."""
        pieces: list[bytes] = []
        code = self.follow(script, pieces.append, stdin=stdin, timeout=timeout)
        return Result(code, b"".join(pieces))

    def follow(self, script: str, listen: Callable[[bytes], None], *, stdin: bytes = b"", timeout: float = 60.0) -> int:
        """Run a script, pass its output on as it arrives, and return the exit code."""
        end = time.monotonic() + timeout
        command = [*self._prefix, "sh", "-c", "cd && " + script]
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        output = cast("IO[bytes]", process.stdout).fileno()
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(output, selectors.EVENT_READ)
                while (left := end - time.monotonic()) > 0 and selector.select(left):
                    if not (piece := os.read(output, CHUNK_SIZE)):
                        code = process.wait(timeout=left)
                        return code if code >= 0 else 128 - code
                    listen(piece)
            raise self._unreachable(f"no answer within {timeout:.0f} s")
        except subprocess.TimeoutExpired as error:
            raise self._unreachable(f"no end within {timeout:.0f} s") from error
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            with process:  # closes the pipe, and waits
                pass

    def put(self, source: Path | bytes, remote: str, mode: int = 0o600) -> None:
        """Copy a file or bytes to the worker: the file is there as a whole, or not at all."""
        path = shlex.quote(remote.removeprefix("~/"))
        script = f'p={path}; mkdir -p -- "$(dirname -- "$p")" && cat > "$p.new" && chmod {mode:o} "$p.new"'
        content = source if isinstance(source, bytes) else source.read_bytes()
        self._must(self.run(script + ' && mv -- "$p.new" "$p"', stdin=content, timeout=COPY_TIMEOUT))

    def get(self, remote: str, local: Path) -> None:
        """Copy a file from the worker."""
        local.write_bytes(self._must(self.run(f"cat -- {_quoted(remote)}", timeout=COPY_TIMEOUT)))

    def read(self, *pieces: tuple[str, int]) -> list[bytes | None]:
        """Read several files from an offset each; None where there is none."""
        return [self._read(_quoted(path), offset) for path, offset in pieces]

    def close(self) -> None:
        """Close the connection: nothing is open between two calls."""

    def _read(self, path: str, offset: int) -> bytes | None:
        script = f"[ -e {path} ] || exit 9; tail -c +{offset + 1} -- {path} | head -c {CHUNK_SIZE}"
        done = self.run(script)
        return None if done.code == 9 else self._must(done)

    def _must(self, result: Result) -> bytes:
        if not result.ok:
            raise self._unreachable(result.text)
        return result.output

    def _unreachable(self, message: str) -> HostUnreachableError:
        return HostUnreachableError(message, where=f"worker {self.worker.index}")


def _quoted(path: str) -> str:
    return shlex.quote(path.removeprefix("~/"))


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the plugin's section."""
    return SampleSection


@hookimpl
def resolve() -> Mapping[str, JsonValue]:
    """Return what the user's shell says: the supervisor that connects was started in another one."""
    return {"path": os.environ.get("PATH", os.defpath), "shown": []}


@hookimpl
def connect(worker: Worker, job: Job) -> Host:
    """Return a connection to a worker."""
    section = job.section("sample", SampleSection)
    prefix = section.prefix if section else []
    return SampleHost(worker, prefix, str(job.resolved["sample"]["path"]))


@hookimpl
def tpu_section() -> type[TpuSection]:
    """Return the model of the section `tpu`, which declares the transport."""
    return SampleTpuSection


@hookimpl
def provision(request: ProvisionRequest) -> Ready:
    """Return the machines that the config names; a plugin for machines of its own gets them here."""
    addresses = cast("SampleSection", request.section).addresses
    workers = tuple(Worker(index, address=address) for index, address in enumerate(addresses))
    return Ready(Allocation(request.name, "sample", workers, borrowed=True, costs=False))


@hookimpl
def inspect() -> MachineStatus:
    """Say that the machines exist."""
    return MachineStatus("ready")


@hookimpl
def release() -> Released:
    """Give the machines back: they are the user's own."""
    return Released()
