"""`tpux init`: write a commented config for what is installed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from tpux.cli.common import new_app, say
from tpux.errors import TpuxError, UsageError

if TYPE_CHECKING:
    from tpux.model.sections import Section

app = new_app()

KEYS = {
    "job": ("name", "env_type", "output_dir"),
    "tpu": ("allocation_mode", "accelerator", "zone", "pricing"),
    "command": ("cmd", "resume_args"),
}
"""The keys that are shown of core's sections, as far as the model has them."""
WIDTH = 100
"""The columns that the optional keys of a section may fill."""
_PLAIN = re.compile(r"(?!(true|false|null|yes|no|on|off|y|n)$)[a-z][\w./-]*( [\w./=-]+)*", re.IGNORECASE | re.ASCII)


@app.command(epilog="Example: tpux init train.yaml")
def init(
    path: Annotated[Path, typer.Argument(metavar="[PATH]", help="The config.")] = Path("train.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a commented config for what is installed.

    On a terminal it asks for the command, the accelerator and the allocator: Enter takes the default.
    """
    from tpux.config import settings
    from tpux.config.models import DEFAULT_ALLOCATOR, allocator_models, model_of
    from tpux.model.sections import CORE_SECTIONS
    from tpux.plugin.manager import Plugins
    from tpux.store.files import write_atomic

    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{path} {'is' if path.is_dir() else 'is not in'} a directory", hint="tpux init train.yaml")
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="name another file: tpux init PATH; --force overwrites it")
    plugins = Plugins()
    tpus = allocator_models(plugins)
    allocator = min(tpus, key=lambda name: name != DEFAULT_ALLOCATOR, default=DEFAULT_ALLOCATOR)
    given = {"name": path.stem, "allocation_mode": allocator, "accelerator": "v4-8", "cmd": "python3 train.py"}
    for key, (value, _) in settings.values(settings.read_files()).items():
        if key in {"defaults.tpu.allocation_mode", "defaults.tpu.accelerator"} and isinstance(value, str):
            given[key.rpartition(".")[2]] = value
    if sys.stdin.isatty() and sys.stderr.isatty():
        given["cmd"] = typer.prompt("The command", given["cmd"], err=True).strip() or given["cmd"]
        given["accelerator"] = typer.prompt("The accelerator", given["accelerator"], value_proc=_accelerator, err=True)
        choice = click.Choice([*tpus] or [allocator])
        given["allocation_mode"] = typer.prompt("The allocator", given["allocation_mode"], type=choice, err=True)
    models = {**CORE_SECTIONS, "tpu": tpus.get(given["allocation_mode"], CORE_SECTIONS["tpu"])}
    lines = ["# yaml-language-server: $schema=tpux.schema.json"] * path.with_name("tpux.schema.json").is_file()
    lines += ["# Check it: tpux preflight CONFIG. Run it: tpux run CONFIG. Remove the # of what you need."]
    for name, keys in KEYS.items():
        lines += [f"{name}:", *_keys(models[name], keys, given)]
    for name in plugins.names():
        with suppress(TpuxError):
            if name not in tpus.keys() - {given["allocation_mode"]} and (model := model_of(name, plugins)):
                lines += [f"# {_sentence(model.__doc__)}", _example(name, model)]
    write_atomic(path, "\n".join([*lines, ""]).encode(errors="replace"), mode=0o644)
    say(f"{path} is written; check it with: tpux preflight {path}")


def _accelerator(text: str) -> str:
    from tpux.accelerators import workers_of

    try:
        workers_of(text)
    except UsageError as error:
        raise click.UsageError(f"{error.message}; {error.hint}") from error
    return text


def _keys(model: type[Section], keys: tuple[str, ...], given: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a section of core: the keys that are given, and as comments the defaults of the others."""
    from tpux.plugin.descriptions import descriptions

    for key in [key for key in keys if key in model.model_fields]:
        value = given.get(key, model.model_fields[key].default)
        yield f"  {'' if key in given else '# '}{key}: {_yaml(value)}  # {_sentence(descriptions(model).get(key))}"


def _example(name: str, model: type[Section]) -> str:
    """Return the line of a plugin's section: the keys that it requires, then others with their defaults."""
    if name == "code":  # without it the command does not find the program
        return "code: ."
    line = f"# {name}: {{"
    for key, field in sorted(model.model_fields.items(), key=lambda item: not item[1].is_required()):
        value = f"<{key}>" if field.is_required() else _yaml(field.get_default(call_default_factory=True))
        line += f"{key}: {value}, " * (len(f"{line}{key}: {value}") < WIDTH)
    return line.removesuffix(", ") + "}"


def _yaml(one: object) -> str:
    """Return a value in YAML, on one line."""
    # A section within a section is a mapping.
    quoted = json.dumps(one, default=lambda it: getattr(it, "model_dump", it.__str__)(), ensure_ascii=False)
    return one if isinstance(one, str) and _PLAIN.fullmatch(one) else quoted


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split()).partition(". ")[0].rstrip(".")
