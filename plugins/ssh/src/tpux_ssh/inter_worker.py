"""SSH logins between the workers of a job, with a key pair that only this job uses."""

from __future__ import annotations

from tpux import Allocation, Job, Steps, Worker, put, sh
from tpux_ssh.address import PORT, Target
from tpux_ssh.host_keys import HostKeys, known_hosts_lines
from tpux_ssh.keyfiles import make_key, public_line
from tpux_ssh.section import SshSection
from tpux_ssh.target import target_of

KEY_NAME = "tpux_between_workers"
"""Name of the key file on the workers, and comment of its line in authorized_keys."""
KNOWN_HOSTS_NAME = "tpux_known_hosts"


def may_log_in(job: Job, config: SshSection) -> bool:
    """Return whether the job's workers log in to each other.

    By default they do where a module copies from other workers. Machines that tpux did not create keep the key if they
    do not answer at the job's end, so they get it only if the config asks for it.

    Args:
        job: the job.
        config: its section `ssh`.
    """
    from tpux.api.machines import allocation_of

    if config.between_workers is not None:
        return config.between_workers
    allocation = allocation_of(job)
    if allocation is None or allocation.borrowed or len(allocation.workers) < 2:
        return False
    return any(job.sections[word].uses_peers() for word in job.modules if word in job.sections)


class InterWorkerLogin:
    """The files that let a job's workers log in to each other."""

    def __init__(self, job: Job) -> None:
        from tpux.api.machines import allocation_of

        self._job = job
        self._allocation: Allocation | None = allocation_of(job)

    def setup(self) -> Steps:
        """Install the key, authorize it, and install the other workers' host keys."""
        if self._allocation is None:  # a dry run, which must not create a key
            private, line = b"(the job's key)\n", "ssh-ed25519 (the job's key)"
            yield put(private, f".ssh/{KEY_NAME}", mode=0o600)
        else:
            key = make_key(self._job.directory / "ssh" / KEY_NAME, KEY_NAME)
            line = public_line(key)
            yield put(key, f".ssh/{KEY_NAME}", mode=0o600)
        yield sh(_AUTHORIZE, line=f"{line} {KEY_NAME}", comment=KEY_NAME)
        yield put(self._known_hosts().encode(), f".ssh/{KNOWN_HOSTS_NAME}", mode=0o600)

    def config_entry(self) -> str:
        """Return the lines for ~/.ssh/config."""
        names = {worker.index: _addresses(worker, target) for worker, target in self._targets()}
        ports = [
            f"Host {' '.join(names[worker.index])}\n  Port {target.port}"
            for worker, target in self._targets()
            if target.port != PORT
        ]
        users = dict.fromkeys(target.user for _, target in self._targets())
        common = [
            f"Host {' '.join(name for own in names.values() for name in own)}",
            *(f"  User {user}" for user in list(users)[:1]),
            f"  IdentityFile ~/.ssh/{KEY_NAME}",
            f"  UserKnownHostsFile ~/.ssh/{KNOWN_HOSTS_NAME} ~/.ssh/known_hosts",
            # An unknown key is accepted and stored at the first login; a changed one is rejected.
            "  StrictHostKeyChecking accept-new",
        ]
        return "\n".join([*ports, *common])

    def _known_hosts(self) -> str:
        """Return the known_hosts lines for all workers whose host keys the job knows so far."""
        return "".join(
            known_hosts_lines(
                [Target(host, target.port, target.user).known_hosts_name for host in _addresses(worker, target)],
                HostKeys(worker, target, self._job).trusted(),
            )
            for worker, target in self._targets()
        )

    def _targets(self) -> list[tuple[Worker, Target]]:
        workers = self._allocation.workers if self._allocation else ()
        return [(worker, target_of(worker, self._job)) for worker in workers]


def _addresses(worker: Worker, target: Target) -> list[str]:
    return list(dict.fromkeys(name for name in (worker.internal_ip, target.host) if name))


# Replaces the line of an earlier job, so that permanent machines do not accumulate the keys of all their jobs. The file
# may be a symbolic link. grep exits with 1 if no line is left, and with 2 if it could not write.
_AUTHORIZE = """
umask 077
keys=$(readlink -f .ssh/authorized_keys || echo .ssh/authorized_keys)
[ -e "$keys" ] || : >"$keys"
grep -v {comment} "$keys" >"$keys.tpux" || [ $? = 1 ]
echo {line} >>"$keys.tpux"
chmod 600 "$keys.tpux"
mv -f "$keys.tpux" "$keys"
"""
