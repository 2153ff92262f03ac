"""`tpux sweep` (Run): create and compare jobs for a grid of arguments."""

from __future__ import annotations

import json as json_
import math
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tpux import TpuxError, UsageError, api
from tpux.api.options import Json
from tpux.api.text import echo, print_table, printable
from tpux_sweep.points import RELEASE, Point, as_words, last_values, make_points, read_points, split_words

if TYPE_CHECKING:
    from tpux import JsonValue

app = api.new_app()
_TAG = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,99}")
Metric = Literal["loss", "step", "epoch", "rate"]


@app.command(epilog="Example: tpux sweep train.yaml lr=0.1,0.01 bs=256,512 --max-parallel 4")
def sweep(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="The config.", show_default=False)] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE,VALUE]...",
            help="Values of arguments, and of the config; [a,b] is one value. KEY=VALUE is the same in all jobs.",
        ),
    ] = None,
    max_parallel: Annotated[int, typer.Option(min=1, help="How many of the jobs have machines at once.")] = 1,
    tag: Annotated[str | None, typer.Option(help="The tag and the group of the jobs; by default sweep-CONFIG.")] = None,
    points: Annotated[
        Path | None, typer.Option(help="A YAML or JSON file: a list of points, each a mapping of keys to values.")
    ] = None,
    random: Annotated[
        int | None,
        typer.Option(min=1, help="Take this many points at random; a value may be uniform(0,1), loguniform or int."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses other random points.")] = 0,
    metric: Annotated[Metric, typer.Option(help="What the best job has: the lowest loss, or the highest.")] = "loss",
    prices: Annotated[
        Path | None,
        typer.Option(help="A YAML file of prices per hour by type, such as 'v4-32 spot: 9.5'; by default prices.yaml."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the points and their price; create nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
    json: Json = False,
) -> None:
    """Create a job for each combination of values, and compare the jobs.

    It says how many jobs there will be, on how many machines at once and at what price, and asks. Typed again, it
    creates what is missing. With --tag and without CONFIG it creates nothing, and shows the jobs that have the tag.
    """
    if config is None and tag is None:
        raise UsageError("missing argument CONFIG", hint="tpux sweep train.yaml lr=0.1,0.01, or tpux sweep --tag TAG")
    if own_tag := tag is None:
        tag = f"sweep-{re.sub('[^-A-Za-z0-9_.]+', '-', config.stem if config else '')}"[:100]
    if not _TAG.fullmatch(tag):
        raise UsageError(f"--tag {tag}: a tag of a sweep has letters, digits and - _ .")
    if config is not None:
        fixed, grid = split_words(words or [])
        if own_tag:
            _require_same_config(config, tag)
        made = make_points(grid, read_points(points) if points else (), count=random, seed=seed)
        _create(config, fixed, made, tag, max_parallel, prices, dry_run=dry_run, yes=yes)
    jobs = _jobs_of(tag)
    best = _best(jobs, metric)
    if json:
        api.emit([_to_json(job, best) for job in jobs])
    elif jobs:
        _print(jobs)
        if best is not None:
            echo(f"best by {metric}: job {int(best.id)}: {' '.join(_varying(jobs)[best.id].values())}, {best.progress}")
    elif not dry_run:
        api.say(f"no job has the tag {tag}")


# --- what is created ----------------------------------------------------------------------------


def _create(
    config: Path,
    fixed: Sequence[str],
    points: Sequence[Point],
    tag: str,
    max_parallel: int,
    prices: Path | None,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Create the jobs of the points that have none, after a question."""
    present = [last_values(job.overrides()) for job in _jobs_of(tag)]
    missing = [point for point in points if last_values([*fixed, *as_words(point)]) not in present]
    existing = f", {len(points) - len(missing)} of which exist" if len(missing) < len(points) else ""
    kinds = {_tpu_words(point): point for point in reversed(missing or points[:1])}
    sections = {kind: _read_config(config, [*fixed, *as_words(kinds[kind])]) for kind in reversed(kinds)}
    plan = f"{_count(len(points), 'job')}{existing}{_describe_costs(sections, points, max_parallel, prices)}"
    if dry_run:
        for point in missing:
            echo(f"would create: {' '.join(as_words(point))}")
    if dry_run or not missing:
        api.say(plan)
        return
    if yes:
        api.say(plan)
    api.confirm(f"{plan}\nCreate {_count(len(missing), 'job')}?", yes=yes)
    said = set[str]()

    def warn(text: str) -> None:  # what holds for all points is said once
        if text not in said and not text.startswith("note: arguments of the program"):
            said.add(text)
            api.say(text)

    for number, point in enumerate(missing):
        try:
            _submit(config, [*fixed, *as_words(point)], point, sections[_tpu_words(point)], tag, max_parallel, warn)
        except (TpuxError, OSError):
            api.say(f"{number} of {_count(len(missing), 'job')} created; type the same again to create the others")
            raise


def _submit(
    config: Path,
    words: list[str],
    point: Point,
    sections: Mapping[str, JsonValue],
    tag: str,
    max_parallel: int,
    warn: Callable[[str], None],
) -> None:
    section = sections.get("job")
    job = section if isinstance(section, dict) else {}
    given = job.get("tags")
    tags = dict.fromkeys([*map(str, given if isinstance(given, list) else [given] if given else []), tag])
    suffix = re.sub("[^A-Za-z0-9_.]+", "-", "-".join(f"{key.split('.')[-1]}{value}" for key, value in point.items()))
    name = f"{job.get('name')}-{suffix}"[:80]
    own = [
        f"job.name={json_.dumps(name)}",
        f"job.tags={json_.dumps([*tags])}",
        f"job.group={json_.dumps({'name': tag, 'max_running': max_parallel})}",
    ]
    tpu = sections.get("tpu")
    if not isinstance(tpu, dict) or "keep_on_failure" not in tpu:
        own.append(RELEASE)
    created = api.submit(config, [*words, *own], warn=warn)
    api.say(f"created job {int(created.id)}: {' '.join(as_words(point))}")


def _tpu_words(point: Point) -> tuple[str, ...]:
    """Return what a point has that may change the machines, and so their price."""
    return tuple(word for word in as_words(point) if word.startswith("tpu."))


def _require_same_config(config: Path, tag: str) -> None:
    """Refuse to mix the jobs of two configs of the same name, unless the user gave the tag.

    Raises:
        UsageError: jobs of the tag have another config.
    """
    for job in _jobs_of(tag):
        stored = ""
        with suppress(OSError, ValueError):  # whatever reads the job reports that
            stored = str(json_.loads((job.config_directory / "resolved.json").read_text())["path"])
        if stored and Path(stored).resolve() != config.resolve():
            hint = f"give the new jobs a tag of their own: --tag NAME; or add them to the others: --tag {tag}"
            raise UsageError(f"the jobs with the tag {tag} are of another config, {stored}", hint=hint)


def _read_config(config: Path, words: Sequence[str]) -> Mapping[str, JsonValue]:
    """Return the sections of the config of one point.

    Raises:
        UsageError: it is not valid, or has a group.
    """
    command = [sys.executable, "-P", "-m", "tpux", "config", "show", "--json", str(config), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        message, _, hint = done.stderr.strip().removeprefix("tpux: error: ").partition("\n  hint: ")
        raise UsageError(message, hint=hint)
    found = json_.loads(done.stdout)
    sections = found if isinstance(found, dict) else {}
    job = sections.get("job")
    if isinstance(job, dict) and job.get("group"):
        hint = "remove it from the config; --tag is the group's name, and --max-parallel says how many may run"
        raise UsageError("job.group: a sweep sets the group of its jobs", where=str(config), hint=hint)
    return sections


def _describe_costs(
    kinds: Mapping[tuple[str, ...], Mapping[str, JsonValue]],
    points: Sequence[Point],
    max_parallel: int,
    prices: Path | None,
) -> str:
    """Return what the jobs cost per hour; a line for each kind of machines if there are several."""
    costs = dict[tuple[str, ...], str]()
    for kind, sections in kinds.items():
        parallel = min(max_parallel, sum(_tpu_words(point) == kind for point in points))
        costs[kind] = _describe_cost(sections, parallel, prices)
    if len(costs) == 1:
        return f"; {next(iter(costs.values()))}"
    lines = (f"\n  {' '.join(kind)}: {cost}" for kind, cost in costs.items())
    return f", of which at most {min(max_parallel, len(points))} at once:{''.join(lines)}"


def _describe_cost(sections: Mapping[str, JsonValue], parallel: int, prices: Path | None) -> str:
    """Return how many machines the jobs have at once, and their price per hour."""
    from tpux_history.prices import PRICES, price_of, read_prices
    from tpux_history.use import MachineType

    section = sections.get("tpu")
    tpu = section if isinstance(section, dict) else {}
    wanted, nodes = tpu.get("accelerator"), tpu.get("node_count", 1)
    accelerator = str(wanted[0] if isinstance(wanted, list) and wanted else wanted or "")
    pricing = str(tpu.get("pricing", "ondemand"))
    slices = parallel * (nodes if isinstance(nodes, int) else 1)
    if not accelerator:
        return f"at most {parallel} at once, on machines of {tpu.get('allocation_mode', 'local')}"
    kind = accelerator if pricing == "ondemand" else f"{accelerator} {pricing}"
    zones = tpu.get("zone")
    zone = str(zones[0] if isinstance(zones, list) and zones else zones or "")
    price = price_of(MachineType(accelerator, pricing, zone), slices, read_prices(prices))
    cost = f"{price:.2f} per hour" if price is not None else f"price per hour unknown ({PRICES} has none for {kind})"
    return f"at most {parallel} at once: {slices} x {kind}, {cost}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- what has come of them ----------------------------------------------------------------------


def _jobs_of(tag: str) -> list[api.JobInfo]:
    return [job for job in api.jobs(warn=api.say) if tag in job.tags]


def _value(job: api.JobInfo, metric: Metric) -> float | None:
    """Return the last value of a job's metric, the lower the better; None if there is none."""
    if job.progress is None:
        return None
    try:
        value = float(getattr(job.progress, metric) or "nan")
    except ValueError:
        return None
    return None if math.isnan(value) else value if metric == "loss" else -value


def _best(jobs: Sequence[api.JobInfo], metric: Metric) -> api.JobInfo | None:
    found = [(value, int(job.id), job) for job in jobs if (value := _value(job, metric)) is not None]
    return min(found)[2] if found else None


def _varying(jobs: Sequence[api.JobInfo]) -> dict[str, dict[str, str]]:
    """Return `key=value` of each key that differs between the jobs, by job and key."""
    values = {job.id: last_values(job.overrides()) for job in jobs}
    keys = dict.fromkeys(key for each in values.values() for key in each)
    varying = [key for key in keys if len({each.get(key) for each in values.values()}) > 1 or len(jobs) == 1]
    return {job: {key: f"{key}={each[key]}" for key in varying if key in each} for job, each in values.items()}


def _print(jobs: Sequence[api.JobInfo]) -> None:
    varying = _varying(jobs)
    keys = dict.fromkeys(key for each in varying.values() for key in each)

    def cells(key: str) -> list[str]:
        return [printable(varying[job.id].get(key, "").partition("=")[2]) or "-" for job in jobs]

    columns: dict[str, list[str]] = {
        "id": [str(int(job.id)) for job in jobs],
        **{key.split(".")[-1] if key.split(".")[-1] not in {"id", "state"} else key: cells(key) for key in keys},
        "state": [job.state for job in jobs],
        "progress": [str(job.progress or "-") for job in jobs],
        "why": [printable(next(iter(job.why.splitlines()), "")) or "-" for job in jobs],
    }
    print_table(columns, always={"id", "state"}, drop=("why",), shorten={"why": 10, "progress": 12})


def _to_json(job: api.JobInfo, best: api.JobInfo | None) -> dict[str, JsonValue]:
    progress = job.progress
    return {
        "id": job.id,
        "name": job.name,
        "point": {**last_values(job.overrides())},
        "state": job.state,
        "why": job.why,
        "progress": progress.to_json() if progress is not None else None,
        "best": best is not None and best.id == job.id,
    }
