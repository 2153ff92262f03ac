"""What a transport promises: a `Host` that behaves as `Host` documents, byte for byte."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tpux.errors import HostUnreachableError, TpuxError
from tpux.model.host import CHUNK_SIZE, OpenHost, Stream
from tpux.model.machines import Worker
from tpux.plugin import spec
from tpux.plugin.connect import GuardedHost
from tpux.plugin.guard import PluginError
from tpux_testing.contract import ContractError, contract
from tpux_testing.sandbox import Config, Sandbox

_ALL_BYTES = bytes(range(256)) * 1024
_DIRECTORY = 'it\'s a "directory" $HOME*'
_STREAMED = 10.0
"""Seconds that a script waits for the answer to its first line."""


@contract
def transport_contract(
    word: str,
    worker: Worker | None = None,
    config: Config | None = None,
    *,
    plugin: object = None,
    unreachable: Worker | None = None,
) -> None:
    """Test that a transport's `Host` keeps what core relies on.

    Scripts run in the home directory, with stdin, exit codes and output as they are; files are copied with their mode
    and read from any offset; output arrives while a script runs; a worker that does not answer in time is
    `HostUnreachableError`, and no other exception.

    Args:
        word: the transport.
        worker: a worker whose home directory is the test's own; by default a directory on this machine, named in
            `details["home"]`.
        config: the job's config.
        plugin: the module or object to use, if it is not installed.
        unreachable: a worker that does not exist, if the transport can tell.

    Raises:
        ContractError: the transport does not keep it.

    Example:
        def test_contract(sshd):
            transport_contract("ssh", worker(address=f"127.0.0.1:{sshd.port}"))
    """
    with Sandbox({} if plugin is None else {word: plugin}) as sandbox, tempfile.TemporaryDirectory() as local:
        job = sandbox.job(config or {})

        def connect(to: Worker) -> OpenHost:
            host = sandbox.plugins.call_one(word, spec.connect, worker=to, job=job)
            if host is None:
                raise ContractError(word, "connect", "a transport implements connect")
            return GuardedHost(
                host, to, sandbox.plugins, word
            )  # as in core: wrong results name the plugin and the method

        host = connect(worker or sandbox.new_host().worker)
        try:
            check = _Checks(word, host)
            check.scripts()
            check.output_is_passed_on(lambda: connect(host.worker))
            check.streams()
            check.files(Path(local))
            check.reads()
            check.timeouts()
            host.close()
            host.close()  # core may close a connection twice
        except (ContractError, TpuxError):
            raise
        except OSError as error:  # core expects none from a connection
            raise ContractError(word, "connect", f"a method of the OpenHost raised {error!r}") from error
        if unreachable is not None:
            _unreachable_worker(word, connect, unreachable)


class _Checks:
    """Checks of one connection."""

    def __init__(self, word: str, host: OpenHost) -> None:
        self._word, self._host = word, host

    def expect(self, what: str, expected: object, got: object, method: str) -> None:
        """Compare a result.

        Args:
            what: what was tried.
            expected: the right result.
            got: the plugin's result.
            method: the method of `Host` that returned it.
        """
        if got != expected:
            message = f"OpenHost.{method}: {what}: expected {_short(expected)}, got {_short(got)}"
            raise ContractError(self._word, "connect", message)

    def scripts(self) -> None:
        """Check `run`."""
        run, expect = self._host.run, self.expect
        expect(
            "the working directory is not the home directory", "same", run('[ . -ef "$HOME" ] && echo same').text, "run"
        )
        result = run("printf 'out\\n'; printf 'err\\n' >&2; exit 3")
        expect("stdout and stderr together", b"out\nerr\n", result.output, "run")
        expect("the exit code of a script that fails", 3, result.code, "run")
        expect("the exit code after SIGKILL", 137, run("kill -9 $$").code, "run")
        expect("stdin and output are bytes, unchanged", _ALL_BYTES, run("cat", stdin=_ALL_BYTES).output, "run")
        expect("a script that does not read its stdin", 0, run("true", stdin=_ALL_BYTES).code, "run")
        expect("without stdin there is end of file", b"", run("cat").output, "run")
        script = "echo \"it's $((1 + 1))\"\n# a comment\necho '$HOME' \\\\"
        expect("quotes in a script", b"it's 2\n$HOME \\\n", run(script).output, "run")
        expect(
            "nothing is changed in the output", b"a\r\n\x1b[1m\0", run("printf 'a\\r\\n\\033[1m\\000'").output, "run"
        )

    def streams(self) -> None:
        """Check `stream`, which not every host has."""
        if (stream := getattr(self._host, "stream", None)) is None:
            return
        script = 'rm -f contract-heard; echo first; until [ -e contract-heard ]; do sleep 0.1; done; [ . -ef "$HOME" ]'
        started: Stream = stream(f"{script} && echo second >&2")
        received = self._take(started, until=b"first\n")
        self._host.put(b"", "contract-heard")  # beside it
        received += self._take(started, until=None)
        self.expect("all output, in order, while other calls are made", b"first\nsecond\n", received, "stream")
        started.close()
        self.expect("after its end", None, started.take(), "stream")

    def _take(self, stream: Stream, until: bytes | None) -> bytes:
        """Take output until it is `until`; None: until the script has ended."""
        received, deadline = b"", time.monotonic() + _STREAMED
        while (piece := stream.take()) is not None and (until is None or received + piece != until):
            received += piece
            if time.monotonic() > deadline:
                self.expect("output arrives before the script ends, and its end is noticed", until, received, "stream")
                raise ContractError(self._word, "connect", f"Host.stream: it has not ended after {_STREAMED:g} s")
            time.sleep(0.01)
        return received + (piece or b"")

    def output_is_passed_on(self, connect: Callable[[], OpenHost]) -> None:
        """Check `follow`: the script ends once its first line has arrived here."""
        received: list[bytes] = []
        other = connect()

        def listen(piece: bytes) -> None:
            received.append(piece)
            other.put(b"", "contract-heard")

        script = (
            "rm -f contract-heard; echo first; n=0\n"
            f"while [ ! -e contract-heard ] && [ $n -lt {_STREAMED * 10:.0f} ]; do sleep 0.1; n=$((n + 1)); done\n"
            "[ -e contract-heard ] || exit 9\necho second >&2; exit 5"
        )
        try:
            code = self._host.follow(script, listen)
        finally:
            other.close()
        self.expect("output is passed on before the script ends (9: it was not)", 5, code, "follow")
        self.expect("all output, in order", b"first\nsecond\n", b"".join(received), "follow")
        received.clear()
        code = self._host.follow("cat", received.append, stdin=_ALL_BYTES)
        self.expect("stdin and output are bytes, unchanged", (0, _ALL_BYTES), (code, b"".join(received)), "follow")

    def files(self, local: Path) -> None:
        """Check `put` and `get`."""
        host, name = self._host, f"{_DIRECTORY}/a file"
        self.expect("a file that does not exist", [None], host.read(("contract-missing", 0)), "read")
        host.put(_ALL_BYTES, name, mode=0o640)
        listed = host.run("cd it* && ls -A | wc -l && stat -c %a *")
        self.expect(
            "number of files (no temporary one remains), and the mode", ["1", "640"], listed.text.split(), "put"
        )
        host.get(name, local / "copy")
        self.expect("a copied file", _ALL_BYTES, (local / "copy").read_bytes(), "get")
        (local / "source").write_bytes(b"shorter")
        host.put(local / "source", f"~/{name}")
        self.expect("a file that was replaced (~/ is the home directory)", [b"shorter"], host.read((name, 0)), "read")
        self.expect("the default mode", "600", host.run("stat -c %a it*/*").text, "put")
        try:
            host.put(local / "missing", "contract-missing")
        except FileNotFoundError:
            pass
        else:
            raise ContractError(self._word, "connect", "Host.put: a local file that does not exist raises no error")
        self.expect("after a put that failed", [None], host.read(("contract-missing", 0)), "put")

    def reads(self) -> None:
        """Check `read`."""
        big = _ALL_BYTES * (CHUNK_SIZE // len(_ALL_BYTES)) + b"end"
        self._host.put(big, "contract-big")
        pieces = [("contract-big", 0), ("contract-none", 0), ("contract-big", CHUNK_SIZE), ("~/contract-big", len(big))]
        expected = [big[:CHUNK_SIZE], None, b"end", b""]
        self.expect("several files, from offsets", expected, self._host.read(*pieces), "read")
        self.expect("an offset beyond the end", [b""], self._host.read(("contract-big", len(big) + 9)), "read")

    def timeouts(self) -> None:
        """Check that a script that takes too long is an unreachable worker."""
        calls: dict[str, Callable[[], object]] = {
            "run": lambda: self._host.run("sleep 60", timeout=0.5),
            "follow": lambda: self._host.follow("sleep 60", lambda _: None, timeout=0.5),
        }
        for method, call in calls.items():
            try:
                call()
            except HostUnreachableError:
                continue
            except PluginError as error:
                got = error.message
            except TpuxError as error:
                got = type(error).__name__
            else:
                got = "a result"
            self.expect("a script that exceeds its timeout", "HostUnreachableError", got, method)


def _unreachable_worker(word: str, connect: Callable[[Worker], OpenHost], worker: Worker) -> None:
    try:
        connect(worker).run("true", timeout=30)
    except HostUnreachableError:
        return
    except Exception as error:  # noqa: BLE001  (any other exception of the plugin is the finding)
        got = f"{type(error).__name__}: {error}"
    else:
        got = "an answer"
    message = f"a worker that does not exist must raise HostUnreachableError from connect or run; got {got}"
    raise ContractError(word, "connect", message)


def _short(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_short, value)) + "]"
    if isinstance(value, bytes) and len(value) > 60:
        return f"{len(value)} bytes"
    return repr(value)
