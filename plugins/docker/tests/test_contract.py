"""The plugin keeps the contracts of a module and of an environment, with a real docker daemon."""

from __future__ import annotations

import pytest

from tpux_testing import environment_contract, hooks_contract, module_contract, section_contract


@pytest.mark.system
def test_hooks_and_section():
    hooks_contract("docker")
    example = {"image": "a/b:1", "env_vars": ["HOME=/home/me"], "mount_dirs": ["/data"], "workdir": "/", "flags": []}
    section_contract("docker", example=example)


def test_module(daemon, local_host):
    def new_host():
        daemon("rmi", "--force", daemon.image)
        return local_host(PATH=daemon.path)

    module_contract("docker", {"image": daemon.image}, new_host=new_host)


def test_environment(daemon, image):
    environment_contract("docker", {"image": image})
    assert daemon.containers() == []
