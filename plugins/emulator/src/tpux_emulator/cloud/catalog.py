"""The accelerator types, zones and runtime versions that exist, from `catalog.yaml`."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from importlib import resources

from pydantic import BaseModel, ConfigDict
from ruamel.yaml import YAML

from tpux_emulator.cloud import answers
from tpux_emulator.errors import invalid
from tpux_emulator.messages import AcceleratorConfig, Generation, Node

_TYPE = re.compile(r"(?P<generation>[a-z0-9]+)-(?P<number>[1-9]\d*)")


class TpuGeneration(BaseModel):
    """One generation of TPUs; `catalog.yaml` explains the fields."""

    model_config = ConfigDict(extra="forbid")
    config_type: str
    unit: str
    units_per_chip: int
    units_per_worker: int
    single_worker: tuple[int, ...] = ()
    sizes: dict[int, str]

    def workers(self, number: int) -> int:
        """Return how many workers a slice of this size has."""
        return 1 if number in self.single_worker else max(1, number // self.units_per_worker)


class Catalog(BaseModel):
    """The contents of `catalog.yaml`."""

    model_config = ConfigDict(extra="forbid")
    generations: dict[str, TpuGeneration]
    zones: dict[str, list[str]]
    runtime_versions: list[str]

    def check_zone(self, zone: str) -> None:
        """Check that a zone has TPUs.

        Raises:
            ApiError: 403, as Google answers for a zone that a project has no access to.
        """
        if zone not in self.zones:
            raise answers.error("no-such-zone", zone=zone)

    def types(self, zone: str) -> list[str]:
        """Return the accelerator types of a zone, by generation and size."""
        return [
            f"{generation}-{number}" for generation in self.zones[zone] for number in self.generations[generation].sizes
        ]

    def type_of(self, node: Node, zone: str) -> str:
        """Return the accelerator type of a node, which is given by name or by generation and topology.

        Raises:
            ApiError: 400 with the field's name if the zone has no such type.
        """
        config = node.accelerator_config
        if config is not None and not node.accelerator_type:
            return self._type_by_config(config, zone)
        requested = node.accelerator_type or ""
        if requested not in self.types(zone):
            raise answers.error("no-such-type", field="node.accelerator_type", accelerator=requested, zone=zone)
        return requested

    def _type_by_config(self, config: AcceleratorConfig, zone: str) -> str:
        chips = math.prod(int(side) for side in config.topology.split("x") if side.isdigit())
        for name in self.zones[zone]:
            sizes = self.generations[name]
            number = chips * sizes.units_per_chip
            if sizes.config_type == config.type.value and sizes.sizes.get(number) == config.topology:
                return f"{name}-{number}"
        message = (
            f'CloudTpu received an invalid AcceleratorConfig, type "{config.type.value}" with topology'
            f' "{config.topology}" for zone "{zone}" cannot be found.'
        )
        raise invalid(message, "node.accelerator_config")

    def generation(self, accelerator_type: str) -> str:
        """Return the generation of an accelerator type: `v4` for `v4-32`."""
        return accelerator_type.partition("-")[0]

    def workers(self, accelerator_type: str) -> int:
        """Return how many workers a slice of this type has."""
        found = _TYPE.fullmatch(accelerator_type)
        assert found, accelerator_type  # noqa: S101  type_of has checked it
        return self.generations[found["generation"]].workers(int(found["number"]))

    def chips(self, accelerator_type: str) -> int:
        """Return how many chips a slice of this type has."""
        generation, _, number = accelerator_type.partition("-")
        return int(number) // self.generations[generation].units_per_chip

    def config(self, accelerator_type: str) -> AcceleratorConfig:
        """Return the generation and topology of an accelerator type."""
        generation, _, number = accelerator_type.partition("-")
        sizes = self.generations[generation]
        return AcceleratorConfig(type=Generation[sizes.config_type], topology=sizes.sizes[int(number)])


@lru_cache(maxsize=1)
def load_catalog() -> Catalog:
    """Return the catalog of this package."""
    text = (resources.files("tpux_emulator") / "cloud" / "catalog.yaml").read_text(encoding="utf-8")
    return Catalog.model_validate(YAML(typ="safe", pure=True).load(text))
