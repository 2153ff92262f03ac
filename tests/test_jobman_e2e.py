"""The configs of jobman's documents run to their end: modules and environments on emulated TPU VMs.

The machine image of the emulator has what the real one has, or gets from the internet: docker with the image, which is
made offline; a `gcsfuse` that mounts with rclone; and a `conda`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins/docker/tests/support"))

from docker_support import RUNTIME, image_layer

from tests.test_secrets import CANARIES, ArgumentLists, files_with_secrets
from tpux_emulator.emulator import Emulator
from tpux_emulator.testing import tpu_emulator

__all__ = ["tpu_emulator"]
ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "core/tests/configs"
GUIDE_BUCKET, V2_BUCKET = "llm_pruning_us_central2_b", "llm_pruning_us_east1_d"
RATE = 20
"""How many times faster the clocks of tpux and of the emulator are."""
IMAGE = "yx3038/maxtext_base_image:latest"
PIP = """#!/usr/bin/env bash
[ -e gcs-bucket/go ] || echo "waiting"
while [ ! -e gcs-bucket/go ]; do sleep 0.2; done
echo "$2 $HOME $(cat gcs-bucket/go) ${#KEY} ${#TOKEN}"
"""
# Debian's own needs a network for the containers, and rights that a sandbox does not have.
START_DOCKER = f"""#!/bin/sh
if ! mountpoint -q /sys/fs/cgroup; then
    if [ -e /proc/cgroups ] && ! grep -q '0::/' /proc/self/cgroup || [ "$(wc -l </proc/self/cgroup)" -gt 1 ]; then
        mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
        for name in $(awk '!/^#/ && $4 == 1 {{ print $1 }}' /proc/cgroups); do
            mkdir "/sys/fs/cgroup/$name"
            mount -t cgroup -o "$name" cgroup "/sys/fs/cgroup/$name" || rmdir "/sys/fs/cgroup/$name"
        done
    else
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
    fi
fi
mkdir -p /run/docker-data
setsid dockerd --data-root=/run/docker-data --storage-driver=vfs --iptables=false --ip6tables=false --bridge=none \\
    --add-runtime=tests=/usr/local/lib/tests-runtime --default-runtime=tests >/var/log/docker.log 2>&1 </dev/null &
