"""`tpux tasks` (Run): create and show the jobs of a file of tasks."""

from __future__ import annotations

import json as json_
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpux import TpuxError, UsageError, api
from tpux.api.options import Json
from tpux.api.text import print_table, printable
from tpux_tasks.task_file import Task, TaskFile, read

if TYPE_CHECKING:
    from tpux import JsonValue

app = api.new_app()
File = Annotated[Path, typer.Option("--file", "-f", help="The file of tasks.")]
DEFAULT_FILE = Path("tasks.yaml")
CHANGES = "tpux tasks changes its values"
"""Why a job is stopped that is started again at once."""
TRIES = 5
STOPPING = 30.0
"""Seconds for which a job may be stopping: one that was pending has no program to end."""
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]


@app.callback()
def tasks() -> None:
    """Create the jobs of a file of tasks, and continue where it left off."""


@app.command(epilog="Example: tpux tasks run tasks.yaml")
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of tasks.")] = DEFAULT_FILE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be created; create nothing.")] = False,
) -> None:
    """Create a job for each task that has none.

    Typed again, it continues.

    A job is pending until the tasks that it needs have succeeded, and at most max_jobs of an accelerator run at once.
    A task that failed is not created again: see `tpux tasks reset`.
    """
    found = read(file)
    jobs = _jobs_of(found)
    missing = [task for task in found.tasks if task.id not in jobs]
    for task in found.tasks:  # before anything is created
        if task.id not in jobs:
            _check(task, file)
            continue
        _require_same_file(task, jobs[task.id], found)
        if changed := _difference(task, jobs[task.id]):
            hint = f"tpux tasks reset {task.id} --file {file}"
            api.say(f"task {task.id} has changed ({changed}), job {int(jobs[task.id].id)} has not; to start it: {hint}")
    for number, task in enumerate(missing):
        if dry_run:
            api.say(f"would create the job of task {task.id}")
            continue
        try:
            _create(task, found, jobs)
        except (TpuxError, OSError):
            api.say(f"{number} of {len(missing)} jobs created; type the same again to create the others")
            raise
    if not dry_run:
        for task in found.tasks:
            _wait_for_the_present_jobs(task, jobs)
    if not missing:
        api.say(f"each of the {len(found.tasks)} tasks has a job: tpux tasks status {file}")


@app.command(epilog="Example: tpux tasks status tasks.yaml")
def status(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of tasks.")] = DEFAULT_FILE,
    json: Json = False,
) -> None:
    """Show each task of a file with its job."""
    found = read(file)
    jobs = _jobs_of(found)
    if json:
        api.emit([_to_json(task, jobs.get(task.id)) for task in found.tasks])
        return
    of_task = [jobs.get(task.id) for task in found.tasks]
    columns = {
        "task": [task.id for task in found.tasks],
        "job": [str(int(job.id)) if job else "-" for job in of_task],
        "state": [job.state if job else "not created" for job in of_task],
        "needs": [", ".join(task.needs) or "-" for task in found.tasks],
        "progress": [str((job.progress if job else None) or "-") for job in of_task],
        "why": [printable(next(iter(job.why.splitlines()), "")) if job else "-" for job in of_task],
    }
    print_table(columns, always={"task", "state"}, drop=("why", "needs"), shorten={"why": 10, "progress": 12})


@app.command(epilog="Example: tpux tasks reset pretrain")
def reset(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The tasks.", show_default=False)] = None,
    file: File = DEFAULT_FILE,
    all_: Annotated[bool, typer.Option("--all", help="All tasks of the file that have a job.")] = False,
    yes: Yes = False,
) -> None:
    """Start tasks again from scratch, as the file has them now.

    The job is stopped if it has not ended, and keeps its id. Tasks that need it wait for it, unless they have begun.
    """
    if bool(ids) == all_:
        raise UsageError("name tasks, or all of them with --all", hint="tpux tasks reset pretrain")
    found = read(file)
    jobs = _jobs_of(found)
    chosen = [task for task in found.tasks if task.id in jobs] if all_ else [found.task(one) for one in ids or []]
    for task in chosen:
        _job(task, jobs, file)
        _check(task, file)
    for task in chosen:
        job = _job(task, jobs, file)
        if not job.ended:
            api.confirm(f"job {int(job.id)} of task {task.id} is {job.state}. Stop it and start it again?", yes=yes)
            api.stop(job.id)
        # With the config, since the job's words would otherwise stay: what the file no longer has is gone.
        _tpux("rerun", str(int(job.id)), "--config", str(task.config), *_words(task, job, jobs))
        api.say(f"job {int(job.id)} of task {task.id} starts again from scratch")


