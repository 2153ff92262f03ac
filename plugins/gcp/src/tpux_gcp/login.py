"""Credentials: Application Default Credentials, and none at an emulator."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tpux_gcp.problems import LOGIN, CloudError, Problem
from tpux_gcp.where import is_emulator

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_lock = threading.Lock()
_found: list[Credentials] = []


def credentials(endpoint: str) -> Credentials:
    """What requests to this endpoint are signed with.

    Application Default Credentials are looked for once a process and shared: google-auth refreshes them
    as they expire. Where there are none they are looked for again at the next call.

    Raises:
        CloudError: there are none, or they cannot be read; the hint says which command logs in.
    """
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError

    if is_emulator(endpoint):
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    with _lock:
        if not _found:
            try:
                found, _ = google.auth.default(scopes=SCOPES)
            except GoogleAuthError as error:
                said = " ".join(str(error).split())
                raise CloudError(Problem("auth", f"no Google Cloud credentials: {said}", LOGIN)) from error
            _found.append(found)
        return _found[0]
