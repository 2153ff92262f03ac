"""Workers on which docker is missing, may not be used, or cannot pull the image."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

import tpux_docker
from tpux import Command, Result, sh
from tpux_docker import scripts
from tpux_docker.section import DockerSection
from tpux_testing import job, worker

TOOLS = ["sh", "bash", "cat", "date", "env", "grep", "ln", "mkdir", "mkfifo", "mktemp", "rm", "sed", "tee", "touch"]
TOOLS += ["timeout", "chmod"]
DENIED = "permission denied while trying to connect to the Docker daemon socket"


@pytest.fixture
def programs(tmp_path) -> Path:
    """Return the only directory in PATH: root's, with neither docker nor the means to install it."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in TOOLS:
        (directory / name).symlink_to(str(shutil.which(name)))
    program(directory, "id", "echo 0")
    program(directory, "sleep", "true")
    return directory


def program(directory: Path, name: str, script: str):
    (directory / name).unlink(missing_ok=True)  # never through a link
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)


def take(host, steps) -> Result:
    """Run steps until one fails; return its result, or the last one."""
    result = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration:
            return result
        result = host.run(f"set -e\n{step.script}")
        if not result.ok:
            return result


def section(image: str = "train:v1") -> DockerSection:
    return DockerSection(image=image)


def set_up(image: str = "train:v1"):
    """Return the steps of a set-up."""
    return tpux_docker.setup(made_job(image), section(image), worker())


def pull(image: str):
    """Return the steps of a set-up up to the pull."""
    yield scripts.install()
    yield sh(scripts.PULL, image=image)


def test_docker_is_installed_and_started(programs, local_host):
    program(programs, "installed", f"[ -e {programs}/started ]")
    program(
        programs,
        "apt-get",
        f'echo "$@" >>{programs}/calls; case $* in *install*) ln -s installed {programs}/docker ;; esac',
    )
    for name in ("service", "systemctl"):
        program(programs, name, f"touch {programs}/started")
    result = take(local_host(PATH=str(programs)), pull("train:v1"))
    assert result.ok, result.text
    assert (programs / "calls").read_text().splitlines()[-1].endswith("install docker.io")


@pytest.mark.parametrize(
    ("docker", "expected"),
    [
        (None, "docker is not installed, and installing it needs root or sudo without a password"),
        (f"echo {DENIED} >&2; exit 1", "as root: usermod -aG docker zoe"),
        ("echo Cannot connect to the daemon >&2; exit 1", "the docker daemon does not answer"),
        ("exec sleep-for-ever", "the docker daemon does not answer"),
    ],
)
def test_docker_that_cannot_be_used_is_reported_with_what_to_do(programs, local_host, docker, expected):
    program(programs, "id", '[ "$1" = -u ] && echo 1000 || echo zoe')
    program(programs, "sudo", "exit 1")
    if docker:
        program(programs, "docker", docker)
    if docker == "exec sleep-for-ever":
        program(programs, "timeout", "exit 124")
    host = local_host(PATH=str(programs))
    for steps in (tpux_docker.check(section()), set_up()):
        result = take(host, steps)
        assert result.code == 1
        assert expected in result.text.splitlines()[-1]
        assert ("no answer within 30 s" in result.text) == (docker == "exec sleep-for-ever")
    command = Command(("bash", "x"), "x", {"TPUX_RUN_HOME": "/x"})
    wrapped = tpux_docker.run(made_job("a:1"), command, section(), worker())
    result = host.run(shlex.join(wrapped.argv))
    assert result.code == 126
    assert "docker cannot be used; the command was not run" in result.text


def made_job(image: str):
    return job({"job": {"env_type": "docker"}, "docker": {"image": image}})


def test_login_with_the_service_account_for_googles_registries_only(programs, local_host):
    program(programs, "curl", """echo '{"access_token": "ya29.to-ken", "expires_in": 3599}'""")
    program(
        programs,
        "docker",
        f'echo "$@" >>{programs}/calls\ncase "$*" in *login*) cat >{programs}/stdin ;; *inspect*) exit 1 ;; esac',
    )
    host = local_host(PATH=str(programs))
    assert take(host, pull("europe-docker.pkg.dev/p/r/train:v1")).ok
    _, login, pulled = [line for line in (programs / "calls").read_text().splitlines() if "version" not in line]
    assert login.endswith("login -u oauth2accesstoken --password-stdin https://europe-docker.pkg.dev")
    assert (programs / "stdin").read_text() == "ya29.to-ken"
    options, _, _ = pulled.partition(" pull europe-docker.pkg.dev/p/r/train:v1")
    directory = options.removeprefix("--config ")
    assert not Path(directory).parent.exists()

    (programs / "calls").unlink()
    assert take(host, pull("zoe/train:v1")).ok
    assert "login" not in (programs / "calls").read_text()
    program(programs, "curl", "exit 6")
    assert "pulling without a login" in take(host, pull("gcr.io/p/train:v1")).text