until docker version >/dev/null 2>&1; do sleep 0.2; done
docker import /usr/local/lib/image.tar {IMAGE}
"""
CONDA = """#!/bin/sh
case "$1 $2" in
"env create") mkdir -p "$HOME/envs/fms/conda-meta" && cp -r /usr/local/lib/conda-env "$HOME/envs/fms/bin" ;;
"run -n") shift 3; [ -d "$HOME/envs/fms" ] && CONDA_PREFIX=$HOME/envs/fms PATH=$HOME/envs/fms/bin:$PATH exec "$@" ;;
"shell.bash hook") echo 'conda() { export CONDA_PREFIX=$HOME/envs/$2 PATH=$HOME/envs/$2/bin:$PATH; }' ;;
esac
"""


def _unavailable() -> str:
    if os.geteuid() != 0:
        return "workers with files of their own need root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if lacks := [
        name for name in ("sshd", "dockerd", "rclone", "fusermount3") if shutil.which(name, path=path) is None
    ]:
        return f"{', '.join(lacks)} missing: scripts/test-deps.sh installs them"
    return "" if os.access("/dev/fuse", os.R_OK | os.W_OK) else "/dev/fuse cannot be opened"


@pytest.fixture
def storage() -> Iterator[str]:
    """Serve the buckets of the configs; return the address."""
    from gcp_storage_emulator.handlers import buckets
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True)
    for name in (GUIDE_BUCKET, V2_BUCKET):
        buckets.create_bucket(name, server._storage)
    server.start()
    yield f"http://127.0.0.1:{server._api._httpd.server_port}"
    server.stop()


@pytest.fixture
def cloud(tpu_emulator: Callable[..., Emulator], storage: str, tmp_path: Path) -> Emulator:
    """Start an emulator with a machine image."""
    if reason := _unavailable():
        pytest.skip(reason)
    image = tmp_path / "emulator/image"
    gcsfuse = (ROOT / "plugins/gcsfuse/tests/gcsfuse").read_text()
    own = f"#!/bin/sh\nexport STORAGE_ENDPOINT={storage} GCSFUSE_CALLS=/tmp/calls\n"
    files = {
        "etc/init.d/docker": START_DOCKER,
        "usr/local/bin/gcsfuse": gcsfuse.replace("#!/bin/sh\n", own, 1),
        "usr/local/bin/conda": CONDA,
        "usr/local/lib/conda-env/pip": PIP,
        "usr/local/lib/conda-env/python": "#!/bin/sh\n",
        "usr/local/lib/tests-runtime": RUNTIME,
    }
    for name, text in files.items():
        (image / name).parent.mkdir(parents=True, exist_ok=True)
        (image / name).write_text(text)
        (image / name).chmod(0o755)
    programs = ("bash", "sh", "cat", "sleep", "env")
    (image / "usr/local/lib/image.tar").write_bytes(image_layer(programs, {"pip": PIP}))
    return tpu_emulator(home=image.parent, clock_rate=RATE)


@pytest.fixture
def user(tpux, cloud: Emulator, storage: str, tmp_path: Path) -> Path:
    """Give the user of `tpux` a home directory with the files that the configs name; return it."""
    home = tmp_path / "user"
    (home / ".ssh").mkdir(parents=True)
    for name in ("id_rsa", "id_ed25519_github"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / ".ssh" / name], check=True)
    for name in ("assets/fms.yaml", "assets/requirements.txt"):
        (tpux.work / name).parent.mkdir(exist_ok=True)
        (tpux.work / name).touch()
    tpux.env |= {"HOME": str(home), "LOGNAME": "zephyr", "TPUX_GCP_STORAGE_ENDPOINT": storage}
    tpux.env |= {**cloud.environment(), "TPUX_CLOCK_RATE": str(RATE), **CANARIES}
    return home


def put(storage: str, bucket: str, name: str) -> None:
    """Put an object into a bucket."""
    urlopen(f"{storage}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", data=bucket.encode()).close()


def shown(tpux, job: str) -> list[tuple[str, ...]]:
    """Return what the stand-in for pip has printed: the package, $HOME, the bucket, and the lengths of two secrets."""
    lines = tpux.output(job).decode().splitlines()
    return [tuple(line.split()) for line in lines if line != "waiting"]


def length(secret: str) -> str:
    return str(len(CANARIES[f"CANARY_{secret}"]))


@pytest.mark.system
def test_the_configs_of_its_documents_run_to_their_end_and_leave_no_secret(tpux, cloud, storage, user):
    guide = (CONFIGS / "jobman-guide.yaml").read_text()
    v2 = (CONFIGS / "jobman-v2.yaml").read_text().replace("/u/yx1168", str(user))
    once, secret = "job.loop=false", "command.env={KEY: '${env:CANARY_ENV}'}"
    index = "conda.requirements=['--index-url=https://ann:${env:CANARY_CONDA}@127.0.0.1/simple']"
    arguments = ArgumentLists()
    arguments.start()
    in_docker = tpux.create(
        guide,
        "tpu.accelerator=v4-8",
        once,
        secret,
        "docker.env_vars={HOME: /home/zephyr, TOKEN: '${env:CANARY_DOCKER}'}",
    )
    in_conda = tpux.create(guide, "tpu.accelerator=v4-16", once, secret, index, "job.env_type=conda")
    of_v2 = tpux.create(v2)
    for job in (in_docker, in_conda):
        tpux.until(lambda job=job: b"waiting" in tpux.output_so_far(job), f"for job {job} to run its command")  # type: ignore[misc]
    left = {path for path in files_with_secrets(tpux.home) if not path.endswith("/secrets.json")}
    left |= files_with_secrets(cloud.home.path)
    put(storage, GUIDE_BUCKET, "go")
    put(storage, V2_BUCKET, "go")
    tpux("wait", in_docker, in_conda, of_v2)
    tpux.until(lambda: not list(tpux.home.glob("jobs/*/*/secrets.json")))
    left |= files_with_secrets(tpux.home) | files_with_secrets(cloud.home.path)
    arguments.ended.set()
    arguments.join()

    assert shown(tpux, in_docker) == [
        (name, "/home/zephyr", GUIDE_BUCKET, length("ENV"), length("DOCKER")) for name in ("flax", "jax")
    ]
    assert shown(tpux, in_conda) == [
        (name, "/home/zephyr", GUIDE_BUCKET, length("ENV"), "0") for name in ("flax", "jax")
    ]
    assert shown(tpux, of_v2) == [(name, "/", V2_BUCKET, "0", "0") for name in ("jax", "flax")]
    copied = (tpux.directory(in_conda) / "logs/conda_worker_1.log").read_text()
    assert "copied from worker 0" in copied, copied
    assert (left, arguments.found) == (set(), set())
