"""Workers of an ordinary user: homes of their own, and the user's own sshd on a high port."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from emulator_http import ask, node, ready
from emulator_ssh import address, host_keys, keys_for, ssh
from emulator_support import PARENT, QUICK

from tpux_emulator.client import running_at
from tpux_emulator.emulator import Emulator

_UID = 4242
_AS_USER = f'mount --bind "$1" /etc/passwd && shift && exec unshare --user --map-user={_UID} --map-group={_UID} -- "$@"'


@pytest.fixture(scope="module")
def user_cloud(root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator whose process is no root: user 4242, `worker`, in a user namespace."""
    place = tmp_path_factory.mktemp("user")
    passwd = place / "passwd"
    passwd.write_text(Path("/etc/passwd").read_text() + f"worker:x:{_UID}:{_UID}::{place}:/bin/bash\n")
    made = Emulator(place / "home")
    python = [sys.executable, "-m", "tpux_emulator", "start", "--port", "0", "--home", str(made.home.path)]
    command = ["unshare", "--mount", "sh", "-c", _AS_USER, "sh", str(passwd), *python]
    with (place / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "HOME": str(place)})
    deadline = time.monotonic() + 100
    while running_at(made.home) is None and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    facts = running_at(made.home)
    if facts is None:
        process.kill()
        said = (place / "output").read_text()
        if "unshare failed" in said or "Operation not permitted" in said:
            pytest.skip(f"no user namespaces here: {said.strip()}")
        pytest.fail(said)
    made.url, made.ssh_port = str(facts["url"]), int(str(facts["ssh_port"]))
    made.change(delays=dict(QUICK))
    yield made
    made.stop()
    process.wait(60)
    assert not subprocess.run(["pgrep", "-f", str(made.home.path)], capture_output=True).stdout


@pytest.fixture
def cloud(user_cloud: Emulator, key: Path) -> Emulator:
    """The emulator with a node `n1` of two workers, made by whichever test is the first of this process."""
    if "name" not in node(user_cloud, "n1"):
        script = "touch started; echo $HOME > where"
        ready(user_cloud, "n1", "v4-16", metadata={**keys_for(key, "worker"), "startup-script": script})
    user_cloud.wait_for("n1", "READY")
    return user_cloud


def _until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_login_is_at_home_on_its_worker(cloud: Emulator, key: Path) -> None:
    assert cloud.ssh_port == 2222
    homes = []
    for worker, host_key in enumerate(host_keys(cloud, "n1")):
        where = f"worker@{address(cloud, 'n1', worker)}"
        _until(lambda: ssh(cloud, key, where, "cat where", host_key=host_key).stdout)  # noqa: B023
        done = ssh(cloud, key, where, "pwd; echo $HOME; id -u; touch mine; cat where", host_key=host_key)
        home, same, uid, third = done.stdout.split()
        assert home == same == third
        assert uid == str(_UID)
        homes.append(home)
    assert len(set(homes)) == 2


def test_files_by_sftp_land_in_the_workers_home(cloud: Emulator, key: Path, tmp_path: Path) -> None:
    where = address(cloud, "n1", 1)
    (tmp_path / "file").write_text("bytes")
    options = [
        "-F",
        "none",
        "-P",
        "2222",
        "-i",
        str(key),
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
    ]
    subprocess.run(["scp", "-q", *options, tmp_path / "file", f"worker@{where}:file"], check=True)
    assert ssh(cloud, key, f"worker@{where}", "cat file").stdout == "bytes"


def test_metadata_is_where_googles_libraries_look(cloud: Emulator, key: Path) -> None:
    get = "curl -s -H Metadata-Flavor:Google http://$GCE_METADATA_HOST/computeMetadata/v1/instance/attributes/agent-worker-number"
    assert ssh(cloud, key, f"worker@{address(cloud, 'n1', 1)}", get).stdout == "1"


def test_a_worker_cut_from_the_network_and_restored(cloud: Emulator, key: Path) -> None:
    where = f"worker@{address(cloud, 'n1')}"
    for how, words in (("hang", "timed out"), ("refuse", "refused")):
        cloud.cut("n1", 0, how=how)
        assert words in ssh(cloud, key, where, "true", timeout=1).stderr
        cloud.restore("n1", 0)
        assert ssh(cloud, key, where, "true").returncode == 0


def test_new_keys_reach_a_running_worker(cloud: Emulator, key: Path) -> None:
    where = f"worker@{address(cloud, 'n1')}"
    for users, code in (((), 255), (("worker",), 0)):
        body = {"metadata": keys_for(key, *users)}
        change = ask(cloud, "PATCH", f"{PARENT}/nodes/n1", params={"updateMask": "metadata"}, json=body).json()
        _until(lambda: ask(cloud, "GET", change["name"]).json().get("done"))  # noqa: B023
        assert ssh(cloud, key, where, "true").returncode == code


def test_preemption_ends_what_was_left_running(cloud: Emulator, key: Path) -> None:
    ready(cloud, "n2", metadata=keys_for(key, "worker"))
    mark = f"left-running-{os.getpid()}"
    where = f"worker@{address(cloud, 'n2')}"
    ssh(cloud, key, where, f"setsid nohup sh -c 'sleep 1000; : {mark}' > /dev/null 2>&1 &")
    assert subprocess.run(["pgrep", "-f", mark], capture_output=True).stdout
    cloud.preempt("n2")
    cloud.wait_for("n2", "PREEMPTED")
    _until(lambda: not subprocess.run(["pgrep", "-f", mark], capture_output=True).stdout)
    assert node(cloud, "n2")["state"] == "PREEMPTED"
    assert json.dumps(cloud.status())
