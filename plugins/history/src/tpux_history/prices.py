"""`prices.yaml`: what machines cost per hour, by their type, pricing and zone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from tpux import api
from tpux_history.use import MachineType

PRICES = "prices.yaml"
Prices = Mapping[str, float]


def read_prices(given: Path | None = None) -> Prices:
    """Return the prices per hour; none if there is no table.

    Args:
        given: the file; by default the one in the directory of the store.

    Raises:
        ConfigError: the file cannot be read, or is no table of prices.
    """
    from pydantic import Field, RootModel

    from tpux.fields import read_data_file

    path = given or api.home() / PRICES
    if given is None and not path.exists():
        return {}
    return read_data_file(path, RootModel[dict[str, Annotated[float, Field(strict=True)]]]).root


def price_of(kind: MachineType, hours: float, prices: Prices) -> float | None:
    """Return what machines cost, by the entry that says most about them; None if there is no entry."""
    names = (f"{kind} {kind.zone}", str(kind), f"{kind.accelerator} {kind.zone}", kind.accelerator)
    price = next((prices[name] for name in names if name in prices), None)
    return None if price is None else price * hours
