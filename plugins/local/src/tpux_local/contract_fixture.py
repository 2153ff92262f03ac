"""What `tpux plugins check local` uses: the plugin itself, since its workers are directories on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpux import Worker

if TYPE_CHECKING:
    from tpux_testing import LocalFixture


@contextmanager
def directories(config: Mapping[str, object]) -> Iterator[LocalFixture]:
    """Change nothing in the config; a worker that does not exist is a directory that does not."""
    from tpux_testing import LocalFixture

    yield LocalFixture(config, unreachable=Worker(0, details={"home": "/nonexistent/worker"}))
