"""What the next attempt resumes from: the newest output of earlier ones that all its workers have, or a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpux.errors import TpuxError
from tpux.lifecycle.turn import Turn
from tpux.model.job import is_url
from tpux.model.machines import Worker
from tpux.model.steps import sh
from tpux.remote.tasks import WorkerTask, retry_unreachable

ResumePoint = tuple[str, "str | None"]
"""The workers' home directory, and the output directory to resume from; None if there is none."""


@dataclass(frozen=True)
class Outputs:
    """The output of earlier attempts on one worker.

    Attributes:
        home: the worker's home directory.
        existing: the output directories that exist there, the newest first; where checkpoints are looked for, those
            that have one.
    """

    home: str
    existing: tuple[str, ...] = ()


def choose(outputs: Sequence[Outputs], stored: str | None, directories: Sequence[str]) -> ResumePoint:
    """Return what the next attempt resumes from.

    Args:
        outputs: what its workers have, the first one's first.
        stored: the output directory in a bucket that has a checkpoint; None if there is none.
        directories: the output directories of all attempts, oldest first.
    """
    first, *others = outputs
    found = [path for path in first.existing if all(path in other.existing for other in others)]
    if stored:
        found.append(stored)
    return first.home, max(found, key=directories.index, default=None)


def find_outputs(turn: Turn, worker: Worker, *, checkpoints: bool) -> WorkerTask[Outputs]:
    """Look on a worker for what the next attempt may resume from.

    Args:
        turn: the step.
        worker: which worker.
        checkpoints: look also for `command.checkpoint`.

    Raises:
        TpuxError: that cannot be found out. The job must not start from scratch for this.
    """
    earlier = () if turn.state.from_scratch else turn.state.outputs[::-1]
    outputs = tuple(directory for directory in earlier if not is_url(directory))
    pattern = (turn.job.command.checkpoint if checkpoints else None) or ""
    find = sh(_FIND_OUTPUTS, directories=outputs, pattern=pattern).script
    found = yield from retry_unreachable(turn.workers, worker, lambda host: host.run(find))
    if not found.ok:
        raise TpuxError(f"cannot search for earlier output: {found.text}", where=f"worker {worker.index}")
    numbers, _, home = found.text.partition("\n")
    return Outputs(home, tuple(outputs[int(number)] for number in numbers.split()[1:]))


# Prints a line with "found" and the numbers of the directories that exist, then the home directory.
# The pattern is expanded by the worker's shell, with IFS empty so that it is never split into words. A directory that
# cannot be examined, such as below a mount that has failed, is not one that does not exist.
_FIND_OUTPUTS = """
IFS=; pattern={pattern}; number=-1 found=
for directory in {directories}; do
  number=$((number + 1))
  [ -e "$directory" ] || error=$(LC_ALL=C stat -L -- "$directory" 2>&1 >/dev/null) || case $error in
    *"No such file or directory"*|*"Not a directory"*) continue ;;
    *) echo "$error"; exit 1 ;;
  esac
  for match in "$directory"${pattern:+/}$pattern; do
    if [ -e "$match" ]; then found="$found $number"; break; fi
  done
done
printf 'found%s\\n%s' "$found" "$HOME"
"""
