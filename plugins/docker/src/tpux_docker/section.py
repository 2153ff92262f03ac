"""The config section `docker`."""

from __future__ import annotations

import re
import shlex
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from tpux import Section

# Source: the grammar of github.com/distribution/reference. A tag of a repository in capitals is docker's own error only
# after the machines are ready.
_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_IMAGE = re.compile(rf"(?:{_HOST}/)?{_NAME}(?:/{_NAME})*(?::\w[\w.-]{{0,127}})?(?:@[A-Za-z0-9]+:[0-9a-fA-F]{{32,}})?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_ALLOWED = {
    "--name": "tpux names the container",
    "--restart": "tpux starts the program again by its own rules",
    "--cidfile": "tpux removes the container",
    "--sig-proxy": "a stop reaches the program through it",
}
_IGNORED = {"-d", "--detach", "-t", "--tty", "-i", "--interactive", "--rm"}
# Source: docs.docker.com, "Bind mounts", and the parser of github.com/moby/moby (volume/mounts/linux_parser.go).
_MOUNT_OPTIONS = {"ro", "rw", "z", "Z", "consistent", "cached", "delegated"} | {
    f"{recursive}{kind}" for recursive in ("", "r") for kind in ("private", "shared", "slave")
}
_SHORT = re.compile("-[dit]{2,}")


def _image(value: object) -> object:
    if isinstance(value, str) and not _IMAGE.fullmatch(value):
        hint = ": the name of a repository has no capital letters" if _IMAGE.fullmatch(value.lower()) else ""
        raise ValueError(f"{value!r} is not the name of an image{hint}")
    return value


def _variables(value: object) -> object:
    """Return the variables of a list of NAME=VALUE; a mapping is returned as it is."""
    if not isinstance(value, list):
        return value
    pairs = {}
    for entry in value:
        name, separator, text = str(entry).partition("=")
        if not separator:
            raise ValueError(f"{name!r} has no value: write {name}=VALUE, or {name}=${{env:{name}}} for your own")
        pairs[name] = text
    return pairs


def _text(value: object) -> object:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _mount(value: object) -> object:
    """Return a mount as `SOURCE:TARGET` or `SOURCE:TARGET:OPTIONS`.

    Raises:
        ValueError: it has another form, or docker would take the source for the name of a volume.
    """
    if not isinstance(value, str):
        return value
    source, _, rest = re.sub(r"^\$HOME(?=/|:|$)", "~", value).partition(":")
    target, _, options = rest.partition(":")
    target = target or source
    if not source.startswith("/") and source != "~" and not source.startswith("~/"):
        raise ValueError(f"{value!r}: the directory on the worker must be absolute, or begin with ~/")
    if not target.startswith("/") and target != source:
        raise ValueError(f"{value!r}: the directory in the container must be absolute")
    if not target.strip("/"):
        raise ValueError(f"{value!r}: the directory in the container cannot be /")
    if ":" in options:
        raise ValueError(f"{value!r}: write DIRECTORY, or DIRECTORY:DIRECTORY_IN_THE_CONTAINER, with :ro to only read")
    if unknown := [option for option in options.split(",") if option and option not in _MOUNT_OPTIONS]:
        raise ValueError(f"{value!r}: {unknown[0]!r} is not an option of a mount: write ro to only read")
    return f"{source}:{target}:{options}" if options else f"{source}:{target}"


def _flags(value: object) -> object:
    """Return the arguments that a text, or a list of texts, stands for in a shell: `--shm-size 16g` are two."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        return value
    words = [word for entry in value for word in _words(entry)]
    for index, word in enumerate(words):
        option = word.partition("=")[0]
        if option == "--" or (index == 0 and not word.startswith("-")):  # what follows would be the image
            raise ValueError(f"{word!r} is not an option of docker run")
        if option in _NOT_ALLOWED:
            raise ValueError(f"{option} cannot be set: {_NOT_ALLOWED[option]}")
    return words


def _words(entry: str) -> list[str]:
    try:
        return shlex.split(entry)
    except ValueError as error:
        raise ValueError(f"{entry!r}: {error}") from error


def _workdir(value: object) -> object:
    if isinstance(value, str) and not value.startswith("/"):
        raise ValueError(f"{value!r} is not absolute: write the whole path in the container, such as /workspace")
    return value


_TEXTS = {"type": "array", "items": {"type": "string"}}
Image = Annotated[str, BeforeValidator(_image)]
Mount = Annotated[str, BeforeValidator(_mount)]
Variable = Annotated[str, Field(pattern=rf"^{_VARIABLE.pattern}$")]
# A null character ends a string in a process's variables.
Text = Annotated[str, BeforeValidator(_text), Field(pattern=r"^[^\x00]*$")]


class DockerSection(Section):
    """A docker container on each worker, in which the command runs."""

    image: Image
    """The image, such as us-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG; it must contain bash."""
    env_vars: Annotated[
        dict[Variable, Text],
        BeforeValidator(_variables),
        WithJsonSchema({"anyOf": [_TEXTS, {"type": "object", "additionalProperties": {"type": ["string", "number"]}}]}),
    ] = Field(default_factory=dict)
    """Environment variables of the container: a mapping, or a list of NAME=VALUE."""
    mount_dirs: list[Mount] = Field(default_factory=list)
    """Directories of the worker in the container: DIRECTORY, or DIRECTORY:DIRECTORY_IN_THE_CONTAINER."""
    workdir: Annotated[str, BeforeValidator(_workdir), Field(pattern="^/")] | None = None
    """The directory in the container in which the command starts, if there is no section code."""
    flags: Annotated[list[str], BeforeValidator(_flags), WithJsonSchema({"anyOf": [_TEXTS, {"type": "string"}]})] = (
        Field(default_factory=list)
    )
    """Further options of docker run, such as --shm-size=16g; they replace the defaults for a TPU that they name."""

    def exposed_keys(self) -> dict[str, str]:
        """Return the keys that become arguments of docker."""
        return dict.fromkeys(["flags", "mount_dirs"], "give it to the program in env_vars")


def is_ignored(flag: str) -> bool:
    """Return True if an option of docker run says what tpux decides itself: how to wait, and when to remove it."""
    return flag in _IGNORED or bool(_SHORT.fullmatch(flag))
