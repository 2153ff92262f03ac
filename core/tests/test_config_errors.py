"""Errors in the content of a config: each with its position, all reported at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpux.model.sections import CORE_SECTIONS

Problems = Callable[..., list[str]]
Load = Callable[..., object]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("comand: {cmd: x}", "1:1", "unknown section 'comand' | did you mean 'command'?"),
        ("command: {cdm: x, cmd: y}", "1:11", "unknown key 'command.cdm' | did you mean 'cmd'?"),
        ("command: {}", "1:1", "missing key 'command.cmd'"),
        ("command:", "1:1", "missing key 'command.cmd' (the section is empty)"),
        ("command: {cmd: null}", "1:16", "command.cmd is empty"),
        ("command: {cmd: ''}", "1:16", "command.cmd is empty"),
        ("command: {cmd: x, run: y}", "1:10", "command: cmd and run are the same key"),
        ("command: [echo]", "1:10", "command must be a mapping"),
        ("command: {cmd: [a, b]}", "1:16", "command.cmd must be a string"),
        ("command: {cmd: 5}", "1:16", 'must be a string; 5 without quotes is a number | quote it: "5"'),
        ("command: {cmd: true}", "1:16", 'true without quotes is true or false | quote it: "true"'),
        ("command: {cmd: x, workers: x}", "1:28", "command.workers must be an integer or a list or 'all'"),
        ("command: {cmd: x, workers: al}", "1:28", "did you mean 'all'?"),
        ("command: {cmd: x, workers: [0, a]}", "1:32", "command.workers.1 must be an integer"),
        ("command: {cmd: x, workers: -1}", "1:28", "greater than or equal to 0"),
        ("command: {cmd: x, workers: true}", "1:28", "command.workers must be"),
        ("command: {cmd: x, workers: []}", "1:28", "command.workers is empty"),
        ("command: {cmd: x, workers: [0, 0]}", "1:32", "duplicate worker 0"),
        ("command: {cmd: x, workers: 1}", "1:28", "no worker 1: the job has 1 worker"),
        ("command: {cmd: x, workers: [3, 4]}\ntpu: {accelerator: v4-32}", "1:32", "no worker 4"),
        ("command: {cmd: x, workers: 8}\ntpu: {accelerator: [v4-32, v4-64], node_count: 2}", "1:28", "8 workers"),
        ("command: {cmd: x, grace_period: soon}", "1:33", "is not a duration"),
        ("command: {cmd: x}\nsetup: {tries: true}", "2:16", "setup.tries must be an integer"),
        ("command: {cmd: x}\ntpu: {node_count: false}", "2:19", "tpu.node_count must be an integer"),
        ("command: {cmd: x}\njob: {max_restarts: {program: true}}", "2:31", "max_restarts.program must be an integer"),
        ("command: {cmd: x}\ntpu: {allocation_mode: ''}", "2:24", "tpu.allocation_mode is empty"),
        ("job: {worker_num: a_1}", "1:19", "job.worker_num"),
        ("tpu: {accelerator: v4-12}", "1:20", "v4 has no size 12"),
        ("tpu: {accelerator: v99-8}", "1:20", "unknown accelerator 'v99-8'"),
        ("tpu: {accelerator: v44-8, allocation_mode: local}", "1:20", "did you mean v4-N?"),
        ("tpu: {accelerator: v4-12, allocation_mode: tpu-vm}", "1:20", "v4 has no size 12"),
        ("tpu: {accelerator: h100, allocation_mode: tpu-vm}", "1:20", "unknown accelerator 'h100'"),
        ("tpu: {accelerator: [v4-8, v5x]}", "1:27", "unknown accelerator 'v5x'"),
        ("tpu: {pricing: spto}", "1:16", "did you mean 'spot'?"),
        ("tpu: {zone: 5}", "1:13", "tpu.zone must be a string; 5 without quotes"),
        ("tpu: {tags: x}", "1:13", "tpu.tags must be a list"),
        ("tpu: {tags: [x, 3.10]}", "1:17", '3.10 without quotes is a number | quote it: "3.10"'),
        ("tpu: {labels: {a: 1}}", "1:19", "tpu.labels.a must be a string"),
        ("tpu: {node_count: 0}", "1:19", "greater than or equal to 1"),
        ("tpu: {startup_script: nowhere.sh}", "1:23", "file not found"),
        (
            "tpu: {allocation_mode: tpuvm}",
            "1:24",
            "allocator 'tpuvm': no plugin 'tpuvm' is installed | did you mean 'tpu-vm'?",
        ),
        ("tpu: {allocation_mode: hosts}", "1:24", "pip install tpux-plugin-ssh"),
        ("tpu: {allocation_mode: docker}", "1:24", "plugin 'docker' is not usable as allocator"),
        ("job: {rule: resum}", "1:13", "rule 'resum': no plugin 'resum' is installed | did you mean 'resume'?"),
        ("job: {rule: docker}", "1:13", "plugin 'docker' is not usable as rule"),
        ("job: {loop: maybe}", "1:13", "job.loop must be true or false"),
        ("job: {max_restarts: {infa: 3}}", "1:22", "unknown key 'job.max_restarts.infa' | did you mean 'infra'?"),
        ("job: {max_restarts: {infra: -1}}", "1:29", "greater than or equal to 0"),
        ("job: {stalled_after: 0}", "1:22", "null, or no such line, turns it off"),
        ("watch: {poll_every: 0}", "1:21", "greater than or equal to 0.05"),
        (
            "job: {env_type: dokcer}",
            "1:17",
            "environment 'dokcer': no plugin 'dokcer' is installed | did you mean 'docker'?",
        ),
        ("job: {env_type: venv}", "1:17", "pip install tpux-plugin-venv"),
        ("command: {cmd: x, finished_by: [wandb]}", "1:33", "pip install tpux-plugin-wandb"),
        ("command: {cmd: x, finished_by: [docker]}", "1:33", "plugin 'docker' is not usable as detector"),
        ("command: {cmd: x, require_finished: true}", "1:10", "require_finished needs finished_by"),
        ("command: {cmd: x, checkpoint: /out/ckpt-*}", "1:31", "appended to the output directory of an attempt"),
        ("command: {cmd: x, checkpoint: '~/ckpt-*'}", "1:31", "write a relative pattern, such as ckpt-*"),
        ("command: {cmd: x, checkpoint: 'gs://b/ckpt/*'}", "1:31", "set the directory with job.output_dir"),
        ("job: {env_type: gcsfuse}", "1:17", "plugin 'gcsfuse' is not usable as environment"),
        ("job: {env_type: docker}", "1:17", "missing key 'docker.image' (the section is empty)"),
        ("job: {env_type: docker}\ndocker:", "2:1", "missing key 'docker.image' (the section is empty)"),
        ("docker: {image: x, imgae: y}", "1:20", "unknown key 'docker.imgae' | did you mean 'image'?"),
        ("docker: {image: 5}", "1:17", "docker.image must be a string"),
        (
            "ssh: {identities: [{private_key: a, public_key: b, cofig_entry: c}]}",
            "1:52",
            "did you mean 'config_entry'?",
        ),
        ("gcsfuse: {}", "1:1", "missing key 'gcsfuse.bucket_name'"),
        ("keep-going: {a: 1}", "1:1", "plugin 'keep-going' has no settings"),
        ("setup: {modules: [docker, conda]}\ndocker: {image: x}", "1:27", "docker and conda are both environments"),
        (
            "setup: {modules: [dcoker]}",
            "1:19",
            "module 'dcoker': no plugin 'dcoker' is installed | did you mean 'docker'?",
        ),
        ("setup: {modules: [venv]}", "1:19", "pip install tpux-plugin-venv"),
        ("progress: {loss: null}", "1:1", "no plugin 'progress' is installed | pip install tpux-plugin-progress"),
        ("setup: {modules: [ssh, ssh]}", "1:24", "duplicate module 'ssh'"),
        ("setup: {modules: [mail]}", "1:19", "plugin 'mail' is not usable as module"),
        ("setup: {modules: [gcsfuse]}\ngcsfuse: {}", "2:1", "missing key 'gcsfuse.bucket_name'"),
        ("tpu: {name: '${tpu.nowhere}'}", "1:14", "unknown variable ${tpu.nowhere}"),
        ("tpu: {name: 'x-${tpu.zoen}', zone: a}", "1:16", "did you mean ${tpu.zone}?"),
        ("tpu: {name: '${HOME}'}", "1:14", "unknown variable ${HOME}"),
        ("tpu: {name: '${tpu zone}'}", "1:14", "invalid reference ${tpu zone}"),
        ("tpu: {name: '${tpu.zone'}", "1:14", "invalid reference ${"),
        ("tpu: {name: '${tpu.zone[2]}', zone: [a]}", "1:14", "tpu.zone has 1 items, numbered from 0"),
        ("tpu: {name: 'x${tpu.zone}', zone: [a]}", "1:15", "${tpu.zone} is a list and cannot be part of a string"),
        ("tpu: {name: 'x${job}'}\njob: {}", "1:15", "is a mapping"),
        ("tpu: {name: 'x${tpu.zone}', zone: null}", "1:15", "${tpu.zone} is null"),
        ("tpu: {name: '${tpu.name}'}", "1:14", "circular reference ${tpu.name}: tpu.name → tpu.name"),
        ("tpu: {name: '${tpu}'}", "1:14", "circular reference ${tpu}: tpu → tpu"),
        (
            "tpu: {name: '${job.attempt}'}",
            "1:14",
            "is not known before an attempt starts | use it in the section command",
        ),
        ("tpu: {name: '${env:NOT_SET}'}", "1:14", "environment variable NOT_SET is not set"),
        ("command: {cmd: 'echo ${env:NOT_SET}'}", "1:22", "environment variable NOT_SET is not set"),
    ],
)
def test_one_error(problems: Problems, text: str, place: str, message: str) -> None:
    whole = text if text.startswith(("command", "comand")) else f"{text}\ncommand: {{cmd: x}}"
    found = problems(whole)
    assert found[0].startswith(f"c.yaml:{place}: ")
    assert message in found[0]
    assert len(found) == 1 or "comand" in text or "gcsfuse" in text


def test_all_errors_at_once_in_the_order_of_the_file(problems: Problems) -> None:
    found = problems(
        """
        job:
          nmae: x
          env_type: dcoker
          rule: resum
        tpu:
          accelerator: v4-32
          pricing: spto
          name: ${tpu.nowhere}
          allocation_mode: tpuvm  # without it the number of workers is unknown
        setup:
          tries: 0
        gcsfuse:
          bucket: x
        command:
          workers: [4]
          cmd: x
        wach: {}
        """
    )
    lines = [int(line.split(":")[1]) for line in found]
    assert lines == sorted(lines)
    assert set(lines) == {3, 4, 5, 8, 9, 10, 12, 13, 14, 18}


def test_a_circular_reference_is_reported_at_each_reference(problems: Problems) -> None:
    found = problems(
        "tpu: {name: '${tpu.project}', project: '${tpu.network}', network: '${tpu.name}'}\ncommand: {cmd: x}"
    )
    assert [line.split(": ")[0] for line in found] == ["c.yaml:1:14", "c.yaml:1:41", "c.yaml:1:68"]


def test_a_long_chain_of_references_is_an_error(problems: Problems) -> None:
    chain = ", ".join(f"a{number}: '${{tpu.metadata.a{number + 1}}}'" for number in range(400))
    assert "more than 50 references" in problems(f"tpu: {{metadata: {{{chain}, a400: x}}}}\ncommand: {{cmd: x}}")[0]


def test_a_reference_to_an_invalid_value_is_not_reported_again(problems: Problems) -> None:
    (only,) = problems("tpu: {name: '${tpu.project}', project: '${tpu.nowhere}'}\ncommand: {cmd: 'a ${tpu.name}'}")
    assert only.startswith("c.yaml:1:41: ")


def test_the_position_of_a_reference_in_a_block(problems: Problems) -> None:
    (only,) = problems("tpu:\n  zone: [a]\ncommand:\n  cmd: |\n    first\n    x ${tpu.zone[0]} ${tpu.zone}\n")
    assert only.startswith("c.yaml:6:22: ")


def test_null_means_not_set(read: Load) -> None:
    loaded = read(
        "job:\ntpu: {tags: null, pricing: null, zone: null}\nsetup:\nwatch:\ndocker:\nvenv:\n"
        "command: {cmd: x, workers: null}"
    )
    assert set(loaded.sections) == {*CORE_SECTIONS, "ssh"}  # type: ignore[attr-defined]
    assert loaded.sections["command"].workers == "all"  # type: ignore[attr-defined]


def test_messages_do_not_contain_secrets(problems: Problems) -> None:
    found = problems(
        "tpu: {startup_script: 'x-${env:KEY}', pricing: '${env:KEY}'}\ncommand: {cmd: x}", environ={"KEY": "hunter22"}
    )
    assert len(found) == 2
    assert "hunter22" not in str(found)


KEYS = st.from_regex(r"[a-z][a-z_]{2,10}", fullmatch=True)


@given(
    before=st.lists(st.sampled_from(["# a comment", "", "watch: {}", "setup:"]), max_size=5, unique=True),
    section=st.sampled_from(["job", "tpu", "command", "docker"]),
    indent=st.integers(1, 8),
    siblings=st.integers(0, 3),
    key=KEYS,
    flow=st.booleans(),
)
def test_the_position_of_an_unknown_key(
    problems: Problems, before: list[str], section: str, indent: int, siblings: int, key: str, flow: bool
) -> None:
    """For any style and any neighbours."""
    wrong = f"{key}_zz"
    good = {
        "job": ["name: a", "loop: true", "rule: pass"],
        "tpu": ["name: a", "zone: b", "pricing: spot"],
        "command": ["grace_period: 4s", "workers: 0", "checkpoint: a"],
        "docker": ["workdir: /", "flags: []", "env_vars: [a]"],
    }[section][:siblings]
    good += {"command": ["cmd: x"], "docker": ["image: i"]}.get(section, [])
    lines = [*before]
    if flow:
        start = f"{section}: {{{''.join(line + ', ' for line in good)}"
        lines.append(f"{start}{wrong}: 1}}")
        place = f"{len(lines)}:{len(start) + 1}"
    else:
        lines += [f"{section}:", *(" " * indent + line for line in good), f"{' ' * indent}{wrong}: 1"]
        place = f"{len(lines)}:{indent + 1}"
    if section != "command":
        lines.append("command: {cmd: x}")
    (only,) = problems("\n".join(lines).encode())
    assert only.startswith(f"c.yaml:{place}: unknown key '{section}.{wrong}'")