@app.command(epilog="Example: tpux tasks prioritize ablation-3")
def prioritize(
    name: Annotated[str, typer.Argument(metavar="ID", help="The task.")],
    file: File = DEFAULT_FILE,
) -> None:
    """Let a task start before others of its accelerator.

    They are those that have not begun.
    """
    found = read(file)
    jobs = _jobs_of(found)
    task = found.task(name)
    job = _settled(_job(task, jobs, file))
    if job.state != "pending" and not _is_half_changed(job):
        raise UsageError(f"job {int(job.id)} of task {name} does not wait for its turn: it is {job.state}")
    highest = max(_priority(jobs[one.id]) for one in found.tasks if one.id in jobs and one.group == task.group)
    _change(job, [f"job.group.priority={highest + 1}"])
    api.say(f"job {int(job.id)} of task {name} is the next one of its accelerator")


# --- the jobs ------------------------------------------------------------------------------------


def _tags(task: str, file: str) -> tuple[str, str]:
    return f"tasks={file}", f"task={task}"


def _jobs_of(found: TaskFile) -> dict[str, api.JobInfo]:
    """Return the newest job of each task that has one."""
    jobs = [job for job in api.jobs(warn=api.say) if f"tasks={found.name}" in job.tags]
    return {task.id: job for task in found.tasks for job in jobs if f"task={task.id}" in job.tags}


def _job(task: Task, jobs: Mapping[str, api.JobInfo], file: Path) -> api.JobInfo:
    if (job := jobs.get(task.id)) is None:
        raise UsageError(f"task {task.id} has no job", hint=f"create it: tpux tasks run {file}")
    return job


def _after(task: Task, jobs: Mapping[str, api.JobInfo]) -> list[int]:
    return [int(jobs[one].id) for one in task.needs]


def _words(task: Task, job: api.JobInfo | None, jobs: Mapping[str, api.JobInfo]) -> list[str]:
    """Return all words of the job of a task; a priority that it has remains."""
    group = {"name": task.group, "max_running": task.max_jobs, "priority": _priority(job) if job else 0}
    return [
        *task.words,
        f"job.name={json_.dumps(task.id)}",
        f"job.group={json_.dumps(group)}",
        f"job.after={json_.dumps(_after(task, jobs))}",
    ]


def _create(task: Task, found: TaskFile, jobs: dict[str, api.JobInfo]) -> None:
    """Create the job of a task, unless another process has meanwhile.

    Raises:
        TpuxError: the preflight found an error.
        OSError: it cannot be written.
    """
    given = _sections(task, "job").get("tags")
    own = [*map(str, given if isinstance(given, list) else [given] if given else [])]
    ours = _tags(task.id, found.name)
    tags = f"job.tags={json_.dumps([*dict.fromkeys([*own, *ours])])}"
    try:
        jobs[task.id] = api.submit(task.config, [*_words(task, None, jobs), tags], warn=api.say, once=ours)
    except UsageError:
        if (other := _jobs_of(found).get(task.id)) is None:
            raise
        jobs[task.id] = other
        api.say(f"job {int(other.id)}: {task.id} was created meanwhile")
    else:
        api.say(f"created job {int(jobs[task.id].id)}: {task.id}")


def _sections(task: Task, section: str) -> Mapping[str, JsonValue]:
    found = json_.loads(_tpux("config", "show", "--json", str(task.config), *task.words))
    value = found.get(section) if isinstance(found, dict) else None
    return value if isinstance(value, dict) else {}


def _check(task: Task, file: Path) -> None:
    """Require that a task and its config are valid together.

    Raises:
        UsageError: they are not, or the config has what the file of tasks decides.
    """
    try:
        job = _sections(task, "job")
    except UsageError as error:
        raise UsageError(f"{error}", where=f"task {task.id} of {file}", hint=error.hint) from error
    for key in ("group", "after"):
        if job.get(key):
            hint = "remove it from the config; max_jobs and depends_on of the task are used"
            raise UsageError(f"job.{key}: the file of tasks sets it", where=str(task.config), hint=hint)


