"""`tpux storage` (Administration): delete and copy checkpoints in buckets; show what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpux import TpuxError, UsageError, api
from tpux.api.options import JobArg, Json
from tpux.api.text import echo, format_size, print_table

if TYPE_CHECKING:
    from tpux_storage.checkpoints import Checkpoint

app = typer.Typer(
    name="storage",
    help="Delete and copy checkpoints in buckets; show what is stored.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
Marker = Annotated[
    str | None, typer.Option("--marker", metavar="NAME", help="The file of a checkpoint that is written last.")
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]
SOFT_DELETE = (
    "Cloud Storage keeps deleted objects for the soft delete period of their bucket (7 days unless it was changed), "
    "and they cost as much as before until then"
)


@app.command(epilog="Example: tpux storage clean 12 --keep 3\n\nExample: tpux storage clean 12 --keep 3 --delete -y")
def clean(
    job: JobArg,
    keep: Annotated[int, typer.Option(min=1, help="How many complete checkpoints to keep.")] = 3,
    delete: Annotated[bool, typer.Option("--delete", help="Delete them, not only show them.")] = False,
    marker: Marker = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Show or delete the old checkpoints of a job in a bucket.

    What command.checkpoint matches is a checkpoint. It is complete if it has the file that is written last: of Orbax,
    of PyTorch, or --marker. If none has it, or the numbers in their names say another order than the times at which
    they were written, nothing is deleted. Neither is the newest complete one, one that is not complete, or one in the
    directory that an attempt resumes from which has not ended.
    """
    from tpux_storage.checkpoints import find_checkpoints

    found = find_checkpoints(job, marker)
    found.require_order()
    old = [one for one in found.complete[:-keep] if not _is_in(one, found.in_use)]
    kept = [one for one in found.found if one not in old]
    if json:
        api.emit([_to_json(one, delete=one in old) for one in found.found])
    elif not found.found:
        api.say("there are no checkpoints")
    else:
        _print(old, kept, found.in_use)
    if not old:
        return
    size = format_size(sum(one.size for one in old))
    count = f"{len(old)} checkpoint{'s' if len(old) > 1 else ''}, {size}"
    if not delete:
        api.say(f"would delete {count}; --delete deletes them")
        return
    if found.scheme in {"gs", "gcs"}:
        api.say(SOFT_DELETE)
    api.confirm(f"delete {count}?", yes=yes)
    for one in old:
        try:
            for path in reversed(one.objects_marker_last):  # incomplete first, so that nothing resumes from a part
                found.storage.rm_file(path)
        except Exception as error:
            from tpux import plain_reason

            message = f"cannot delete {found.scheme}://{one.path}: {plain_reason(error)[:300]}"
            raise TpuxError(message, hint="a part of it may be deleted; the same command continues") from error
    api.say(f"deleted {count}")


@app.command(
    epilog="Example: tpux storage copy 12 gs://other-bucket/runs   or, the same: tpux cp --from-job 12 gs://..."
)
def copy(
    job: JobArg,
    target: Annotated[str, typer.Argument(metavar="URL", help="The directory in which the copy is made.")],
    checkpoint: Annotated[str, typer.Option(help="latest, or the name of one, such as ckpt-900.")] = "latest",
    marker: Marker = None,
    yes: Yes = False,
) -> None:
    """Copy a complete checkpoint of a job to another bucket.

    It says how much that is and what the traffic costs, and asks. Typed again, it copies what is missing. Each object
    is compared with its source, by its size and checksum.
    """
    copy_from_job(job, target, checkpoint, marker=marker, yes=yes)


