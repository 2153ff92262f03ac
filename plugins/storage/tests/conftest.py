"""The fixture `tpux`, and a bucket on loopback that a job of this process uses as its output directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import no_program_is_left, tpux
from tests.gcs import Bucket
from tests.world import World

from tpux import Job, Steps, hookimpl, sh
from tpux_gcp.credentials import Place, storage_options

__all__ = ["no_program_is_left", "tpux"]


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    root = tmp_path / "buckets"
    (root / "runs").mkdir(parents=True)
    (root / "runs/readme").touch()
    server = Bucket(root)
    yield server
    server.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> World:
    class Plugin:
        @hookimpl
        def check(self) -> Steps:
            yield sh("true")

        @hookimpl
        def storage_options(self, job: Job, scheme: str) -> dict[str, object] | None:
            return storage_options(Place(storage_endpoint=bucket.endpoint)) if scheme == "gs" else None

    world = World(tmp_path, monkeypatch)
    world.cloud.workers = 1
    world.plugins.add("bucket", Plugin())
    return world
