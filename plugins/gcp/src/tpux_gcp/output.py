"""TPUs as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpux.api import emit, print_table, say
from tpux_gcp.labels import JOB, USER
from tpux_gcp.lookup import FoundTpu

if TYPE_CHECKING:
    from google.cloud import tpu_v2

DROPPED_FIRST = ("nodes", "kind", "user", "pricing", "workers")
"""The columns that a narrow terminal does not show, the least important one first."""
LEAST_WIDTHS = {"state": 8, "name": 20}
"""The columns that it shows shortened, with their least width."""


def print_tpus(found: list[FoundTpu], *, json: bool, empty: str) -> None:
    """Print TPUs, or say that there are none.

    Args:
        found: the TPUs.
        json: print JSON.
        empty: what is said if there are none.
    """
    rows = [summary(tpu) for tpu in found]
    if json:
        emit(rows)
    elif rows:
        print_rows([{**row, "job": str(row["job"]).lstrip("0")} for row in rows])
    else:
        say(empty)


def print_rows(rows: Sequence[dict[str, object]]) -> None:
    """Print rows as a table, headed by the keys of the first one, that fits the terminal."""
    table = {head: ["-" if row[head] in ("", None) else str(row[head]) for row in rows] for head in rows[0]}
    print_table(table, always=table.keys(), drop=DROPPED_FIRST, shorten=LEAST_WIDTHS)


def summary(found: FoundTpu) -> dict[str, object]:
    """Return the fields of a TPU that lists show."""
    resource = found.resource
    return {
        "name": found.name,
        "zone": found.location.zone,
        "kind": "queued resource" if resource.queued_resource else "node",
        "accelerator": resource.accelerator,
        "nodes": len(resource.nodes),
        "workers": resource.workers,
        "pricing": resource.pricing,
        "state": resource.state.rpartition(" is ")[2],
        "job": resource.labels.get(JOB, ""),
        "user": resource.labels.get(USER, ""),
    }


def as_json(message: tpu_v2.Node | tpu_v2.QueuedResource) -> object:
    """Return a message as the API writes it: camelCase, enums by name, unset fields omitted."""
    return type(message).to_dict(
        message,
        use_integers_for_enums=False,
        preserving_proto_field_name=False,
        always_print_fields_with_no_presence=False,
    )
