"""`tpux web`: whom it answers, and with what. The page itself is tested in test_web_browser.py."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.web_server import Web, serving

DATA = ("/api/stream?topic=jobs/1/", "/api/jobs/1/log/1/0/5", "/api/jobs/1/actions/stop")
OPEN = ("/", "/jobs", "/jobs/1", "/machines", "/queue", "/static/app.js", "/static/vendor/ansi_up.js")
LOOP = "job: {name: llama}\ncommand: {cmd: 'echo step 7; exec sleep 300'}\n"


@pytest.fixture
def job(tpux):
    """A job that has ended, and has printed a line."""
    made = tpux.create("job: {name: llama}\ncommand: {cmd: 'echo secret output'}\n")
    tpux("wait", made)
    return made


@pytest.fixture
def web(tpux, job):
    with serving(tpux, "--port", "0") as one:
        yield one


@pytest.fixture
def acting(tpux, job):
    with serving(tpux, "--port", "0", "--allow-actions") as one:
        yield one


# --- who is answered --------------------------------------------------------------------------------


OWN = ("localhost", "127.0.0.1", "[::1]", "localhost:9000", "127.0.0.1:1", "[::1]:65535")
OTHERS = (
    *("evil.example", "localhost.evil.example", "evil.localhost", "127.0.0.1.evil.example:80", "127.0.0.2", "0.0.0.0"),
    *("localhost@evil.example", "localhost:", "localhost:80:80", "[::1", "2130706433", "", None),
)


def test_any_port_of_this_machine_is_its_name_and_nothing_else(web):
    for host in OWN:
        assert web("/jobs", Host=host).code == 200, host
        assert web(DATA[1], Host=host, Origin=f"http://{host}").code == 200, host
    for host in OTHERS:
        for path in (*OPEN, *DATA):
            assert web(path, Host=host).code in (400, 403), (host, path)
    with socket.create_connection(("127.0.0.1", web.port), timeout=60) as old:  # HTTP/1.0 needs no Host
        old.sendall(b"GET /jobs HTTP/1.0\r\n\r\n")
        assert b" 403 " in old.recv(100)


def test_another_origin_is_refused(acting):
    own = f"127.0.0.1:{acting.port}"
    for origin in ("null", "http://evil.example", f"https://{own}", "http://localhost:1", f"http://{own}.evil.example"):
        for path in (*OPEN, *DATA):
            assert acting(path, Origin=origin).code == 403, (origin, path)
        headers = {"Origin": origin, "Sec_Fetch_Site": "same-origin"}
        assert acting("/api/jobs/1/actions/delete", "POST", body={"state": "succeeded"}, **headers).code == 403


def test_another_site_reads_no_data(web):
    for site in ("cross-site", "same-site"):
        assert [web(path, Sec_Fetch_Site=site).code for path in DATA] == [403, 403, 403]
    assert web(DATA[1], Sec_Fetch_Site="same-origin").code == 200


def test_data_need_the_token(web):
    for token in (None, "x" * 43, "\xe9", web.token[:-1]):
        for path in DATA:
            answer = web(path, token=token)
            assert answer.code == 401, (token, path)
            assert b"llama" not in answer.body
    assert web(DATA[1], token=None, Cookie=f"token={web.token}").code == 401, "cookies are for every port"
    assert web(f"{DATA[1]}?token={web.token}", token=None).code == 401
    assert web(DATA[1]).json()["text"] == "secre"


def test_pages_without_a_token_have_no_data(web):
    for path in OPEN:
        answer = web(path, token=None)
        assert answer.code == 200, path
        assert not re.search(rb"llama|secret output", answer.body), path
        assert web.token.encode() not in answer.body


def test_every_other_method_is_refused(acting):
    same = {"Origin": f"http://127.0.0.1:{acting.port}", "Sec_Fetch_Site": "same-origin"}
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "POST"):
        for path in (*OPEN, *DATA[:2], *([DATA[2]] if method != "POST" else [])):
            answer = acting(path, method, **same)
            assert (answer.code, answer.json()) == (405, {"error": "this method is not allowed"}), (method, path)


NOTHING = (
    *("/api/jobs/../../etc/passwd", "/static/../guard.py", "/static/..%2fguard.py", "/static/vendor/VENDOR"),
    *("/static//etc/passwd", "/static/%2fetc%2fpasswd", "/jobs/1e1", "/jobs/-1", "/jobs/1%00"),
    *(
        "/api/jobs/x/log/1/0/5",
        "/api/jobs/llama/log/1/0/5",
        "/api/jobs/1/log/1/-1/5",
        "/api/jobs/llama/actions/stop",
        "/api/jobs/1/actions/run",
    ),
    *("/api/nothing", "/docs", "/api/jobs/" + "1" * 150 + "/actions/stop", "/" + "x" * 5000),
    *("http://evil.example/api/nothing", "//api/stream"),
)


def test_what_is_no_page_is_not_there(web):
    for path in NOTHING:
        answer = web(path)
        assert answer.code in (400, 404, 414), (path[:60], answer.body)
        assert b"root:" not in answer.body
    assert web("/" + "x" * 5000).code == 414


POLICY = [
    *("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data:"),
    *("worker-src 'self'", "base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'"),
]


def test_a_header_that_comes_twice_is_not_the_one_that_is_looked_at(web):
    """What is in front of the server, or behind it, may take the other one."""
    right, host = f"Authorization: Bearer {web.token}", f"Host: 127.0.0.1:{web.port}"
    for headers, codes in (
        ([host, right], (200,)),
        ([host, right, "Authorization: Bearer x"], (401,)),
        ([host, "Authorization: Bearer x", right], (401,)),
        ([host, right, right], (401,)),
        ([host, host, right], (400, 403)),
        ([host, "Host: evil.example", right], (400, 403)),
        ([host, right, f"Origin: http://127.0.0.1:{web.port}", "Origin: http://evil.example"], (403,)),
        ([host, right, "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"], (403,)),
    ):
        with socket.create_connection(("127.0.0.1", web.port), timeout=60) as one:
            one.sendall("\r\n".join([f"GET {DATA[1]} HTTP/1.1", *headers, "Connection: close", "", ""]).encode())
            assert int(one.recv(100).split()[1]) in codes, headers


def test_every_answer_says_what_the_browser_must_not_do(web):
    for answer in (web("/jobs"), web(DATA[1]), web("/nothing"), web("/jobs", Host="evil.example"), web("/", "PUT")):
        policy = answer.headers["Content-Security-Policy"]
        assert policy.split("; ") == POLICY
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        for name in ("Cross-Origin-Opener-Policy", "Cross-Origin-Resource-Policy"):
            assert answer.headers[name] == "same-origin"
        names = {name.lower() for name in answer.headers}
        assert not any(name.startswith("access-control") or name in ("set-cookie", "server") for name in names)


def test_the_token_is_in_a_file_of_the_user_alone_and_nowhere_else(web, tpux):
    [path] = web.directory.glob("token-*")
    assert path.read_text().strip() == web.token
    assert (path.stat().st_mode & 0o777, web.directory.stat().st_mode & 0o777) == (0o600, 0o700)
    for name in ("cmdline", "environ"):
        assert web.token.encode() not in Path(f"/proc/{web.process.pid}/{name}").read_bytes()
    web("/api/nothing")
    assert web.end() == 0
    assert web.token not in web.said
    assert [*web.directory.iterdir()] == [], "neither a log of requests nor the token remains"
    with serving(tpux, "--port", "0") as again:
        assert again.token != web.token


def test_the_socket_is_for_the_user_alone(tpux, job):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        tpux.env.pop(name, None)
    with serving(tpux) as web:
        assert (web.socket.stat().st_mode & 0o777, web.directory.stat().st_mode & 0o777) == (0o600, 0o700)
        assert web(DATA[1], Host="localhost:8080").json()["text"] == "secre"
        assert web(DATA[1], Host="localhost:8080", token=None).code == 401
        assert "already runs" in tpux("web", "--socket", code=2).stderr
        web.process.kill()
        web.process.wait()
    with serving(tpux, "--socket") as web:
        assert web("/jobs", Host="localhost").code == 200, "that of a server that was killed is no obstacle"
    assert not web.socket.exists()


def test_with_a_display_it_is_a_port(tpux):
    tpux.env["DISPLAY"] = ":0"
    with serving(tpux) as web:
        assert web("/jobs").code == 200
        assert "cannot be used" in tpux("web", "--port", str(web.port), code=2).stderr
        with socket.socket() as other, pytest.raises(OSError, match="refused"):
            other.connect(("127.0.0.2", web.port))


@pytest.mark.parametrize("to", ["port", "socket"])
def test_it_is_reached_through_ssh(tpux, job, tmp_path, to):
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if not sshd or not shutil.which("ssh"):
        pytest.skip("OpenSSH is not installed (apt install openssh-server)")
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key], check=True)
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as one:
            ports.append(one.getsockname()[1])
    (tmp_path / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{ports[0]}\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\n"
        f"StrictModes no\nPidFile none\nPermitRootLogin yes\nUsePAM no\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([sshd, "-D", "-e", "-f", tmp_path / "sshd_config"], stderr=subprocess.DEVNULL)
    with serving(tpux, *(["--socket"] if to == "socket" else ["--port", "0"])) as web:
        target = web.socket if to == "socket" else f"localhost:{web.port}"
        options = [f"-oUserKnownHostsFile={tmp_path}/known", "-oStrictHostKeyChecking=no", "-oExitOnForwardFailure=yes"]
        forward = ["-N", "-L", f"{ports[1]}:{target}", "-i", tmp_path / "user", "-p", str(ports[0]), "127.0.0.1"]
        deadline = time.monotonic() + 60
        tunnel = subprocess.Popen(["ssh", "-F", "none", *options, *forward], stderr=subprocess.DEVNULL)
        try:
            while True:
                assert time.monotonic() < deadline
                if tunnel.poll() is not None:
                    tunnel = subprocess.Popen(["ssh", "-F", "none", *options, *forward], stderr=subprocess.DEVNULL)
                try:
                    socket.create_connection(("127.0.0.1", ports[1]), timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.1)
            web.url = f"http://localhost:{ports[1]}"
            origin = {"Host": f"localhost:{ports[1]}", "Origin": f"http://localhost:{ports[1]}"}
            assert web(DATA[1], **origin).json()["text"] == "secre"
            assert web(DATA[1], **(origin | {"Host": "evil.example"})).code == 403
        finally:
            for process in (tunnel, server):
                process.terminate()
                process.wait(30)


# --- what is answered -------------------------------------------------------------------------------


def first(messages, topic: int = 0):
    """Return the first message of a topic."""
    return next(message["data"] for message in messages if message.get("topic") == topic)


def test_a_stream_has_each_topic_and_then_what_changes(tpux, web, job):
    with web.stream("jobs/1/", f"job/{job}", f"log/{int(job)}/1/0/end", "machines", "queue", "job/77") as messages:
        greeting = next(messages)
        assert greeting["actions"] is False
        got = {}
        while len(got) < 6:
            message = next(messages)
            got.setdefault(message["topic"], message["data"])
        assert [(row["id"], row["name"], row["state"]) for row in got[0]["rows"]] == [(1, "llama", "succeeded")]
        assert got[1]["command"] == "echo secret output"
        assert got[2]["text"] == "secret output\n"
        assert got[3]["total"]["workers"] == len(got[3]["rows"])
        assert got[4]["rows"] == []
        assert "no job 77" in got[5]["gone"]
        other = tpux.create("job: {name: second}\ncommand: {cmd: 'true'}\n")
        while True:
            message = next(messages)
            if message["topic"] == 0 and message["data"]["total"] == 2:
                break
        tpux("wait", other)


def test_a_stream_goes_on_at_its_offset_after_a_restart(tpux, job):
    log = tpux.directory(job) / "logs/attempt-1/command_worker_0.log"
    with serving(tpux, "--port", "0") as web, web.stream(f"log/{int(job)}/1/0/end") as messages:
        next(messages)
        got = first(messages)
        text, offset = got["text"], got["next"]
        web.process.kill()
        web.process.wait()
    with log.open("a") as file:
        file.write("while it was down\n")
    with serving(tpux, "--port", "0") as web, web.stream(f"log/{int(job)}/1/0/{offset}") as messages:
        next(messages)
        assert text + first(messages)["text"] == "secret output\nwhile it was down\n"


def test_the_server_ends_although_a_stream_is_open(web):
    with web.stream("jobs/1/") as messages:
        next(messages)
        assert web.end(signal.SIGINT) == 0
        assert "Traceback" not in web.said


def test_only_so_many_streams_and_topics_are_open(web):
    assert web("/api/stream?" + "&".join(["topic=machines"] * 65)).code == 503
    assert web("/api/stream?topic=passwords").code == 400
    connections = []
    for _ in range(16):
        connection = web.connection()
        headers = {"Host": "localhost", "Authorization": f"Bearer {web.token}"}
        connection.request("GET", "/api/stream?topic=queue", headers=headers)
        assert connection.getresponse().status == 200
        connections.append(connection)
    assert web("/api/stream?topic=queue").code == 503
    for connection in connections:
        connection.close()


def test_only_so_many_streams_are_open_when_all_are_requested_at_once(web):
    headers = {"Host": "localhost", "Authorization": f"Bearer {web.token}"}
    connections = [web.connection() for _ in range(30)]
    for connection in connections:
        connection.connect()
    for connection in connections:
        connection.request("GET", "/api/stream?topic=queue", headers=headers)
    codes = [connection.getresponse().status for connection in connections]
    assert (codes.count(200), codes.count(503)) == (16, 14)
    for connection in connections:
        connection.close()


def test_a_path_with_a_newline_is_no_page(web, job):
    for path in (f"/jobs/{int(job)}%0a", "/jobs%0a", f"/api/jobs/{int(job)}/log/1/0/5%0a"):
        assert web(path).code == 404, path


def test_the_difference_to_the_attempt_before(tpux, web, job):
    assert "no attempt" not in str(first_of(web, f"job/{job}")["difference"])
    tpux("rerun", job, "command.cmd=echo other")
    tpux("wait", job)
    shown = first_of(web, f"job/{job}")
    assert "-command.cmd: echo secret output\n+command.cmd: echo other" in shown["difference"]
    assert [attempt["end"] for attempt in shown["attempts"]] == ["ended", "ended"]
    assert shown["workers"] == {"1": [0], "2": [0]}


def first_of(web: Web, topic: str):
    with web.stream(topic) as messages:
        next(messages)
        return first(messages)


def test_what_machines_cost_is_said_or_unknown(tpux, web):
    job = tpux.create(LOOP)
    tpux.until_state(job, "running")
    shown = first_of(web, "machines")
    row = next(row for row in shown["rows"] if row["id"] == int(job))
    assert (row["job"], row["per_hour"], row["spent"]) == ("llama", 0.0, 0.0)
    assert "no prices" in shown["total"]["prices"]
    tpux("delete", "-y", job)


# --- actions ----------------------------------------------------------------------------------------


def test_without_the_option_nothing_is_changed(tpux, web, job):
    same = {"Origin": f"http://127.0.0.1:{web.port}", "Sec_Fetch_Site": "same-origin"}
    answer = web(f"/api/jobs/{job}/actions/delete", "POST", body={"state": "succeeded"}, **same)
    assert answer.code == 403
    assert "--allow-actions" in answer.json()["error"]
    assert tpux.directory(job).is_dir()


def test_an_action_needs_the_page_the_token_and_the_state_that_was_asked_about(tpux, acting, job):
    path, same = f"/api/jobs/{job}/actions/delete", f"http://127.0.0.1:{acting.port}"
    body = {"state": "succeeded"}
    for headers, code in (
        ({"Sec_Fetch_Site": "same-origin"}, 403),
        ({"Origin": same}, 403),
        ({"Origin": same, "Sec_Fetch_Site": "none"}, 403),
        ({"Origin": same, "Sec_Fetch_Site": "cross-site"}, 403),
        ({"Origin": same, "Sec_Fetch_Site": "same-origin", "Authorization": None}, 401),
    ):
        assert acting(path, "POST", body=body, **headers).code == code, headers
    good = {"Origin": same, "Sec_Fetch_Site": "same-origin"}
    assert acting(path, "POST", body={}, **good).code == 400
    assert acting(path, "POST", body={"state": "x" * 9000}, **good).code == 413
    answer = acting(path, "POST", body={"state": "running"}, **good)
    assert (answer.code, answer.json()["error"]) == (409, "job 1 is succeeded by now, not running: nothing was done")
    assert tpux.directory(job).is_dir()
    asked = acting(path).json()
    assert asked["state"] == "succeeded"
    assert re.search(
        r"delete job 1 \(llama\), succeeded.*would delete with all logs:\n  job 1", asked["question"], re.DOTALL
    )
    done = acting(path, "POST", body=body, **good).json()
    assert done["accepted"], done
    assert "job 1 deleted" in done["said"]
    assert not [*tpux.home.glob(f"jobs/*/{job}")]


def test_stop_resume_and_rerun(tpux, acting):
    job = tpux.create(LOOP)
    tpux.until_state(job, "running")
    good = {"Origin": f"http://127.0.0.1:{acting.port}", "Sec_Fetch_Site": "same-origin"}
    for word, state, then in (
        ("stop", "running", "stopped"),
        ("resume", "stopped", "running"),
        ("stop", "running", "stopped"),
        ("rerun", "stopped", "running"),
    ):
        path = f"/api/jobs/{int(job)}/actions/{word}"
        assert f"{word} job {int(job)} (llama), {state}" in acting(path).json()["question"]
        assert acting(path, "POST", body={"state": state}, **good).json()["accepted"]
        tpux.until_state(job, then)
    tpux("delete", "-y", job)
