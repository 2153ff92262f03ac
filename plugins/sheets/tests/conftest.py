"""The fixture `tpux`, and a stand-in of the Sheets API and of Google's token endpoint on loopback."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from gspread.utils import a1_to_rowcol
from tests.conftest import tpux

__all__ = ["tpux"]
ID = "1abcDEF_-x"


class SheetsApi:
    """One spreadsheet with one sheet.

    Attributes:
        cells: its rows.
        requests: method and path of each request to the API.
        answers: the status codes of the next requests.
        revoked: the key is not accepted.
    """

    def __init__(self, directory: Path) -> None:
        self.cells: list[list[str]] = []
        self.requests: list[str] = []
        self.answers: list[int] = []
        self.revoked = False
        self._guard = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with outer._guard:
                    code, said = outer.handle(self.command, unquote(urlsplit(self.path).path), body, self.headers)
                with suppress(OSError):
                    self.send_response(code)
                    self.send_header("Content-Type", "application/json")
                    self.end_headers()
                    self.wfile.write(json.dumps(said).encode())

            do_GET = do_POST = do_PUT = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        account = {
            "type": "service_account",
            "client_email": "tpux@p.iam.gserviceaccount.com",
            "private_key_id": "k1",
            "private_key": key.decode(),
            "token_uri": f"{self.url}/token",
        }
        self.key_file = directory / "key.json"
        self.key_file.write_text(json.dumps(account))
        self.key_file.chmod(0o600)

    def handle(self, method: str, path: str, body: bytes, headers) -> tuple[int, object]:
        if path == "/token":
            if self.revoked:
                return 400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
            return 200, {"access_token": "t0ken", "expires_in": 3600, "token_type": "Bearer"}
        self.requests.append(f"{method} {path}")
        if headers.get("Authorization") != "Bearer t0ken":
            return 401, _error(401, "no token")
        if self.answers and (code := self.answers.pop(0)) != 200:
            return code, _error(code, "Quota exceeded for quota metric 'Write requests'")
        prefix = f"/v4/spreadsheets/{ID}"
        if path == prefix:
            grid = {"rowCount": 1000, "columnCount": 26}
            sheet = {"sheetId": 0, "title": "Sheet1", "index": 0, "sheetType": "GRID", "gridProperties": grid}
            return 200, {"spreadsheetId": ID, "properties": {"title": "TPUs"}, "sheets": [{"properties": sheet}]}
        if not path.startswith(f"{prefix}/values"):
            return 404, _error(404, "Requested entity was not found.")
        return 200, self.handle_values(method, path.removeprefix(f"{prefix}/values"), body)

    def handle_values(self, method: str, place: str, body: bytes) -> object:
        if place == ":batchUpdate":
            request = json.loads(body)
            assert request["valueInputOption"] == "RAW"
            for one in request["data"]:
                self.write(one["range"], one["values"])
            return {"spreadsheetId": ID, "replies": []}
        place = place.removeprefix("/")
        if method == "GET":
            last = max((i for i, line in enumerate(self.cells) if any(line)), default=-1)
            return {"range": place, "majorDimension": "ROWS", "values": [_trim(x) for x in self.cells[: last + 1]]}
        if place.endswith(":append"):
            self.cells += [[*line] for line in json.loads(body)["values"]]
            return {"updates": {"updatedRange": f"Sheet1!A{len(self.cells)}"}}
        self.write(place, json.loads(body)["values"])
        return {"updatedRange": place}

    def write(self, place: str, values: list[list[str]]) -> None:
        first = re.sub(r"^.*!", "", place).partition(":")[0]
        row, column = a1_to_rowcol(first)
        for y, line in enumerate(values, row - 1):
            while len(self.cells) <= y:
                self.cells.append([])
            for x, value in enumerate(line, column - 1):
                self.cells[y] += [""] * (x + 1 - len(self.cells[y]))
                self.cells[y][x] = value

    def rows(self, key: str = "TPU") -> list[dict[str, str]]:
        """Return the rows below the head as dicts."""
        with self._guard:
            head = next(i for i, line in enumerate(self.cells) if key in line)
            return [dict(zip(self.cells[head], line, strict=False)) for line in self.cells[head + 1 :]]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _error(code: int, message: str) -> object:
    return {"error": {"code": code, "message": message, "status": "RESOURCE_EXHAUSTED"}}


def _trim(line: list[str]) -> list[str]:
    return line[: max((i + 1 for i, cell in enumerate(line) if cell), default=0)]


@pytest.fixture
def sheet(tmp_path: Path) -> Iterator[SheetsApi]:
    api = SheetsApi(tmp_path)
    yield api
    api.close()