def _stored(job: api.JobInfo) -> Mapping[str, JsonValue]:
    with suppress(OSError, ValueError):  # whatever reads the job reports that
        found = json_.loads((job.config_directory / "resolved.json").read_text())
        return found if isinstance(found, dict) else {}
    return {}


def _section_of(job: api.JobInfo, name: str) -> Mapping[str, JsonValue]:
    config = _stored(job).get("config")
    section = config.get(name) if isinstance(config, dict) else None
    return section if isinstance(section, dict) else {}


def _priority(job: api.JobInfo) -> int:
    group = _section_of(job, "job").get("group")
    found = group.get("priority") if isinstance(group, dict) else 0
    return found if isinstance(found, int) else 0


_OWN = ("job.group", "job.after", "job.name", "job.tags")


def _last(words: Sequence[str]) -> dict[str, str]:
    """Return the value that each key of a task has at the end."""
    pairs = dict(word.partition("=")[::2] for word in words)
    return {key: value for key, value in pairs.items() if not key.startswith(_OWN)}


def _difference(task: Task, job: api.JobInfo) -> str:
    """Return the keys in which a task differs from its job."""
    now, then = _last(task.words), _last(job.overrides())
    return ", ".join(key for key in {**then, **now} if now.get(key) != then.get(key))


def _require_same_file(task: Task, job: api.JobInfo, found: TaskFile) -> None:
    """Refuse to mix the tasks of two files of one name.

    Raises:
        UsageError: the job's config is another one.
    """
    path = _stored(job).get("path")
    if isinstance(path, str) and Path(path).resolve() != task.config.resolve():
        raise UsageError(
            f"job {int(job.id)} of task {task.id} has another config, {path}",
            hint=f"if it is of another file of the name {found.name}, give this one `name: NAME`; else: "
            f"tpux delete {int(job.id)}",
        )


def _wait_for_the_present_jobs(task: Task, jobs: Mapping[str, api.JobInfo]) -> None:
    """Let a job that has not begun wait for the jobs that its needs have now: one may have been deleted."""
    job = jobs[task.id]
    after = _after(task, jobs)
    if _is_half_changed(job) or (job.state == "pending" and _section_of(job, "job").get("after", []) != after):
        _change(job, [f"job.after={json_.dumps(after)}"])


def _change(job: api.JobInfo, words: Sequence[str]) -> None:
    """Give a pending job other values: it has done nothing that a stop could lose.

    No lock is held, since a resume with other values may ask the cloud. Another process that changes the same job gets
    its values into the config before or after these, never in place of them; one that died has left the job stopped,
    which its reason says, and is completed here.

    Raises:
        UsageError: the values cannot be changed.
    """
    for tries_left in reversed(range(TRIES)):
        now = _settled(api.job(job.id))
        if now.state != "pending" and not _is_half_changed(now):  # it has begun since it was listed
            api.say(f"job {int(job.id)} is {now.state} by now: it stays as it is")
            return
        if now.state == "pending":
            api.stop(job.id, reason=CHANGES)  # what it holds remains for tpu.keep_on_stop: this may be cut off
        try:
            _tpux("resume", str(int(job.id)), *words)
        except UsageError:
            if not tries_left or _is_half_changed(api.job(job.id)):  # nobody else has started it: it cannot be
                raise
        else:
            return


def _settled(job: api.JobInfo) -> api.JobInfo:
    """Return a job once it is not stopping: another process may be changing its values."""
    if job.state == "stopping":
        with suppress(TimeoutError):
            *_, job = api.follow(job.id, lambda info: info.state != "stopping", timeout=STOPPING, note=api.say)
    return job


def _is_half_changed(job: api.JobInfo) -> bool:
    """Return whether a process has stopped a job to change its values, and has not started it again."""
    return job.state == "stopped" and CHANGES in job.why


def _tpux(*words: str) -> str:
    """Call another command, and return what it prints.

    Raises:
        UsageError: it failed.
    """
    done = subprocess.run([sys.executable, "-P", "-m", "tpux", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        message, _, hint = done.stderr.strip().removeprefix("tpux: error: ").partition("\n  hint: ")
        raise UsageError(message, hint=hint)
    return done.stdout


def _to_json(task: Task, job: api.JobInfo | None) -> dict[str, JsonValue]:
    return {
        "task": task.id,
        "job": job.id if job else None,
        "state": job.state if job else None,
        "needs": [*task.needs],
        "why": job.why if job else "",
        "progress": job.progress.to_json() if job and job.progress else None,
    }
