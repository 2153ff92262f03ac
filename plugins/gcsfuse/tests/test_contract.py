"""The plugin keeps the contracts of a module."""

from __future__ import annotations

from tpux_testing import hooks_contract, module_contract, section_contract

CONFIG = {
    "bucket_name": "data",
    "mount_path": "~/my data",
    "extra_mounts": [{"bucket_name": "models", "mount_path": "m"}],
}


def test_hooks_and_section():
    hooks_contract("gcsfuse")
    section_contract("gcsfuse", example=CONFIG)


def test_module(fuse):
    module_contract("gcsfuse", CONFIG, new_host=fuse.new_host)
