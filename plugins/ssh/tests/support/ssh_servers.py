"""Real sshd processes on loopback, each with a home directory, a host key and a port of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

CONFIG = """
Port {port}
ListenAddress {address}
HostKey {host_key}
AuthorizedKeysFile {authorized}
PidFile none
LogLevel ERROR
UsePAM no
UseDNS no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 2000
PerSourceMaxStartups none
AcceptEnv nothing
Subsystem sftp internal-sftp
"""


def missing() -> str:
    """What keeps the servers from running here; empty where nothing does."""
    if not Path("/usr/sbin/sshd").exists():
        return "openssh-server is not installed"
    if os.geteuid() != 0:
        return "a server in a mount namespace of its own needs root"
    return "" if shutil.which("unshare") else "unshare (util-linux) is not installed"


@dataclass
class Server:
    """One sshd whose sessions see `home` where the user's home directory is.

    Attributes:
        directory: all that it has on disk.
        address: what it listens on; 0.0.0.0 answers on every 127.x.y.z.
        port: its port.
        lets_in: public keys, a line each.
        extra: lines of its config that come before the others.
        homes: what $HOME is for who comes by another of its addresses.
    """

    directory: Path
    address: str
    port: int
    lets_in: Sequence[str] = ()
    extra: str = ""
    homes: Mapping[str, Path] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def host_key(self) -> str:
        return " ".join((self.directory / "host_key.pub").read_text().split()[:2])

    def start(self) -> Server:
        self.home.mkdir(parents=True, exist_ok=True)
        Path("/run/sshd").mkdir(exist_ok=True)
        if not (self.directory / "host_key").exists():
            self.new_host_key()
        (self.directory / "authorized").write_text("".join(f"{line}\n" for line in self.lets_in))
        config = self.directory / "config"
        config.write_text(
            f"{self.extra}\n"  # of two lines with one keyword the first counts
            + CONFIG.format(
                port=self.port,
                address=self.address,
                host_key=self.directory / "host_key",
                # Outside and inside the home: a set-up adds to the second.
                authorized=f"{self.directory / 'authorized'} %h/.ssh/authorized_keys",
            )
            + "".join(f"Match LocalAddress {at}\n  SetEnv HOME={home}\n" for at, home in self.homes.items())
        )
        own = f'mount --bind "{self.home}" "{_login_home()}" && exec /usr/sbin/sshd -D -e -f "{config}"'
        with (self.directory / "log").open("ab") as log:
            # The files above lie below /tmp, which the mount does not hide.
            self.process = subprocess.Popen(["unshare", "--mount", "sh", "-c", own], stdout=log, stderr=log)
        self._wait()
        return self

    def new_host_key(self) -> None:
        key = self.directory / "host_key"
        key.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True)

    def sessions(self) -> list[int]:
        """The pids of the processes that serve connections."""
        assert self.process
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    def stop(self) -> None:
        if self.process is None:
            return
        for pid in [*self.sessions(), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.process.wait()
        self.process = None

    def _wait(self) -> None:
        target = "127.0.0.1" if self.address == "0.0.0.0" else self.address
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection((target, self.port), 1) as sock:
                if sock.recv(4) == b"SSH-":
                    return
            time.sleep(0.01)
        raise RuntimeError((self.directory / "log").read_text())


def _login_home() -> str:
    """What sshd takes for the user's home, whatever $HOME says."""
    return pwd.getpwuid(os.getuid()).pw_dir


_reserved: list[socket.socket] = []


def free_port() -> int:
    """Reserve a port that nobody listens on.

    The socket stays bound: the kernel gives the port to nobody else, and sshd, which sets SO_REUSEADDR too, can
    still listen on it.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("0.0.0.0", 0))
    _reserved.append(sock)
    return int(sock.getsockname()[1])
