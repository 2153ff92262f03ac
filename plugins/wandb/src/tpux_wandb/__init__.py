"""Detector `wandb`: whether a run finished by its own record, one run across resumes, its URL and summary."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Generator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import PurePosixPath
from typing import cast

from tpux import Attempt, Command, Finished, Job, JsonValue, Result, Section, Step, Worker, hookimpl, sh
from tpux.fields import find_line
from tpux_wandb.read_run import MARKER
from tpux_wandb.section import WandbSection

READER = (files("tpux_wandb") / "read_run.py").read_text()
STARTED = """
mkdir -p "$1" "$WANDB_DIR"
tpux_wandb=$(cd "$WANDB_DIR" >/dev/null && pwd -P)
{
    printf '%s\\0' "$(command -v wandb)" "$tpux_wandb" "$WANDB_RUN_ID"
    [ -z "$WANDB_RUN_ID" ] || printf '%s\\0' "$tpux_wandb"/wandb/*run-*-"$WANDB_RUN_ID"
} >"$1/started"
shift
exec "$@"
"""
"""Writes for read_run.py what only the program's environment knows: its `wandb`, where the run's files will be, the
run's id, and which directories earlier attempts have left for that."""
KEY_FILE = ".wandb-key"
"""In a worker's home directory: the key for an upload, which reads and removes it."""
SHOWN = 20
"""Keys of the summary that are shown."""
SUMMARY = r"wandb(?:\x1b\[0m)?:\s+(?:\x1b\[\d+m)*Run (?:history|summary):"
"""A line that wandb prints when a run ends, whether it has finished or failed."""
_URL = re.compile(r"https?://\S+")


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `wandb`."""
    return WandbSection


@hookimpl
def prepare_command(job: Job, command: Command, config: Section | None, worker: Worker) -> Command:
    """Set the directory of the run's files, the API key and, on the first worker, the id of the run.

    The other workers get no id: several processes must not write one run.
    """
    section = _section(config)
    place = _directory(job, job.attempt, command.env.get("TPUX_OUTPUT_DIR", ""), worker)
    directory = str(PurePosixPath(command.env.get("TPUX_RUN_HOME", ""), place))
    variables = {"WANDB_DIR": directory}
    if section.api_key:  # set no empty WANDB variable: wandb refuses some
        variables["WANDB_API_KEY"] = section.api_key
    if section.base_url != WandbSection().base_url:
        variables["WANDB_BASE_URL"] = section.base_url
    if section.project:
        variables["WANDB_PROJECT"] = section.project
    if section.one_run and worker.index == _first_worker(job):
        variables |= {"WANDB_RUN_ID": _run_id(job), "WANDB_RESUME": "allow"}
    made = ("sh", "-c", STARTED, "tpux-wandb", directory, *command.argv)
    further = () if place.startswith("/") else (directory,)
    own = {**job.job.environment, **job.command.env}  # what the config gives the program outranks this
    variables = {**command.env, **{name: value for name, value in variables.items() if name not in own}}
    return replace(command, argv=made, env=variables, directories=(*command.directories, *further))


@hookimpl
def collect(
    job: Job, config: Section | None, attempt: Attempt, worker: Worker
) -> Generator[Step, Result, Mapping[str, JsonValue] | None] | None:
    """Read the newest run on the worker in a job that uses this; the program need not have used the worker's Python."""
    used = "wandb" in {*job.command.finished_by, *job.sections}
    return _read_run(job, config, attempt, worker) if used else None


def _read_run(
    job: Job, config: Section | None, attempt: Attempt, worker: Worker
) -> Generator[Step, Result, Mapping[str, JsonValue] | None]:
    of_all = attempt.output_dir.removesuffix(f"/attempt-{attempt.number}")
    numbers = range(attempt.number, min(job.attempt - job.stage, attempt.number) - 1, -1)
    directories = [_directory(job, number, f"{of_all}/attempt-{number}", worker) for number in numbers]
    found = yield sh(
        "python3 -c {reader} {directories}",
        reader=READER,
        directories=directories,
        example=f"{MARKER}null",
        timeout=300,
    )
    run = cast("dict[str, JsonValue] | None", json.loads(found.text.partition(MARKER)[2].partition("\n")[0]))
    if run is None:
        return None
    shown: dict[str, JsonValue] = {"run": run["run_id"], "exit code": run["exit_code"]}
    if unfinished := cast("list[str]", run.get("unfinished", [])):
        shown["runs without an exit code"] = ", ".join(unfinished[:SHOWN])
    shown["written at"] = datetime.fromtimestamp(cast("float", run["at"]), UTC).isoformat()
    if summary := _summary(cast("dict[str, str]", run["summary"])):
        shown["summary"] = summary
    if "/offline-run-" in str(run["directory"]):
        shown |= _upload(job, _section(config), run, worker)
    elif url := _url(run, _section(config), attempt, worker):
        shown["url"] = url
    return shown


@hookimpl
def classify_failure(job: Job, attempt: Attempt) -> list[Finished]:
    """Return on which workers the run has recorded the exit code 0, and no other run has recorded none.

    What is printed proves nothing, but where the config does not name wandb it is a reason to say so.
    """
    found = []
    if "wandb" not in job.command.finished_by:
        printed = (ending for ending in attempt.endings if ending.failed and find_line(ending.tail(), SUMMARY))
        return [Finished("the program printed the summary of a run", ending.worker) for ending in printed]
    for worker, by_plugin in attempt.collected.items():
        run = by_plugin.get("wandb", {})
        if run.get("exit code") == 0 and "runs without an exit code" not in run:
            at = datetime.fromisoformat(str(run["written at"])).timestamp()
            found.append(Finished(f"the wandb run {run['run']} has recorded the exit code 0", worker, at))
    return found


def _summary(values: Mapping[str, str]) -> str:
    chosen = [f"{key}={value}" for key, value in sorted(values.items()) if not key.startswith("_")]
    return ", ".join(chosen[:SHOWN])


def _upload(job: Job, section: WandbSection, run: Mapping[str, JsonValue], worker: Worker) -> dict[str, JsonValue]:
    """Return the command that uploads an offline run from its worker, and the one that takes the key there.

    Args:
        job: the job.
        section: its section `wandb`.
        run: the run, as `read_run.py` has printed it.
        worker: the worker that has it.
    """
    number, directories = int(job.id or 0), cast("list[str]", run["directories"])
    sync = shlex.join([str(run["program"] or "wandb"), "sync", *directories])
    if section.base_url != WandbSection().base_url:
        sync = f"env WANDB_BASE_URL={shlex.quote(section.base_url)} {sync}"
    own = {**job.job.environment, **job.command.env}
    needs_key = section.api_key or "WANDB_API_KEY" in own
    take_key = f"key=$(cat ~/{KEY_FILE}) && rm ~/{KEY_FILE} && WANDB_API_KEY=$key"
    script = f"{take_key} {sync}" if needs_key else sync
    if run["program"]:
        held = f"tpux exec {number} --host --worker {worker.index} -- {shlex.quote(script) if needs_key else script}"
    else:  # the user's script may make one available
        held = f"{script} in tpux ssh {number} --worker {worker.index} with the program's environment active"
    elsewhere = shlex.join(["wandb", "sync", *directories])
    where = "the directory is" if len(directories) == 1 else "the directories are"
    shown: dict[str, JsonValue] = {
        "to upload it": f"{held} while the job holds its machines; elsewhere {elsewhere} where {where}"
    }
    if needs_key:
        copy = f"tpux cp FILE {number}:~/{KEY_FILE} --worker {worker.index}"
        shown["the key for that"] = f"{copy}, where FILE contains it and has the mode 600; the upload removes the copy"
    return shown


def _url(run: Mapping[str, JsonValue], section: WandbSection, attempt: Attempt, worker: Worker) -> str:
    """Return the run's URL: from the program's output, which knows the default entity, else from the record.

    Args:
        run: the run, as `read_run.py` has printed it.
        section: the job's section `wandb`.
        attempt: the attempt.
        worker: the worker that has the run.
    """
    texts = [ending.tail() for ending in attempt.endings if ending.worker == worker.index]
    for text in texts:
        if match := _URL.search(find_line(text, r"wandb: .*View run .*https?://")):
            return match[0]
    entity, project = run["entity"], run["project"]
    return f"{section.base_url.rstrip('/')}/{entity}/{project}/runs/{run['run_id']}" if entity and project else ""


def _section(config: Section | None) -> WandbSection:
    return config if isinstance(config, WandbSection) else WandbSection()


def _directory(job: Job, attempt: int, output_dir: str, worker: Worker) -> str:
    """Return the directory of a worker's runs, absolute or relative to its home directory.

    The output directory may be shared by all workers. It may also be a URL; then the runs are where output is by
    default.

    Args:
        job: the job.
        attempt: the number of the attempt.
        output_dir: its output directory.
        worker: the worker.
    """
    if not output_dir.startswith("/"):
        output_dir = f".tpux/output/{job.key}/attempt-{attempt}"
    return f"{output_dir}/wandb-worker-{worker.index}"


def _first_worker(job: Job) -> int:
    workers = job.command.workers
    return 0 if workers == "all" else workers if isinstance(workers, int) else workers[0]


def _run_id(job: Job) -> str:
    """Return the id of the run: the same for an attempt and those that resume it, another one after a rerun."""
    started_from_scratch = job.attempt - job.stage
    return re.sub(r"[^A-Za-z0-9_-]", "-", f"{job.key}-{started_from_scratch}")
