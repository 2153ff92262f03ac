"""`tpux tag`: change the tags of jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from tpux.cli import completion
from tpux.cli.common import OfName, OfState, OfTag, echo, new_app, say, select_jobs, short_id
from tpux.errors import UsageError
from tpux.model.values import TAG

app = new_app()


@app.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Example: tpux tag 12 +baseline -draft   or: tpux tag --state failed +broken",
)
def tag(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB]... [+TAG | -TAG]...",
            help="The jobs' ids or names; the tags to add (+) and to remove (-).",
            autocompletion=completion.jobs,
        ),
    ] = None,
    state: OfState = None,
    name: OfName = None,
    tag: OfTag = None,
) -> None:
    """Add tags to jobs and remove others; without tags, print those that the jobs have.

    Commands that act on several jobs select them by --tag.
    """
    from tpux.store import Store, tags

    given = words or []
    jobs = [word for word in given if word[0] not in "+-"] if all(given) else []
    for word in given:
        if word not in jobs and not TAG.fullmatch(word[1:]):
            raise UsageError(f"{word[1:]!r} is not a tag", hint="a tag has letters, digits and - _ . : / =")
    changes = [word for word in given if word not in jobs]
    add, remove = ([word[1:] for word in changes if word[0] == sign] for sign in "+-")
    store = Store()
    for record in select_jobs(store, jobs, state=state, name=name, tags=tag, guess=True):
        if changes:
            found = tags.change(record.directory, add, remove)
            say(f"job {short_id(record.id)}: {' '.join(found) or 'no tags'}")
        else:
            echo(f"{short_id(record.id)} {' '.join(tags.load(record.directory))}".rstrip())
