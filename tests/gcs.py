"""A server of the parts of Cloud Storage's API that look-ups use, on loopback. Objects are files of a directory."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 2
"""Objects in an answer, so that there are several pages."""


class Bucket:
    """A server with one bucket for each directory below `root`; tests change `mode` at any time.

    Attributes:
        mode: what it answers: `ok`, `forbidden`, `root forbidden` to a listing of the root, `broken`, or `silent` for
            nothing.
        requests: the paths that were asked for.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.mode, self.requests = root, "ok", list[str]()
        self._woken = threading.Event()
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                bucket.requests.append(self.path)
                while bucket.mode == "silent" and not bucket._woken.wait(0.05):
                    pass
                code = {"forbidden": 403, "broken": 500}.get(bucket.mode, 200)
                if bucket.mode == "root forbidden" and not parse_qs(urlsplit(self.path).query).get("prefix"):
                    code = 403
                if code == 200:
                    code, answer = bucket._answer(urlsplit(self.path))
                else:
                    answer = {"error": {"code": code, "message": "as the test wants"}}
                body = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._woken.set()
        self._server.shutdown()

    def _answer(self, url) -> tuple[int, dict[str, object]]:
        _, storage, _, _, bucket, *rest = url.path.split("/")
        assert storage == "storage"
        directory = self.root / bucket
        objects = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
        if not directory.is_dir():
            return 404, {"error": {"code": 404, "message": "no such bucket"}}
        if rest == ["o"]:
            return 200, self._list(
                objects, directory, {name: values[0] for name, values in parse_qs(url.query).items()}
            )
        name = unquote(rest[1]) if rest else ""
        if rest and name not in objects:
            return 404, {"error": {"code": 404, "message": "no such object"}}
        return 200, _item(directory, name)

    @staticmethod
    def _list(objects: list[str], directory: Path, query: dict[str, str]) -> dict[str, object]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        entries: dict[str, bool] = {}
        for name in objects:
            rest = name.removeprefix(prefix)
            if name.startswith(prefix):
                folder = delimiter and delimiter in rest
                entries[prefix + rest.partition(delimiter)[0] + delimiter if folder else name] = bool(folder)
        first = int(query.get("pageToken", "0"))
        page = [*entries.items()][first : first + PAGE]
        answer: dict[str, object] = {
            "items": [_item(directory, name) for name, folder in page if not folder],
            "prefixes": [name for name, folder in page if folder],
        }
        return answer | ({"nextPageToken": str(first + PAGE)} if first + PAGE < len(entries) else {})


def _item(directory: Path, name: str) -> dict[str, object]:
    written = {}
    if name:
        at = datetime.fromtimestamp((directory / name).stat().st_mtime, UTC)
        written = {"updated": at.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
    return {"kind": "storage#object", "name": name, "bucket": directory.name, "size": "1", "generation": "1", **written}
