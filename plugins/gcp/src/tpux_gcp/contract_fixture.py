"""What `tpux plugins check` uses for the allocators in place of Google's API: the emulator on loopback."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from tpux_testing import LocalFixture

_DELAYS = {
    f"{kind}.{state}": 0.05
    for kind, states in {
        "node": ("CREATING", "DELETING", "STOPPING", "STARTING", "patch"),
        "queued-resource": (
            "CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "SUSPENDING", "DELETING", "retry",
        ),
    }.items()
    for state in states
}  # fmt: skip


@contextmanager
def emulated_cloud(config: Mapping[str, object]) -> Iterator[LocalFixture]:
    """Start an emulator, and send the config's requests to it.

    Raises:
        ModuleNotFoundError: tpux-plugin-emulator is not installed.
    """
    from tpux_emulator.emulator import Emulator

    with (
        tempfile.TemporaryDirectory(prefix="tpux-gcp-check-") as home,
        Emulator(Path(home), workers=False, delays=_DELAYS) as cloud,
    ):

        def existing() -> list[object]:
            status = cast("dict[str, list[object]]", cloud.status())
            return [*status["nodes"], *status["queuedResources"]]

        given = cast("Mapping[str, object]", config.get("tpu") or {})
        tpu = {"project": "emulated", **given, "endpoint": cloud.url}
        yield LocalFixture({**config, "tpu": tpu}, existing=existing)