@app.command(epilog="Example: tpux storage usage\n\nExample: tpux storage usage --bucket my-bucket --folders")
def usage(
    bucket: Annotated[str | None, typer.Option(help="Only this bucket.")] = None,
    folders: Annotated[bool, typer.Option("--folders", help="By the first directory: it lists all objects.")] = False,
    prices: Annotated[
        Path | None,
        typer.Option(help="A YAML file of prices of a GiB for a month, such as 'STANDARD europe-west9: 0.023'."),
    ] = None,
    project: Annotated[str | None, typer.Option(help="Google Cloud project. Default: gcloud's.")] = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Show what the buckets of a project hold and cost.

    By storage class and type, with what they cost a month.

    Soft-deleted objects are a type of their own. The figures are Cloud Monitoring's, about a day old. --folders lists
    the objects instead, says first how many there are, and asks. The prices are Google's list prices, where known. It
    needs pip install 'tpux-plugin-gcp[accounting]'.
    """
    try:
        from tpux_gcp.storage_usage import show_usage
    except ModuleNotFoundError as error:
        hint = "pip install 'tpux-plugin-gcp[accounting]'"
        raise TpuxError("the buckets of Google Cloud are shown by a plugin", hint=hint) from error
    show_usage(project, bucket, prices, folders=folders, yes=yes, json=json)


def copy_from_job(job: str, target: str, name: str, *, marker: str | None = None, yes: bool = False) -> None:
    """Copy a checkpoint of a job, see `copy`."""
    from tpux_storage.checkpoints import find_checkpoints
    from tpux_storage.copying import copy_checkpoint, describe_price, location_of, require_no_other
    from tpux_storage.search import open_storage, scheme_of

    scheme, _, directory = target.partition("://")
    if not directory.strip("/"):
        raise UsageError(f"{target} is no URL of a directory in a bucket", hint="such as gs://other-bucket/runs")
    found = find_checkpoints(job, marker)
    if not (choice := [one for one in found.complete if name in {"latest", one.name}]):
        names = ", ".join(one.name for one in found.complete) or "none"
        raise UsageError(f"job {job} has no complete checkpoint {name}", hint=f"complete are: {names}")
    if len(choice) > 1:
        found.require_order()
    chosen = choice[-1]
    storage = found.storage
    if scheme_of(target) != found.scheme:
        opened = open_storage(target, api.machines.storage_options(api.open_job(job, reads=["tpu"]), scheme))
        if opened is None:
            raise UsageError(f"no library for {scheme}:// is installed")
        storage = opened
    to = f"{directory.rstrip('/')}/{chosen.name}"
    if to == chosen.path or _is_in(chosen, to):
        raise UsageError(f"{target} is where the checkpoint is")
    require_no_other(found.storage, storage, chosen, to)
    price = describe_price(chosen.size, location_of(found.storage, chosen.path), location_of(storage, to))
    objects = f"{len(chosen.objects)} object{'s' if len(chosen.objects) > 1 else ''}"
    what = f"{found.scheme}://{chosen.path} ({objects}, {chosen.size} bytes, {format_size(chosen.size)})"
    api.say(f"{what} to {scheme}://{to}; {price}")
    api.confirm("copy it?", yes=yes)
    copied, there = copy_checkpoint(found.storage, storage, chosen, to, api.say)
    api.say(f"{scheme}://{to} is complete: {copied} copied, {there} were there")


def _print(old: list[Checkpoint], kept: list[Checkpoint], in_use: str) -> None:
    every = sorted([*old, *kept], key=lambda one: one.attempt)

    def describe(one: Checkpoint) -> str:
        if one in old:
            return "old"
        if not one.marker:
            return "kept: not complete"
        return "kept: an attempt resumes from here" if _is_in(one, in_use) else "kept"

    columns = {
        "attempt": [str(one.attempt) for one in every],
        "checkpoint": [one.name for one in every],
        "size": [format_size(one.size) for one in every],
        "what": [describe(one) for one in every],
    }
    print_table(columns, always=["checkpoint", "what"])
    for one in old:
        echo(one.path)


def _is_in(one: Checkpoint, directory: str) -> bool:
    return bool(directory) and one.path.startswith(f"{directory}/")


def _to_json(one: Checkpoint, *, delete: bool) -> dict[str, object]:
    return {
        "path": one.path,
        "attempt": one.attempt,
        "bytes": one.size,
        "objects": len(one.objects),
        "complete": bool(one.marker),
        "old": delete,
    }
