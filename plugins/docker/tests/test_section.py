"""The keys of the section, as jobman's users write them, and the arguments that they become."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from pydantic import ValidationError

import tpux_docker
from tpux import Command
from tpux_docker.container import Container
from tpux_docker.section import DockerSection
from tpux_testing import job, worker

JOBMAN = """
job: {env_type: docker}
docker:
  image: yx3038/maxtext_base_image:latest
  env_vars:
    - HOME=/home/zephyr
  mount_dirs:
    - /home/zephyr
    - /dev
    - /run
    - /home/zephyr/.config/gcloud:/root/.config/gcloud
    - ~/.ssh:/root/.ssh:ro
    - $HOME/data
  workdir: /home/zephyr
  flags: ["--privileged", "--network=host", "--shm-size 16g", "-it", "--rm"]
command: {cmd: 'pip show jax', workers: [0]}
"""
HOME = {"TPUX_RUN_HOME": "/home/zoe", "TPUX_RUN_ID": "x"}
COMMAND = Command(("bash", "/home/zoe/a,b"), "/home/zoe/a,b", HOME)


def arguments(config: str, command: Command = COMMAND) -> list[str]:
    made = job(config)
    return Container(made, made.sections["docker"], worker(2)).run_arguments(command, 0)[5 + len(command.directories) :]


def test_jobmans_keys():
    made = arguments(JOBMAN)
    image = made.index("yx3038/maxtext_base_image:latest")
    assert made[:4] == ["run", "--interactive", "--rm", "--log-driver=none"]
    assert re.fullmatch("--name=tpux-000001-[0-9a-z]{4}-0-w2", made[4])
    assert made[5].startswith("--label=tpux.worker=")
    options = made[6:image]
    assert options[:2] == ["--ulimit=memlock=-1:-1", "--privileged"]
    assert options[2:5] == ["--network=host", "--shm-size", "16g"]
    assert options[5:-1] == [
        "--volume=/home/zephyr:/home/zephyr",
        "--volume=/dev:/dev",
        "--volume=/run:/run",
        "--volume=/home/zephyr/.config/gcloud:/root/.config/gcloud",
        "--volume=/home/zoe/.ssh:/root/.ssh:ro",
        "--volume=/home/zoe/data:/home/zoe/data",
        '--mount=type=bind,"source=/home/zoe/a,b","target=/home/zoe/a,b",readonly',
        '--mount=type=bind,"source=/home/zoe/a,b.mark","target=/home/zoe/a,b.mark"',
    ]
    assert options[-1] == "--workdir=/home/zephyr"
    assert made[image + 1 : image + 3] == ["bash", "-c"]
    assert made[-3:] == ["/home/zoe/a,b.mark", "bash", "/home/zoe/a,b"]


def test_the_directories_of_the_code_and_of_the_output_are_mounted():
    output = {"TPUX_OUTPUT_DIR": "/out/j-1/attempt-2", "TPUX_PREVIOUS_OUTPUT_DIR": "/out/j-1/attempt-1"}
    code = replace(COMMAND, cwd=".tpux/code/jobs/k", env={**HOME, **output})
    made = arguments(JOBMAN, code)
    assert made.count("--mount=type=bind,source=/out/j-1,target=/out/j-1") == 1
    assert "--mount=type=bind,source=/home/zoe/.tpux/code/jobs/k,target=/home/zoe/.tpux/code/jobs/k" in made
    assert "--workdir=/home/zoe/.tpux/code/jobs/k" in made
    named = arguments(JOBMAN, replace(code, directories=("/home/zoe/.tpux/runs", "/out/j-1")))
    assert "--mount=type=bind,source=/home/zoe/.tpux/runs,target=/home/zoe/.tpux/runs" in named
    assert named.count("--mount=type=bind,source=/out/j-1,target=/out/j-1") == 1
    assert "--workdir=/home/zephyr" not in made
    # The user's own mount of the same directory counts, and a bucket is none.
    own = "job: {env_type: docker}\ndocker: {image: a, mount_dirs: ['/other:/out/j-1']}\ncommand: {cmd: x}\n"
    assert not [argument for argument in arguments(own, code) if argument.startswith("--mount") and "/out" in argument]
    bucket = replace(COMMAND, env={**HOME, "TPUX_OUTPUT_DIR": "gs://bucket/j-1/attempt-2"})
    assert "bucket" not in str(arguments(own, bucket))


def test_devices_and_privileges_by_default():
    made = arguments("job: {env_type: docker}\ndocker: {image: a, flags: --net=none}\ncommand: {cmd: x}\n")
    assert made[6:10] == ["--privileged", "--ipc=host", "--ulimit=memlock=-1:-1", "--net=none"]


def test_the_commands_variables_outrank_the_containers():
    text = "{job: {env_type: docker, environment: {B: job}}, command: {cmd: x, env: {A: command}}, docker: "
    made = job(text + "{image: a, env_vars: {A: docker, B: docker, C: 5, PYTHONUNBUFFERED: ''}}}")
    variables = Container(made, made.sections["docker"], worker()).variables(
        Command(("x",), "x", {**HOME, "A": "command", "B": "job", "PYTHONUNBUFFERED": "1"})
    )
    marks = {"TPUX_CONTAINER_RUN_HOME": "/home/zoe", "TPUX_CONTAINER_RUN_ID": "x"}
    assert variables == {"A": "command", "B": "job", "C": "5", "PYTHONUNBUFFERED": "", **marks}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"image": "Zoe/Train"}, "the name of a repository has no capital letters"),
        ({"image": "--privileged"}, "is not the name of an image"),
        ({"image": "a b"}, "is not the name of an image"),
        ({"env_vars": ["HOME"]}, "'HOME' has no value: write HOME=VALUE"),
        ({"env_vars": ["A B=1"]}, "env_vars"),
        ({"mount_dirs": ["data:/data"]}, "must be absolute, or begin with ~/"),
        ({"mount_dirs": ["/data:data"]}, "the directory in the container must be absolute"),
        ({"mount_dirs": ["/a:/b:ro:z"]}, "write DIRECTORY, or DIRECTORY:DIRECTORY_IN_THE_CONTAINER"),
        ({"workdir": "src"}, "'src' is not absolute"),
        ({"flags": ["--name=x"]}, "--name cannot be set: tpux names the container"),
        ({"flags": "--restart always"}, "--restart cannot be set"),
        ({"mount_dirs": ["/data:/data:r"]}, "'r' is not an option of a mount: write ro to only read"),
        ({"mount_dirs": ["/data:/"]}, "the directory in the container cannot be /"),
        ({"flags": ["image"]}, "'image' is not an option of docker run"),
        ({"flags": ["--", "--init"]}, "'--' is not an option of docker run"),
        ({"flags": ["--env 'A"]}, '"--env \'A": No closing quotation'),
    ],
)
def test_bad_values(keys, message):
    with pytest.raises(ValidationError, match=message):
        DockerSection.model_validate({"image": "a", **keys})


@pytest.mark.parametrize(
    "image", ["ubuntu", "a/b:1.2_3", "localhost:5000/x", "US-docker.pkg.dev/p-1/r/i@sha256:" + "0" * 64, "[::1]:80/a"]
)
def test_names_of_images(image):
    assert DockerSection(image=image).image == image


def test_preflight_says_what_is_left_out():
    (finding,) = tpux_docker.preflight(job(JOBMAN))
    assert finding.message == "-it is left out: there is no terminal, and tpux waits for the program"
    assert tpux_docker.preflight(job(JOBMAN.replace('"-it", ', ""))) == []


def test_preflight_says_which_directory_the_command_starts_in(tmp_path):
    config = JOBMAN.replace("docker:\n", f"code: {tmp_path}\ndocker:\n", 1)
    assert "docker.workdir has no effect" in tpux_docker.preflight(job(config))[-1].message
