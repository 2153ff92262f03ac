"""Real workers: OpenSSH servers, each with its own file system and processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from emulator_http import ask, create, node, ready
from emulator_ssh import address, host_keys, keys_for, ssh
from emulator_support import PARENT
from typer.testing import CliRunner

from tpux_emulator.cli import app
from tpux_emulator.emulator import Emulator

MARK = f"tpux-emulator-test-sleeper-{os.getpid()}-"  # unique: other tests may run on this machine


def _sleepers() -> list[str]:
    return subprocess.run(["pgrep", "-f", MARK], capture_output=True, text=True).stdout.split()


def _until(what: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert what()


@pytest.fixture
def two(ssh_cloud: Emulator, root: None, key: Path) -> Emulator:
    """An emulator with a node `w` of two workers, on which alice and root can log in."""
    if "name" not in node(ssh_cloud, "w"):
        script = "echo started by $(whoami) on $(hostname) > /var/tmp/started"
        ready(
            ssh_cloud,
            "w",
            "v4-16",
            metadata={**keys_for(key, "alice", "root"), "startup-script": script, "color": "red"},
        )
    return ssh_cloud


def test_workers_are_isolated_from_each_other(two: Emulator, key: Path) -> None:
    hosts = [f"alice@{address(two, 'w', worker)}" for worker in (0, 1)]
    script = (
        "hostname; echo mine > /tmp/x; echo mine > ~/x; sudo -n sh -c 'echo mine > /etc/x'; ls /home; ps ax | wc -l"
    )
    first = ssh(two, key, hosts[0], script).stdout.split()
    assert first[0].endswith("-w-0")
    assert first[1] == "alice"
    assert int(first[2]) < 15
    second = ssh(two, key, hosts[1], "hostname; ls /tmp/x ~/x /etc/x")
    assert second.stdout.split()[0].endswith("-w-1")
    assert second.stderr.count("No such file") == 3
    assert not Path("/etc/x").exists()


def test_workers_share_a_directory_that_outlives_them(
    tpu_emulator: Callable[..., Emulator], root: None, key: Path
) -> None:
    cloud = tpu_emulator()
    cloud.home.shared.mkdir()
    cloud.home.shared.chmod(0o1777)
    shared = cloud.status()["shared"]
    ready(cloud, "w", "v4-16", metadata=keys_for(key, "alice"))
    hosts = [f"alice@{address(cloud, 'w', worker)}" for worker in (0, 1)]
    assert ssh(cloud, key, hosts[0], f"echo saved > {shared}/file").returncode == 0
    assert ssh(cloud, key, hosts[1], f"cat {shared}/file").stdout == "saved\n"
    cloud.preempt("w")
    cloud.wait_for("w", "PREEMPTED")
    assert (cloud.home.shared / "file").read_text() == "saved\n"


def test_host_keys_are_known_before_the_first_login(two: Emulator, key: Path) -> None:
    keys = host_keys(two, "w")
    assert len(set(keys)) == 2
    for worker in (0, 1):
        assert ssh(two, key, f"alice@{address(two, 'w', worker)}", "true", host_key=keys[worker]).returncode == 0
    assert ssh(two, key, f"alice@{address(two, 'w', 1)}", "true", host_key=keys[0]).returncode == 255


def test_workers_reach_each_other_by_internal_address_and_name(two: Emulator, key: Path) -> None:
    internal = [each["ipAddress"] for each in node(two, "w")["networkEndpoints"]]
    assert ssh(two, key, f"alice@{internal[1]}", "hostname").stdout.strip().endswith("-w-1")
    found = ssh(two, key, f"alice@{address(two, 'w')}", "getent hosts $(hostname | sed s/-w-0/-w-1/)").stdout
    assert found.split()[0] == internal[1]


def test_accounts_follow_the_metadata_of_a_running_node(two: Emulator, key: Path) -> None:
    where = address(two, "w")
    assert ssh(two, key, f"bob@{where}", "true").returncode == 255
    ssh(two, key, f"alice@{where}", "echo '# my own line' >> ~/.ssh/authorized_keys")
    body = {"metadata": {**keys_for(key, "bob", "root"), "color": "blue"}}
    change = ask(two, "PATCH", f"{PARENT}/nodes/w", params={"updateMask": "metadata"}, json=body)
    _until(lambda: bool(ask(two, "GET", change.json()["name"]).json().get("done")))
    assert ssh(two, key, f"bob@{where}", "id -un; sudo -n id -un").stdout.split() == ["bob", "root"]
    assert ssh(two, key, f"alice@{where}", "true").returncode == 255
    kept = ssh(two, key, f"bob@{where}", "sudo cat /home/alice/.ssh/authorized_keys").stdout
    assert kept == "# my own line\n"
    assert "Permission denied" in ssh(two, key, f"root@{where}", "true").stderr, "as on Google's images"
    color = "curl -s -H Metadata-Flavor:Google metadata.google.internal/computeMetadata/v1/instance/attributes/color"
    assert ssh(two, key, f"bob@{where}", color).stdout == "blue"
    body = {"metadata": {**keys_for(key, "alice", "bob", "root")}}
    change = ask(two, "PATCH", f"{PARENT}/nodes/w", params={"updateMask": "metadata"}, json=body)
    _until(lambda: bool(ask(two, "GET", change.json()["name"]).json().get("done")))


def test_the_startup_script_and_the_metadata_server(two: Emulator, key: Path) -> None:
    where = f"alice@{address(two, 'w', 1)}"
    _until(lambda: "started by root" in ssh(two, key, where, "cat /var/tmp/started").stdout)
    get = "curl -s -H Metadata-Flavor:Google http://metadata.google.internal/computeMetadata/v1/"
    output = ssh(
        two, key, where, f"{get}instance/attributes/tpu-env; {get}instance/preempted; {get}project/project-id"
    ).stdout
    assert "WORKER_ID: '1'" in output
    assert "ACCELERATOR_TYPE: 'v4-16'" in output
    assert output.endswith("FALSEemulated")
    assert ssh(
        two, key, where, "curl -s http://metadata.google.internal/computeMetadata/v1/instance/"
    ).stdout.startswith("Missing")
    put = "curl -s -X PUT --data 42 -H Metadata-Flavor:Google http://metadata.google.internal/computeMetadata/v1"
    ssh(two, key, where, f"{put}/instance/guest-attributes/mine/answer")
    answer = ask(
        two, "POST", f"{PARENT}/nodes/w:getGuestAttributes", json={"queryPath": "mine/", "workerIds": ["1"]}
    ).json()
    assert answer["guestAttributes"][0]["queryValue"]["items"] == [
        {"namespace": "mine", "key": "answer", "value": "42"}
    ]


def test_files_by_scp_and_packages_by_dpkg(two: Emulator, key: Path, tmp_path: Path) -> None:
    where = f"alice@{address(two, 'w')}"
    (tmp_path / "file").write_text("bytes")
    options = [
        "-F",
        "none",
        "-P",
        str(two.ssh_port),
        "-i",
        str(key),
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
    ]
    subprocess.run(["scp", "-q", *options, tmp_path / "file", f"{where}:file"], check=True)
    assert ssh(two, key, where, "cat file").stdout == "bytes"
    # Removing a package on a worker must not remove it from this machine.
    ssh(two, key, where, "sudo -n dpkg --remove --force-depends iproute2")
    assert ssh(two, key, where, "command -v ip").returncode == 1
    assert ssh(two, key, f"alice@{address(two, 'w', 1)}", "command -v ip").returncode == 0
    assert shutil.which("ip")


def test_preemption_ends_every_process(ssh_cloud: Emulator, root: None, key: Path) -> None:
    ready(ssh_cloud, "w2", "v4-16", metadata=keys_for(key, "alice"))
    for worker in (0, 1):
        detached = f"setsid nohup sh -c 'sleep 1000; : {MARK}' > /dev/null 2>&1 &"
        assert ssh(ssh_cloud, key, f"alice@{address(ssh_cloud, 'w2', worker)}", detached).returncode == 0
    _until(lambda: len(_sleepers()) >= 2)
    where = f"alice@{address(ssh_cloud, 'w2')}"
    ssh_cloud.preempt("w2")
    ssh_cloud.wait_for("w2", "PREEMPTED")
    _until(lambda: not _sleepers())
    _until(lambda: ssh(ssh_cloud, key, where, "true").returncode == 255)
    outcome = ask(ssh_cloud, "DELETE", f"{PARENT}/nodes/w2")
    assert outcome.status_code == 200


@pytest.mark.system
def test_a_notice_precedes_the_preemption(ssh_cloud: Emulator, root: None, key: Path) -> None:
    ready(ssh_cloud, "w3", metadata=keys_for(key, "alice"))
    where = f"alice@{address(ssh_cloud, 'w3')}"
    trap = "trap 'echo noticed > noticed' TERM; touch set; while :; do sleep 0.1; done"
    ssh(ssh_cloud, key, where, f'nohup setsid sh -c "{trap}" > /dev/null 2>&1 &')
    _until(lambda: ssh(ssh_cloud, key, where, "test -e set").returncode == 0)
    preempted = "http://metadata.google.internal/computeMetadata/v1/instance/preempted"
    ask_it = f"curl -s -H Metadata-Flavor:Google '{preempted}?wait_for_change=true&timeout_sec="
    assert ssh(ssh_cloud, key, where, f"{ask_it}1'").stdout == "FALSE", "the waiting ends after a second"
    first = ssh(ssh_cloud, key, where, f"{ask_it}3600&last_etag=NONE' -i").stdout
    assert first.endswith("FALSE"), "at once"
    [etag] = [line.split()[1] for line in first.splitlines() if line.startswith("etag:")]
    waiting = f"trap '' TERM; touch asked; {ask_it}3600&last_etag={etag}' >answer"
    ssh(ssh_cloud, key, where, f'nohup setsid sh -c "{waiting}" > /dev/null 2>&1 &')
    _until(lambda: ssh(ssh_cloud, key, where, "test -e asked").returncode == 0)
    ssh_cloud.preempt("w3", notice=3600)
    _until(lambda: ssh(ssh_cloud, key, where, "cat answer").stdout == "TRUE")
    _until(lambda: ssh(ssh_cloud, key, where, "cat noticed").stdout == "noticed\n")
    assert ssh(ssh_cloud, key, where, f"curl -s -H Metadata-Flavor:Google {preempted}").stdout == "TRUE"
    assert node(ssh_cloud, "w3")["state"] == "READY"
    ssh_cloud.preempt("w3", notice=1)
    ssh_cloud.wait_for("w3", "PREEMPTED")


def test_a_worker_cut_from_the_network_and_restored(two: Emulator, key: Path) -> None:
    hosts = [f"alice@{address(two, 'w', worker)}" for worker in (0, 1)]
    for how, words in (("hang", "timed out"), ("refuse", "refused")):
        two.cut("w", 1, how=how)
        lost = ssh(two, key, hosts[1], "true", timeout=1)
        assert lost.returncode == 255
        assert words in lost.stderr
        assert ssh(two, key, hosts[0], "true").returncode == 0
        two.restore("w", 1)
        assert ssh(two, key, hosts[1], "true").returncode == 0


def test_a_worker_whose_host_key_changed(ssh_cloud: Emulator, root: None, key: Path) -> None:
    ready(ssh_cloud, "w5", metadata=keys_for(key, "alice"))
    where, before = f"alice@{address(ssh_cloud, 'w5')}", host_keys(ssh_cloud, "w5")
    ssh_cloud.rotate_host_key("w5", 0)
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in ssh(ssh_cloud, key, where, "true", host_key=before[0]).stderr
    assert ssh(ssh_cloud, key, where, "true", host_key=host_keys(ssh_cloud, "w5")[0]).returncode == 0


def test_a_reboot_ends_processes_and_keeps_the_disk_without_tmp(ssh_cloud: Emulator, root: None, key: Path) -> None:
    ready(ssh_cloud, "w6", metadata=keys_for(key, "alice"))
    where, [host_key] = f"alice@{address(ssh_cloud, 'w6')}", host_keys(ssh_cloud, "w6")
    read = "cat kept; cat /tmp/lost; pgrep -xf 'sleep 1000'; cat /proc/sys/kernel/random/boot_id"
    ssh(ssh_cloud, key, where, "echo kept > kept; echo lost > /tmp/lost; setsid -f sleep 1000 >/dev/null 2>&1")
    kept, lost, pid, before = ssh(ssh_cloud, key, where, read).stdout.split()
    assert (kept, lost, pid.isdecimal()) == ("kept", "lost", True)
    ssh_cloud.reboot("w6")
    kept, after = ssh(ssh_cloud, key, where, read, host_key=host_key).stdout.split()
    assert kept == "kept"
    assert after != before


def test_stop_keeps_the_disk_and_delete_does_not(ssh_cloud: Emulator, root: None, key: Path) -> None:
    ready(ssh_cloud, "w4", metadata=keys_for(key, "alice"))
    where = f"alice@{address(ssh_cloud, 'w4')}"
    before = host_keys(ssh_cloud, "w4")
    ssh(ssh_cloud, key, where, "echo kept > kept")
    ask(ssh_cloud, "POST", f"{PARENT}/nodes/w4:stop", json={})
    ssh_cloud.wait_for("w4", "STOPPED")
    assert ssh(ssh_cloud, key, where, "true").returncode == 255
    ask(ssh_cloud, "POST", f"{PARENT}/nodes/w4:start", json={})
    ssh_cloud.wait_for("w4", "READY")
    assert ssh(ssh_cloud, key, where, "cat kept", host_key=before[0]).stdout == "kept\n"
    ask(ssh_cloud, "DELETE", f"{PARENT}/nodes/w4")
    ssh_cloud.wait_for("w4", "GONE")
    ready(ssh_cloud, "w4", metadata=keys_for(key, "alice"))
    assert host_keys(ssh_cloud, "w4") != before
    assert ssh(ssh_cloud, key, f"alice@{address(ssh_cloud, 'w4')}", "cat kept").returncode == 1


def test_workers_survive_a_killed_emulator(make: Callable[..., Emulator], root: None, key: Path) -> None:
    cloud = make(workers=True)
    ready(cloud, "n1", "v4-16", metadata=keys_for(key, "alice"))
    create(cloud, "n2")
    where = f"alice@{address(cloud, 'n1', 1)}"
    ssh(cloud, key, where, f"setsid nohup sh -c 'sleep 1000; : {MARK}' > /dev/null 2>&1 &")
    cloud.kill()
    assert ssh(cloud, key, where, "true").returncode == 0
    cloud.start()
    assert ssh(cloud, key, where, f"pgrep -f {MARK}").returncode == 0
    cloud.wait_for("n2", "READY")
    cloud.preempt("n1")
    cloud.wait_for("n1", "PREEMPTED")
    _until(lambda: not _sleepers())


def test_workers_start_again_after_a_stop(make: Callable[..., Emulator], root: None, key: Path) -> None:
    cloud = make(workers=True)
    ready(cloud, "n1", metadata=keys_for(key, "alice"))
    where = f"alice@{address(cloud, 'n1')}"
    cloud.stop()
    assert ssh(cloud, key, where, "true").returncode == 255
    cloud.start()
    _until(lambda: ssh(cloud, key, where, "true").returncode == 0)


@pytest.mark.system
@pytest.mark.timeout(400)
def test_sixty_four_workers(ssh_cloud: Emulator, root: None, key: Path) -> None:
    create(ssh_cloud, "w64", "v4-512", metadata=keys_for(key, "alice"))
    ssh_cloud.wait_for("w64", "READY", seconds=300)
    made = node(ssh_cloud, "w64")
    assert len({each["ipAddress"] for each in made["networkEndpoints"]}) == 64
    assert len(set(host_keys(ssh_cloud, "w64"))) == 64
    for worker in (0, 31, 63):
        assert (
            ssh(ssh_cloud, key, f"alice@{address(ssh_cloud, 'w64', worker)}", "hostname")
            .stdout.strip()
            .endswith(f"-w-{worker}")
        )
    ask(ssh_cloud, "DELETE", f"{PARENT}/nodes/w64")
    ssh_cloud.wait_for("w64", "GONE", seconds=100)


def test_stop_ends_the_workers_of_a_killed_emulator(make: Callable[..., Emulator], root: None, key: Path) -> None:
    cloud = make(workers=True)
    ready(cloud, "n1", metadata=keys_for(key, "alice"))
    where = f"alice@{address(cloud, 'n1')}"
    cloud.kill()
    done = CliRunner().invoke(app, ["stop", "--home", str(cloud.home.path)])
    assert "Stopped the workers that it had left running" in done.output
    assert ssh(cloud, key, where, "true").returncode == 255
    cloud.start()
    _until(lambda: ssh(cloud, key, where, "true").returncode == 0)


def test_the_token_of_a_service_account_is_checked(two: Emulator, key: Path) -> None:
    storage = {"scope": ["https://www.googleapis.com/auth/devstorage.read_write"]}
    ready(two, "w-storage", metadata=keys_for(key, "alice"), serviceAccount=storage)
    url = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
    asked = f"curl -s -H Metadata-Flavor:Google {url}"
    tokens = [json.loads(ssh(two, key, f"alice@{address(two, name, 0)}", asked).stdout) for name in ("w", "w-storage")]
    headers = [{"Authorization": f"Bearer {token['access_token']}"} for token in tokens]
    assert [ask(two, "GET", f"{PARENT}/nodes", headers=each).status_code for each in headers] == [200, 403]
    assert two.requests[-2].account == "123456789012-compute@developer.gserviceaccount.com"
    assert ask(two, "DELETE", f"{PARENT}/nodes/w-storage").status_code == 200
    two.wait_for("w-storage", "GONE")
    assert ask(two, "GET", f"{PARENT}/nodes", headers=headers[1]).status_code == 401
