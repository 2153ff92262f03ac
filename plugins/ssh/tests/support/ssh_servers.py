"""Real sshd processes on loopback, each with its own home directory, host key and port."""

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
    """Return why the servers cannot run on this machine, or '' if they can."""
    if not Path("/usr/sbin/sshd").exists():
        return "openssh-server is not installed"
    if os.geteuid() != 0:
        return "running a server in its own mount namespace needs root"
    return "" if shutil.which("unshare") else "unshare (util-linux) is not installed"


@dataclass
class Server:
    """An sshd whose sessions see `home` in place of the user's home directory.

    Attributes:
        directory: directory of its files.
        address: listen address; 0.0.0.0 accepts connections to every 127.x.y.z.
        port: its port.
        authorized_keys: public keys, one line each.
        extra: lines to insert at the beginning of its config.
        homes: $HOME for connections to other addresses, by address.
        namespace: the network namespace that it runs in; this process's if it is empty.
    """

    directory: Path
    address: str
    port: int
    authorized_keys: Sequence[str] = ()
    extra: str = ""
    homes: Mapping[str, Path] = field(default_factory=dict)
    namespace: str = ""
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
        (self.directory / "authorized").write_text("".join(f"{line}\n" for line in self.authorized_keys))
        config = self.directory / "config"
        config.write_text(
            f"{self.extra}\n"  # sshd uses the first line for a keyword
            + CONFIG.format(
                port=self.port,
                address=self.address,
                host_key=self.directory / "host_key",
                # One outside the home; setup adds to the one inside.
                authorized=f"{self.directory / 'authorized'} %h/.ssh/authorized_keys",
            )
            # Each address stands for a machine.
            + ("" if self.homes else f"SetEnv TPUX_MACHINE_DIR={self.directory}\n")
            + "".join(
                f"Match LocalAddress {at}\n  SetEnv HOME={home} TPUX_MACHINE_DIR={home}\n"
                for at, home in self.homes.items()
            )
        )
        own = f'mount --bind "{self.home}" "{_login_home()}" && exec /usr/sbin/sshd -D -e -f "{config}"'
        with (self.directory / "log").open("ab") as log:
            # The files above are in /tmp, which the mount does not hide.
            inside = ["ip", "netns", "exec", self.namespace] if self.namespace else []
            self.process = subprocess.Popen([*inside, "unshare", "--mount", "sh", "-c", own], stdout=log, stderr=log)
        self._wait()
        return self

    def new_host_key(self) -> None:
        key = self.directory / "host_key"
        key.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True)

    def sessions(self) -> list[int]:
        """Return the pids of the processes that serve connections."""
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
    """Return the user's home directory as sshd determines it, which ignores $HOME."""
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
