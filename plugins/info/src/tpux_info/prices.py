"""The table of prices per hour, by type of machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, RootModel

from tpux import api
from tpux.fields import read_data_file

PRICES = "prices.yaml"


def read_prices(given: Path | None = None) -> Mapping[str, float]:
    """Return the prices per hour, by type; none if there is no table.

    Args:
        given: the table; by default `prices.yaml` in the directory of the store.

    Raises:
        ConfigError: the file cannot be read, or is no table of prices.
    """
    path = given or api.home() / PRICES
    if given is None and not path.exists():
        return {}
    return read_data_file(path, RootModel[dict[str, Annotated[float, Field(strict=True)]]]).root
