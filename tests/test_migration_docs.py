"""The pages for users of other tools: each new command is typed, each key exists, and each old word is answered."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer.main

from tpux.cli.main import app
from tpux.config.models import keys_by_section
from tpux.plugin import synonyms
from tpux.plugin.manager import Plugins

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("jobman", "tpu-manager", "orbax")
SPAN = re.compile(r"`([^`]+)`")


def rows(page: str, *, commands: bool = False) -> Iterator[tuple[str, str]]:
    text = (DOCS / f"migrate-{page}.md").read_text()
    if commands:
        text = text.partition("## Commands")[2].partition("\n## ")[0]
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("| ") and not following.startswith("|--"):
            old, new = line.strip("| ").split(" | ")
            yield old, new


def typed() -> Iterator[str]:
    for page in PAGES:
        for span in SPAN.findall((DOCS / f"migrate-{page}.md").read_text()):
            if span.startswith("tpux "):
                yield span


def parse(command: click.Command, name: str, words: list[str], parent: click.Context | None = None) -> None:
    """Parse words as `tpux` does, and run nothing."""
    ctx = command.make_context(name, [*words], parent=parent)
    if isinstance(command, click.Group):
        rest = [*ctx._protected_args, *ctx.args]
        inner, found, rest = command.resolve_command(ctx, rest)
        assert found is not None, words
        parse(found, str(inner), rest, ctx)


@pytest.mark.parametrize("command", sorted({*typed()}))
def test_each_new_command_can_be_typed(command):
    words = shlex.split(command)[1:]
    if words == ["--help"]:
        return
    parse(typer.main.get_command(app), "tpux", words)


@pytest.mark.parametrize("page", PAGES)
def test_each_key_exists(page):
    keys = {f"{section}.{key}" for section, names in keys_by_section(Plugins()).items() for key in names}
    sections = {key.partition(".")[0] for key in keys}
    named = set()
    for old, new in rows(page):
        column = old if new == "the same" else new
        named |= {span for span in SPAN.findall(column) if re.fullmatch(r"[a-z_]+\.[a-z_]+", span)}
        for span in SPAN.findall(new):
            named |= {key for key in re.findall(r"\b([a-z_]+\.[a-z_]+)=", span) if key.partition(".")[0] in sections}
    assert named
    assert named - keys == set()


@pytest.mark.parametrize("page", PAGES)
def test_each_old_word_has_a_line(page):
    """`old_words.toml` is what these systems have; each row says what to type, or why nothing is needed."""
    words = tomllib.loads(Path(__file__).with_name("old_words.toml").read_text())[page]
    spans = {span for old, _ in rows(page) for span in SPAN.findall(old)}
    assert {word for group in words.values() for word in group} - spans == set()
    assert [old for old, new in rows(page) if not SPAN.search(new) and not re.match("the|not needed: ..", new)] == []


@pytest.mark.parametrize("page", ["jobman", "tpu-manager"])
def test_each_old_word_is_answered(runner, page):
    known = {*typer.main.get_command(app).list_commands(click.Context(click.Command("tpux")))}
    words = {
        span.split()[0]
        for old, _ in rows(page, commands=True)
        for span in SPAN.findall(old)
        if not span.startswith(("-", "python "))
    }
    known |= {"cancel"}  # another name of stop
    answers = {synonyms.plain(word) for table in ("commands", "aliases") for word in synonyms.words(table)}
    silent = {word for word in words - known if synonyms.plain(word) not in answers}
    assert silent == set(), "synonyms.toml has no answer"
    assert "tpux list" in runner("vq", code=2).stderr
