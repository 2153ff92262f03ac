"""What went wrong in a job's last steps, and the calls of plugins that were abandoned because they did not return.

A call is abandoned when a stop or delete has to replace the supervisor's process to end it (`supervisor/handover.py`):

| abandoned | the job is stopped without |
|---|---|
| `run` of the environment | the environment's own steps to end the program |
| a hook of the transport | any contact with the workers: programs may still run, and the machines can be released |
| what opens the job (import, section, validation) | that plugin, as if it was not usable |
| `inspect` | the allocator's answer to who a worker is now: one that was rebuilt stays unreachable |
| `release` | nothing: `delete` reports it and keeps the record; `delete --force` removes the record |

An abandoned `provision` leaves its mark, `ProvisionRequest.interrupted`, since what it sent may still take effect. The
allocator of a job that has ended is called again, since nothing else can release its machines. A resume, rerun or setup
calls everything again, and so does a supervisor that was not started by the one before it: nothing of this is stored.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from tpux.errors import TpuxError
from tpux.lifecycle import policy
from tpux.model.failures import Failure
from tpux.plugin import calls, spec
from tpux.plugin.calls import RunningCall
from tpux.plugin.guard import AbandonedCallError, PluginError, UnusablePluginError

_log = logging.getLogger(__name__)
PLUGIN_TIMEOUT = 30.0
"""Seconds for which a job that is stopping waits for a plugin that is not usable: it may be being upgraded."""


class JobErrors:
    """The errors of one job.

    Args:
        job: the job's id.
        abandoned: the message about each call that a stop or delete has abandoned, by `call_key`.

    Attributes:
        problems: steps in a row that have raised an error.
        last_error: the last of them.
        unwritten: what the job's `why` would be if it could be written; "" if nothing is missing.
        failing: the failure of a job whose steps keep raising errors, while its programs are terminated.
        plugin_errors: how often each plugin's hook has failed in the job's current state.
        inspect_errors: how often in a row the allocator's `inspect` has failed.
        machines_hint: what the user must do, as the allocator has said last; "" if nothing.
        short_polls: how often in a row the allocator requested its next call sooner than `machines.SHORTEST_POLL`.
        abandoned: as above; a call is removed once it may be made again.
    """

    def __init__(self, job: str, abandoned: Mapping[str, str]) -> None:
        self.problems = 0
        self.last_error = ""
        self.unwritten = ""
        self.failing: Failure | None = None
        self.plugin_errors: Counter[tuple[str, str]] = Counter()
        self.inspect_errors = 0
        self.machines_hint = ""
        self.short_polls = 0
        self.abandoned = dict(abandoned)
        self._job = job
        self._unusable_since: float | None = None

    def entered_state(self) -> None:
        """Count from 0 again: the job has entered a state, whose steps have not failed yet."""
        self.failing = None
        self.plugin_errors.clear()
        self.inspect_errors = self.short_polls = 0

    def succeeded(self) -> None:
        """Count the steps in a row that raise from 0 again."""
        self.problems, self.last_error, self.unwritten = 0, "", ""

    def is_last_try(self, error: TpuxError) -> bool:
        """Return True if a hook that failed has been tried as often as `policy.PLUGIN_TRIES` allows."""
        if not isinstance(error, PluginError):
            return True
        tries = policy.PLUGIN_TRIES.get(error.hook)
        return tries is not None and self.plugin_errors[error.plugin, error.hook] + 1 >= tries

    def waited_for_plugin(self, error: UnusablePluginError, now: float) -> bool:
        """Return True if a job that is stopping continues without an unusable plugin: it has waited `PLUGIN_TIMEOUT`.

        Meanwhile a plugin that is just being upgraded is usable again, in a new process of the supervisor.

        Args:
            error: why the plugin is not usable.
            now: the time, by the monotonic clock.
        """
        if isinstance(error, AbandonedCallError):
            return True
        self._unusable_since = now if self._unusable_since is None else self._unusable_since
        if now - self._unusable_since < PLUGIN_TIMEOUT:
            return False
        _log.warning("job %s: stopping without a plugin: %s", self._job, error.message)
        return True

    def abandoned_transport(self) -> str:
        """Return the message about a call of the transport that was abandoned; "" if none was.

        What a transport's connection does counts as `connect`.
        """
        return self.abandoned.get(spec.connect.__name__, "")

    def retry_abandoned(self) -> None:
        """Call again whatever was abandoned: the user has started the job again."""
        self.abandoned.clear()

    def retry_plugin(self, plugin: str) -> bool:
        """Call a plugin again until the process is replaced; return False if none of its calls was abandoned."""
        return bool(self.abandoned.pop(f"plugin {plugin}", ""))


def call_key(call: RunningCall) -> str:
    """Return the key of a call in `abandoned`: `plugin NAME` if the job cannot be opened without it, else the hook."""
    opening = {calls.IMPORT, calls.VALIDATION, spec.config_section.__name__, spec.tpu_section.__name__}
    return f"plugin {call.name}" if call.hook in opening else call.hook
