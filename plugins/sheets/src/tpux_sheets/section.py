"""The config section `sheets`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tpux import Section
from tpux.fields import Duration

Column = Literal["tpu", "type", "zone", "status", "user", "job", "state", "updated"]
COLUMNS: dict[Column, str] = {
    "tpu": "TPU",
    "type": "Type",
    "zone": "Zone",
    "status": "Status",
    "user": "User",
    "job": "Job",
    "state": "State",
    "updated": "Updated",
}


class SheetsSection(Section):
    """A Google spreadsheet that shows who uses what."""

    spreadsheet: Annotated[str, Field(pattern=r"^(https?://\S+/d/[\w-]+\S*|[\w-]+)$")]
    """The spreadsheet's id, or its URL."""
    credentials: str = "~/.config/gspread/service_account.json"
    """The key file of a service account that may edit it; it is read when a row is written, and copied nowhere."""
    worksheet: str | None = None
    """The name of the sheet; by default the first one."""
    columns: dict[Column, str] = Field(default_factory=dict)
    """What heads a column in the sheet, where that is not TPU, Type, Zone, Status, User, Job, State or Updated."""
    in_use: str = "running"
    """The text of the column status for machines that a job holds."""
    free: str = "free"
    """The text of the column status for machines that were released."""
    batch: Duration = 10.0
    """Changes within this time are written at once."""
    api_url: Annotated[str, Field(pattern=r"^https?://\S+$")] = "https://sheets.googleapis.com"
    """The URL of the Sheets API."""

    def ticks(self) -> bool:
        """Return True: a write that failed is reported, and tried again, also while nothing happens."""
        return True
