"""`tpux sync` (Workers): send a new snapshot of a job's code to its workers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from pydantic import ValidationError

from tpux import Put, Result, Sh, Steps, TpuxError, UsageError, api
from tpux.api import machines, new_app, say
from tpux.api.machines import OpenHost
from tpux_code.section import CodeSection
from tpux_code.snapshots import Snapshots
from tpux_code.worker import LARGE, not_awaited, send

if TYPE_CHECKING:
    import click

    from tpux import Job

app = new_app()
_UNKNOWN = 255
"""The exit code of an error after which it is unknown whether what was called has run to its end."""


@app.command(epilog="Example: tpux sync 12 --restart -f\n\nExample: tpux sync 12 --branch main")
def sync(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id or name.")],
    branch: Annotated[str | None, typer.Option(help="Take this branch of the repository.")] = None,
    tag: Annotated[str | None, typer.Option(help="Take this tag.")] = None,
    commit: Annotated[str | None, typer.Option(help="Take this commit.")] = None,
    pr: Annotated[int | None, typer.Option(help="Take this pull request on GitHub.")] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start the program again with it, as tpux restart does.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="With --restart: show the new output until the job has ended.")
    ] = False,
) -> None:
    """Take a new snapshot of a job's code, and send it to its workers.

    The next start of the command uses it: tpux restart, tpux resume, or a recovery. The running program keeps its code.
    """
    from tpux_code.source import describe, lfs_findings, take_snapshot

    if follow and not restart:
        raise UsageError("-f shows the output after a restart", hint=f"tpux sync {job} --restart -f")
    opened = api.open_job(job, reads=["code"])
    given = {"branch": branch, "tag": tag, "commit": commit, "pr": pr}
    section, inside = _section(opened, {name: value for name, value in given.items() if value is not None})
    previous, shown = opened.resolved["code"], int(opened.id)
    answer = take_snapshot(section, previous, inside)
    answer["section"] = previous["section"]  # the config's own: a resume that does not change it keeps this snapshot
    api.update_resolved(opened.id, "code", answer)
    if answer["snapshot"] == previous["snapshot"]:
        say(f"job {shown}: nothing has changed: {describe(answer)}")
    else:
        say(f"job {shown}: code: {describe(answer)}")
    for finding in lfs_findings(answer):
        say(f"warning: {TpuxError(finding.message, where=finding.where, hint=finding.hint)}")
    _send(opened, str(answer["snapshot"]), int(str(answer["size"])), restarts=restart)
    if restart:
        commands = cast("click.Group", context.find_root().command)
        if (command := commands.get_command(context, "restart")) is not None:
            options = ["-y", *(["-f"] if follow else [])]
            raise typer.Exit(command.main([str(shown), *options], "tpux restart", standalone_mode=False) or 0)


def _section(job: Job, revision: dict[str, object]) -> tuple[CodeSection, str]:
    """Return the job's section, with another revision of its repository if one is given, and the directory in it.

    Raises:
        UsageError: the job has no code, or the revision is not valid.
    """
    from tpux_code.git import is_work_tree, place_in_work_tree

    section = job.section("code", CodeSection)
    if section is None or "code" not in job.resolved:
        hint = "add the section `code: .` to its config"
        raise UsageError(f"job {int(job.id)} has no code that could be sent", hint=hint)
    if not revision:
        return section, ""
    keys = section.model_dump(exclude={"branch", "tag", "commit", "pr"}, exclude_unset=True)
    options = ", ".join(f"--{name}" for name in revision)
    place: dict[str, str] = {}
    inside = ""
    if section.dir is not None:  # a directory in a git work tree: its repository can be cloned too
        directory = Path(str(job.resolved["code"]["directory"]))
        if not is_work_tree(directory):
            raise UsageError(f"{options}: {directory} is not in a git work tree")
        top, inside = place_in_work_tree(directory)
        keys["repo"] = keys.pop("dir") and "."  # only a section with a repository may name a revision
        place["repo"] = str(top)
    try:
        return CodeSection.model_validate({**keys, **revision}).model_copy(update=place), inside
    except ValidationError as error:
        # Only the messages: the values include the URL of the repository, which may have a password.
        messages = "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors(include_input=False))
        raise UsageError(f"{options}: {messages}") from None


def _send(job: Job, snapshot: str, size: int, *, restarts: bool) -> None:
    """Send a snapshot of that many bytes to the job's workers, if it holds any: the next start need not wait for it."""
    if machines.allocation_of(job) is None:
        say("the job holds no machines now: the code is sent when it has some")
        return
    connection, snapshots = api.workers(job.id), Snapshots()
    workers = connection.allocation.workers
    is_large = size * len(workers) > LARGE  # to ask how the workers reach each other takes a moment
    peers = {worker.index: connection.peers_of(worker) for worker in workers} if is_large else {}

    def send_to(host: OpenHost) -> None:
        index = host.worker.index
        try:
            _run(host, send(job, snapshots, snapshot, index, peers.get(index, ())))
        except TpuxError:
            with suppress(TpuxError):  # it does not get the code: let no other worker wait for that
                host.run(not_awaited(snapshot).script)
            raise

    answers = connection.each(workers, send_to)
    failed = {index: answer for index, answer in answers.items() if isinstance(answer, TpuxError)}
    for index, error in failed.items():
        worker = f"worker {index}: "
        say(f"warning: {worker}{str(error).removeprefix(worker)}")
    shown = int(job.id)
    if any(error.exit_code == _UNKNOWN for error in failed.values()):  # no restart: it would hide that
        problem, hint = "whether the workers have the new code is unknown", f"send it again: tpux sync {shown}"
        raise TpuxError(problem, hint=hint, exit_code=_UNKNOWN)
    if failed and len(failed) == len(answers):
        say(f"sent to no worker: the set-up sends it when the job has workers that answer; see: tpux show {shown}")
        return
    if restarts:
        say(f"sent to {len(answers) - len(failed)} of {len(answers)} workers")
        return
    state = api.job(job.id).state
    starting = "" if state in {"running", "stopped", "failed", "succeeded"} else "once the job runs, "
    command = "rerun" if state == "succeeded" else "restart"
    say(f"sent to {len(answers) - len(failed)} of {len(answers)} workers; {starting}start it: tpux {command} {shown}")


def _run(host: OpenHost, steps: Steps) -> None:
    """Run steps on a worker, each within its own timeout; the set-up repeats those that are interrupted here.

    Raises:
        TpuxError: a step failed.
    """
    result = Result()
    step = next(steps, None)
    while step is not None:
        if isinstance(step, Put):
            host.put(step.source, step.remote, step.mode)
        else:
            result = _run_script(host, step)
        try:
            step = steps.send(result)
        except StopIteration:
            return


def _run_script(host: OpenHost, step: Sh) -> Result:
    result = host.run(f"set -e\n{step.script}", timeout=step.timeout)
    if not (result.ok or step.may_fail):
        first, last = step.script.strip().splitlines()[0], (result.text.splitlines() or ["no output"])[-1]
        raise TpuxError(f"`{first.removeprefix('# ')}` exited with {result.code}: {last}")
    return result
