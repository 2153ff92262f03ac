"""`tpux tag`: change the tags of jobs."""

from __future__ import annotations

from typing import Annotated

import click
import typer
import typer.core

from tpux.cli import completion
from tpux.cli.common import OfName, OfState, OfTag, echo, new_app, say, select_jobs, short_id
from tpux.errors import UsageError

app = new_app()


class _TagWords(typer.core.TyperCommand):
    """A command to which `-draft` is a word, not the options -d, -r, ..."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, those that change tags as positional ones."""
        if "--" not in args:
            words = [word for word in args if word[:1] in {"+", "-"} and word[1:2] not in {"-", ""} and word != "-h"]
            args = [*(word for word in args if word not in words), "--", *words]
        return super().parse_args(ctx, args)


@app.command(
    cls=_TagWords,
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
    from tpux.model.values import TAG
    from tpux.store import Store, tags

    given = words or []
    jobs = [word for word in given if word == "-" or word[:1] not in {"+", "-", ""}]
    for word in given:
        if word not in jobs and not TAG.fullmatch(word[1:]):
            raise UsageError(f"{word[1:]!r} is not a tag", hint="a tag has letters, digits and - _ . : / =")
    changes = [word for word in given if word not in jobs]
    add, remove = ([word[1:] for word in changes if word[0] == sign] for sign in "+-")
    store = Store()
    for record in select_jobs(store, jobs, state=state, name=name, tags=tag):
        if changes:
            found = tags.change(record.directory, add, remove)
            say(f"job {short_id(record.id)}: {' '.join(found) or 'no tags'}")
        else:
            echo(f"{short_id(record.id)} {' '.join(tags.load(record.directory))}".rstrip())
