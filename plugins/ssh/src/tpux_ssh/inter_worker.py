"""Logins from each worker of a job to each other, with a key of this job alone."""

from __future__ import annotations

from tpux import Allocation, Job, Steps, Worker, machines_of, put, sh
from tpux_ssh.host_keys import HostKeys, known_hosts_lines
from tpux_ssh.keyfiles import make_key, public_line
from tpux_ssh.target import PORT, Target, target_of

KEY_NAME = "tpux_between_workers"
"""The key's name on the workers, and what its line in authorized_keys says."""
KNOWN_HOSTS_NAME = "tpux_known_hosts"


class InterWorkerLogin:
    """The workers of a job as they reach each other."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._machines: Allocation | None = machines_of(job)

    def setup(self) -> Steps:
        """Steps that put the key on a worker, let it in there, and make the others' host keys known."""
        if self._machines is None:  # a dry run: there is no job whose key it could be
            private, line = b"(the job's key)\n", "ssh-ed25519 (the job's key)"
            yield put(private, f".ssh/{KEY_NAME}", mode=0o600)
        else:
            key = make_key(self._job.directory / "ssh" / KEY_NAME, KEY_NAME)
            line = public_line(key)
            yield put(key, f".ssh/{KEY_NAME}", mode=0o600)
        yield sh(_AUTHORIZE, line=f"{line} {KEY_NAME}", mark=KEY_NAME)
        yield put(self._known_hosts().encode(), f".ssh/{KNOWN_HOSTS_NAME}", mode=0o600)

    def config_entry(self) -> str:
        """The lines for ~/.ssh/config."""
        names = {worker.index: _hosts(worker, target) for worker, target in self._targets()}
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
            # Whoever is not in there yet is remembered at the first login; a changed key is refused.
            "  StrictHostKeyChecking accept-new",
        ]
        return "\n".join([*ports, *common])

    def _known_hosts(self) -> str:
        """The host keys that are known by now: the allocator's, or those that tpux itself has met."""
        return "".join(
            known_hosts_lines(
                [Target(host, target.port, target.user).known_hosts_name for host in _hosts(worker, target)],
                HostKeys(worker, target, self._job).trusted(),
            )
            for worker, target in self._targets()
        )

    def _targets(self) -> list[tuple[Worker, Target]]:
        workers = self._machines.workers if self._machines else ()
        return [(worker, target_of(worker, self._job)) for worker in workers]


def _hosts(worker: Worker, target: Target) -> list[str]:
    return list(dict.fromkeys(name for name in (worker.internal_ip, target.host) if name))


# One line at most is tpux's: machines that one keeps do not gather the keys of all jobs that were there.
_AUTHORIZE = """
umask 077
keys=.ssh/authorized_keys
[ -e $keys ] || : >$keys
grep -v {mark} $keys >$keys.tpux || :
echo {line} >>$keys.tpux
chmod 600 $keys.tpux
mv -f $keys.tpux $keys
"""
