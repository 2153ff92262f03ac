"""The config section `wandb`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tpux import Section


class WandbSection(Section):
    """Weights & Biases."""

    api_key: str | None = None
    """The API key, as ${env:WANDB_API_KEY}; it is passed to the program in a file that only the user can read."""
    base_url: Annotated[str, Field(pattern=r"^https?://\S+$")] = "https://wandb.ai"
    """The URL of the server."""
    project: str | None = None
    """The project of runs whose program does not name one."""
    one_run: bool = True
    """Whether a resumed attempt continues the run of the attempt before it."""

    def secret_keys(self) -> dict[str, str]:
        """Return the API key."""
        return {"api_key": "WANDB_API_KEY"}
