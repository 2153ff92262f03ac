"""What stand_in.sh does not do: solve and install from channels, over rattler."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import rattler
from rattler.exceptions import SolverError
from ruamel.yaml import YAML


def main(prefix: str, *arguments: str) -> None:
    if arguments[0] == "create":
        channels, specs = [os.environ["CONDA_FORGE"]], list(arguments[arguments.index("-c") + 2 :])
    else:
        file = YAML(typ="safe").load(Path(arguments[arguments.index("-f") + 1]))
        channels, specs = file["channels"], file["dependencies"]
    keep = "update" in arguments and "--prune" not in arguments
    asyncio.run(install(Path(prefix), channels, specs, keep=keep))


async def install(prefix: Path, channels: list[str], specs: list[str], *, keep: bool) -> None:
    cache = Path.home() / ".cache/rattler"
    present = [rattler.PrefixRecord.from_path(path) for path in sorted((prefix / "conda-meta").glob("*.json"))]
    kept = [record.name.normalized for record in present] if keep else []
    wanted = [*specs, *(name for name in kept if not any(spec.startswith(name) for spec in specs))]
    gateway = rattler.Gateway(cache_dir=cache)
    code = 0
    try:
        records = await rattler.solve(channels, wanted, gateway=gateway, platforms=["noarch"])
        await rattler.install(records, prefix, cache_dir=cache, show_progress=False, installed_packages=present)
    except SolverError as error:
        sys.stderr.write(f"{str(error).strip()}\n")
        code = 1
    sys.stderr.flush()
    os._exit(code)  # not as usual: a thread of rattler's crashes the interpreter at its end


if __name__ == "__main__":
    main(*sys.argv[1:])
