"""`${...}`: what it is replaced by, and what is left to the shell."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tpux import config, env
from tpux.config.resolved import Loaded
from tpux.errors import TpuxError
from tpux.model.job import Job
from tpux.model.sections import CommandSection, JobSection, TpuSection
from tpux.plugin.manager import Plugins

Load = Callable[..., Loaded]


def tpu_of(loaded: Loaded) -> TpuSection:
    section = loaded.sections["tpu"]
    assert isinstance(section, TpuSection)
    return section


def command_of(loaded: Loaded) -> CommandSection:
    section = loaded.sections["command"]
    assert isinstance(section, CommandSection)
    return section


def written(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode()  # JSON is YAML


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("{name: jm, worker_num: 2}", "jm-2"),
        ("{name: jm, worker_num: 007}", "jm-7"),
        ("{name: 'n-${job.user}', worker_num: 'a${tpu.node_count}'}", f"n-{env.user()}-a3"),
        ("{worker_num: 2}", "c-2"),
        ("{name: jm, worker_num: auto}", "jm"),
        ("{name: jm, worker_num: null}", "jm"),
        ("{name: jm}", "jm"),
    ],
)
def test_the_jobs_name_has_the_suffix_of_worker_num(read: Load, job: str, name: str) -> None:
    text = f"job: {job}\ntpu: {{name: '${{job.name}}', node_count: 3}}\ncommand: {{cmd: 'echo ${{job.name}}'}}\n"
    created = Job("000001", "ann", "store", Path(), read(text).sections)
    assert created.command.cmd == f"echo {name}"
    assert (created.name, created.tpu_name) == (name, name)


def test_whole_values_keep_their_type(read: Load) -> None:
    loaded = read("""
        job: {max_restarts: {infra: "${tpu.node_count}"}}
        tpu: {node_count: 2, zone: [a, b], tags: "${tpu.zone}", metadata: {worker: 1, on: true}}
        command: {cmd: x, workers: "${tpu.metadata.worker}"}
        setup: {tries: "${job.max_restarts.infra}"}
        """)
    assert tpu_of(loaded).tags == ["a", "b"]
    assert command_of(loaded).workers == 1
    assert loaded.sections["setup"].tries == 2  # type: ignore[attr-defined]


def test_references_to_references(read: Load) -> None:
    loaded = read("""
        tpu:
          accelerator: [v4-8, v4-16]
          zone: ${tpu.accelerator}
          network: ${job.name}
          name: a-${tpu.zone[1]}-${tpu.zone.0}-${tpu.network}
          project: ${tpu.name}
          metadata: {half: 1e-1, on: true}
          labels: {image: i}
        command: {cmd: "echo ${tpu.project} ${tpu.metadata.half} ${tpu.metadata.on} ${tpu.name}"}
        job: {env_type: docker}
        docker: {image: "${tpu.labels.image}"}
        """)
    assert tpu_of(loaded).name == "a-v4-16-v4-8-c"
    assert command_of(loaded).cmd == "echo a-v4-16-v4-8-c 1e-1 true ${tpu.name}", "the name is known at each attempt"
    assert loaded.sections["docker"].image == "i"  # type: ignore[attr-defined]


def test_job_variables(read: Load, tmp_path: Path) -> None:
    loaded = read("""
        job: {name: "n-${job.id}-${job.user}"}
        tpu: {name: "${job.name}", startup_script: "${job.config_dir}/c.yaml"}
        command: {cmd: "cd ${job.config_dir}; echo ${job.id} ${job.attempt} ${job.output_dir}"}
        """)
    assert list(loaded.files) == [tmp_path / "c.yaml"]
    resolved = loaded.resolved(id="000042", user="ann")
    assert resolved["config"] == {
        "job": {"name": "n-000042-ann"},
        "tpu": {"name": "n-000042-ann", "startup_script": f"{tmp_path}/c.yaml"},
        "command": {"cmd": f"cd {tmp_path}; echo 000042 ${{job.attempt}} ${{job.output_dir}}"},
    }


def test_a_stored_name_is_read_as_it_is(read: Load, plugins: Plugins) -> None:
    """What a newer version refuses in a config does not end the supervision of a job that has it."""
    stored = read("command: {cmd: x}").resolved(id="000001", user="u")
    stored["config"]["job"]["name"] = "a\tb"  # type: ignore[index,call-overload]
    section = config.from_resolved(stored, plugins=plugins, secrets={}).sections["job"]
    assert isinstance(section, JobSection)
    assert section.name == "a\tb"


def test_the_name_defaults_to_the_file_name(read: Load) -> None:
    for job in ("", "job: null\n", "job: {name: }\n", "job: {name: ''}\n"):
        loaded = read(job + "command: {cmd: 'echo ${job.name}'}\ntpu: {name: 'x-${job.name}'}")
        section = loaded.sections["job"]
        assert isinstance(section, JobSection)
        assert section.name == "c"
        assert (tpu_of(loaded).name, command_of(loaded).cmd) == ("x-c", "echo c")
        assert loaded.resolved(id="000001", user="u")["config"]["job"]["name"] == "c"  # type: ignore[index,call-overload]


@pytest.mark.parametrize(
    ("text", "hints"),
    [
        ("echo ${HOME} ${V:-d} ${a[0]} $(x) $$ ${x.y} ${!r} ${#n} ${v%.*} ${v//a/b} ${", []),
        ("${V:-${HOME}} `x` \"'\\${HOME}' \" $1 $@ ${env:0:2} ${env:-x}", []),
        ("for job in 1; do echo ${job} ${tpu}; done", []),
        ("$${tpu.zone}", []),  # the shell's own process id, and braces
        ("\\${tpu.zone}", []),  # escaped for the shell
        ("${job.attempt} ${job.previous_output_dir}", []),
        ("${tpu.zoen}", ["did you mean ${tpu.zone}?"]),
        ("${docker.image}", [""]),
    ],
)
def test_a_command_keeps_shell_expansions(read: Load, text: str, hints: list[str]) -> None:
    loaded = read(
        written(
            {"command": {"cmd": text, "resume_cmd": "$TPUX_RESUME_ARGS", "resume_args": text}, "tpu": {"zone": "a"}}
        )
    )
    assert command_of(loaded).cmd == command_of(loaded).resume_args == text
    assert [warning.hint for warning in loaded.warnings] == hints * 2


def test_a_command_may_refer_to_the_config(read: Load) -> None:
    loaded = read(
        written(
            {
                "command": {"cmd": 'a=${tpu.zone} "${V:-${tpu.zone}}" $$${tpu.zone} \\\\${tpu.zone}'},
                "tpu": {"zone": "z"},
            }
        )
    )
    assert command_of(loaded).cmd == 'a=z "${V:-z}" $$z \\\\z'


def test_outside_a_command_two_dollars_escape(read: Load, plugins: Plugins) -> None:
    text = r"$${tpu.zone} $HOME $$ $$x $${env:A}-${env:A}$ $${"
    loaded = read(written({"command": {"cmd": "x"}, "tpu": {"name": text}}), environ={"A": "$s{"})
    assert tpu_of(loaded).name == r"${tpu.zone} $HOME $$ $$x ${env:A}-$s{$ ${"
    resolved = loaded.resolved(id="000001", user="u")
    again = config.from_resolved(resolved, plugins=plugins, secrets=loaded.secrets)
    assert again.sections["tpu"] == loaded.sections["tpu"]


def test_secrets_are_only_in_secrets(read: Load, plugins: Plugins) -> None:
    loaded = read(
        """
        mail: {api_key: "${env:KEY}", receiver: "me+${env:TAG}"}
        tpu: {name: "x-${mail.receiver}", project: "${tpu.name}"}
        command: {cmd: "login ${env:KEY} ${mail.api_key} ${tpu.project} '${HOME}'"}
        """,
        environ={"KEY": "hunter22", "TAG": "tag-value", "HOME": "/h"},
    )
    assert loaded.secrets == {"KEY": "hunter22", "TAG": "tag-value"}
    resolved = loaded.resolved(id="000001", user="u")
    assert "hunter22" not in f"{resolved}{loaded}{loaded.display()}"
    assert resolved["config"]["mail"]["api_key"] == "${env:KEY}"  # type: ignore[index,call-overload]
    assert resolved["secrets"] == ["KEY", "TAG"]
    again = config.from_resolved(resolved, plugins=plugins, secrets=loaded.secrets)
    assert again.sections["mail"].receiver == "me+tag-value"  # type: ignore[attr-defined]
    variable = f"${{{env.SECRET_PREFIX}KEY}}"
    assert command_of(loaded).cmd == f"login {variable} {variable} x-me+${{{env.SECRET_PREFIX}TAG}} '${{HOME}}'"
    assert again.sections["command"] == loaded.sections["command"]


def test_a_missing_secret_of_a_stored_job(read: Load, plugins: Plugins) -> None:
    loaded = read("tpu: {name: '${env:KEY}'}\ncommand: {cmd: x}", environ={"KEY": "k"})
    with pytest.raises(TpuxError, match=r"the job's secret KEY is missing"):
        config.from_resolved(loaded.resolved(id="000001", user="u"), plugins=plugins, secrets={})


def test_attempt_variables_are_substituted_at_each_attempt() -> None:
    words = {"job.attempt": "3", "job.output_dir": "/out"}
    text = "go ${job.attempt} ${job.output_dir}/x ${job.stage} $${job.attempt} \\${job.attempt} ${HOME}"
    assert config.substitute(text, words) == "go 3 /out/x ${job.stage} $${job.attempt} \\${job.attempt} ${HOME}"


# Shell-like text that contains everything similar to a reference, but no reference.
PIECES = [*"${}\\'\"`() \n.#éx", "${", "$$", "tpu", "job", "HOME", "[0]", ":-"]
PRINTABLE = st.characters(exclude_categories=["Cs", "Cc", "Cn", "Zl", "Zp"], exclude_characters="\ufeff")
SHELL = st.one_of(st.text(PRINTABLE, min_size=1), st.lists(st.sampled_from(PIECES), min_size=1).map("".join))


@given(SHELL)
@example("${tpu.x")
@example("$${job.id}")
def test_arbitrary_shell_text_is_preserved(read: Load, text: str) -> None:
    assume(not re.search(r"\$\{(env:|(tpu|job|command)\.)", text))
    loaded = read(written({"command": {"cmd": text}, "tpu": {"zone": "a"}}))
    assert command_of(loaded).cmd == text
    assert config.substitute(text, {"job.attempt": "1"}) == text
    assert not [one for one in loaded.warnings if "into the background" not in one.message]


@given(SHELL, SHELL)
def test_only_the_reference_within_shell_text_is_replaced(read: Load, before: str, after: str) -> None:
    assume(not re.search(r"\$\{(env:|(tpu|job|command)\.)", before + "|" + after))
    assume(not before.endswith(("\\", "$")))  # they would escape the reference's dollar
    loaded = read(written({"command": {"cmd": before + "${tpu.zone}" + after}, "tpu": {"zone": "a zone"}}))
    assert command_of(loaded).cmd == f"{before}a zone{after}"


@given(SHELL.filter(lambda text: "${" not in text))
def test_any_text_survives_storage(read: Load, plugins: Plugins, text: str) -> None:
    loaded = read(written({"command": {"cmd": "x"}, "tpu": {"name": text + "${env:A}" + text}}), environ={"A": text})
    again = config.from_resolved(loaded.resolved(id="000001", user="u"), plugins=plugins, secrets=loaded.secrets)
    assume(not text.endswith("$"))  # `$${` is an escape
    assert again.sections["tpu"] == loaded.sections["tpu"]
    assert tpu_of(loaded).name == text * 3
