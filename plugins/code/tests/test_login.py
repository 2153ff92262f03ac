"""Logins in the URLs of repositories: they reach the server, and nobody else."""

from __future__ import annotations

import base64
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tpux import TpuxError
from tpux_code.login import split_credentials
from tpux_code.section import CodeSection
from tpux_code.source import take_snapshot


@pytest.mark.parametrize(
    ("url", "shown", "stored"),
    [
        ("https://t0ken@host/a/b.git", "https://host/a/b.git", "https://t0ken:@host"),
        ("https://ann:t0%40ken@host:8443/b", "https://host:8443/b", "https://ann:t0%40ken@host:8443"),
        ("http://:t0ken@host/b?c=d", "http://host/b?c=d", "http://x:t0ken@host"),
        ("https://host/b", "https://host/b", ""),
        ("ssh://git@host/b", "ssh://git@host/b", ""),
        ("git@host:a/b.git", "git@host:a/b.git", ""),
        ("/home/ann@work/b", "/home/ann@work/b", ""),
    ],
)
def test_what_a_url_has_before_the_host_is_not_shown(url, shown, stored):
    bare, login = split_credentials(url)
    assert (bare, login.line if login else "") == (shown, stored)


@pytest.fixture
def refusing() -> Iterator[tuple[str, list[str]]]:
    """Serve nothing; return the address, and a list of the logins that arrive."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, _, login = self.headers.get("Authorization", "").partition(" ")
            if kind == "Basic":
                seen.append(base64.b64decode(login).decode())
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", seen
        server.shutdown()


@pytest.fixture
def git_calls(tmp_path, monkeypatch) -> Callable[[], str]:
    """Return a function that returns the arguments of git, and of the programs that it starts, so far."""
    tools, calls, trace = tmp_path / "bin", tmp_path / "calls", tmp_path / "trace"
    tools.mkdir()
    (tools / "git").write_text(f'#!/bin/sh\necho "$*" >>{calls}\nexec {shutil.which("git")} "$@"\n')
    (tools / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    monkeypatch.setenv("GIT_TRACE", str(trace))
    return lambda: calls.read_text() + trace.read_text()


@pytest.mark.parametrize("login", ["t0%20ken", "ann:t0ken"])
def test_a_login_in_a_url_is_sent_and_in_no_argument_list(refusing, home, git_calls, tmp_path, monkeypatch, login):
    host, seen = refusing
    monkeypatch.setenv("TMPDIR", str(tmp_path / "it's temporary"))
    Path(os.environ["TMPDIR"]).mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(TpuxError, match=r"git failed: .*Authentication failed") as caught:
        take_snapshot(CodeSection(repo=f"http://{login}@{host}/project.git"))
    assert caught.value.where == f"code.repo http://{host}/project.git"
    assert "needs a login" in caught.value.hint
    assert seen == ["t0 ken:" if login.startswith("t0") else "ann:t0ken"]
    written = [str(caught.value), caught.value.hint, git_calls()]
    assert [text for text in written if re.search("t0.{0,3}ken", text)] == []


def test_a_login_in_the_url_of_an_origin_is_in_no_argument_list_and_not_shown(work_tree, home, git_calls, refusing):
    host, seen = refusing
    config, url = work_tree.path / ".git/config", f"http://ann:t0ken@{host}/project.git"
    config.write_text(config.read_text().replace(work_tree.git("remote", "get-url", "origin"), url))
    with pytest.raises(TpuxError, match="the submodule lib cannot be fetched") as caught:
        take_snapshot(CodeSection(repo=str(work_tree.path)))
    assert seen[0] == "ann:t0ken"
    assert "t0ken" not in f"{caught.value} {caught.value.hint} {git_calls()}"