def test_a_token_that_root_has_stored_is_removed_by_the_user(programs, local_host, tmp_path):
    """`sudo docker login` creates the directory of its file, if there is none, as root and for root alone."""
    program(programs, "curl", """echo '{"access_token": "ya29.to-ken", "expires_in": 3599}'""")
    program(programs, "sudo", 'shift\nexec env AS_ROOT=1 "$@"')
    program(
        programs,
        "docker",
        f'[ "$AS_ROOT" ] || {{ echo {DENIED} >&2; exit 1; }}\n'
        'case "$*" in *login*) [ -d "$2" ] || echo root >"${2%/config}/owner"\n'
        'mkdir -p "$2"; cat >"$2/config.json" ;; *inspect*) exit 1 ;; esac',
    )
    program(programs, "id", "echo 1000")
    directory = tmp_path / "temporary"
    directory.mkdir()
    program(programs, "rm", 'for last; do :; done; [ ! -e "$last/owner" ] || exit 1\nexec /bin/rm "$@"')
    host = local_host(PATH=str(programs), TMPDIR=str(directory))
    result = take(host, pull("europe-docker.pkg.dev/p/r/train:v1"))
    assert result.ok, result.text
    assert list(directory.iterdir()) == []


def test_pull_from_a_registry(daemon, local_host, programs):
    """A registry that is busy is asked again; an image that does not exist is not, and says so at once."""
    daemon("rmi", "--force", daemon.image)
    program(programs, "sleep", f'echo "$@" >>{programs}/pauses')
    host = local_host(PATH=f"{programs}:{daemon.path}")
    daemon.registry.errors[:] = [503, 503, 503]
    result = take(host, set_up(daemon.image))
    assert result.ok, result.text
    assert (programs / "pauses").exists()
    assert take(host, tpux_docker.check(section(daemon.image))).ok

    (programs / "pauses").unlink()
    for name in (daemon.image.replace("v1", "v2"), daemon.image.replace("train", "other")):
        assert "No such image" in take(host, tpux_docker.check(section(name))).text
        result = take(host, set_up(name))
        assert result.code == scripts.FINAL
        assert result.text.splitlines()[-1].startswith(f"the image {name} cannot be pulled: check its name and tag")
    assert not (programs / "pauses").exists()


@pytest.mark.parametrize(
    ("code", "expected"),
    [(401, "docker login 127.0.0.1:"), (403, "docker login 127.0.0.1:")],
)
def test_a_registry_that_refuses_is_not_asked_again(daemon, local_host, programs, code, expected):
    daemon("rmi", "--force", daemon.image)
    program(programs, "sleep", f'echo "$@" >>{programs}/pauses')
    daemon.registry.errors[:] = [code] * 20
    result = take(local_host(PATH=f"{programs}:{daemon.path}"), set_up(daemon.image))
    daemon.registry.errors.clear()
    assert result.code == scripts.FINAL
    assert "who may read it" in result.text.splitlines()[-1]
    assert expected in result.text.splitlines()[-1]
    assert not (programs / "pauses").exists()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("no basic auth credentials", "docker login reg.io:5000"),
        ("write /var/lib/docker/tmp/x: no space left on device", "no space left on device"),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", "unknown authority"),
        ("http: server gave HTTP response to HTTPS client", "HTTP response to HTTPS client"),
    ],
)
def test_an_answer_that_cannot_change_is_final(programs, local_host, answer, expected):
    program(programs, "sleep", f'echo "$@" >>{programs}/pauses')
    program(programs, "docker", f'case "$*" in *version*) ;; *) echo "Error response: {answer}" >&2; exit 1 ;; esac')
    for name in ("grep", "tail"):
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(str(shutil.which(name)))
    result = take(local_host(PATH=str(programs)), pull("reg.io:5000/a/train:v1"))
    assert result.code == scripts.FINAL
    assert expected in result.text.splitlines()[-1]
    assert not (programs / "pauses").exists()


def test_a_user_who_is_not_in_the_group_uses_sudo(daemon, image, programs, local_host, tmp_path):
    program(programs, "id", "echo 1000")
    program(
        programs, "docker", f'[ "$AS_ROOT" ] || {{ echo {DENIED} >&2; exit 1; }}\nexec {shlex.join(daemon.client)} "$@"'
    )
    program(programs, "sudo", 'shift\nexec env AS_ROOT=1 "$@"')
    host = local_host(PATH=f"{programs}:{daemon.path}")
    result = take(host, set_up(image))
    assert result.ok, result.text
    assert take(host, tpux_docker.check(section(image))).ok
    (tmp_path / "script").write_text('echo "$VALUE $EUID"; exit 9\n')
    variables = {"VALUE": "a value", "TPUX_RUN_HOME": str(host.home)}
    command = Command(("bash", f"{tmp_path}/script"), f"{tmp_path}/script", variables)
    wrapped = tpux_docker.run(made_job(image), command, section(image), worker())
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in {**variables, **wrapped.env}.items())
    result = host.run(exports + shlex.join(wrapped.argv))
    assert (result.text, result.code) == ("a value 0", 9)
