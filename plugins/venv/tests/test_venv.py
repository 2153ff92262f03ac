"""The plugin's steps, run on a worker that is a directory."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpux_venv
from tpux import Job, Put, Result, Sh
from tpux_testing import job as new_job
from tpux_testing import worker
from tpux_venv import scripts
from tpux_venv.build import build, index_settings
from tpux_venv.section import VenvSection

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
REQUIREMENTS = "--no-index\ntpux-tiny\n"
WHERE = "python -c 'import sys, tpux_tiny; print(sys.prefix, tpux_tiny.VERSION)'\n"


def test_create_an_environment_and_run_a_command(bench):
    bench.program(f"python{VERSION}", f'exec {sys.executable} "$@"')
    section = bench.section(python=VERSION)
    assert "no complete environment" in bench.check(section)
    bench.setup(section)
    assert bench.check(section) == ""
    ran = bench.run(section, WHERE * 2)
    assert ran.text.splitlines() == [f"{bench.home / 'env'} 1.0"] * 2


def test_an_environment_without_requirements_has_pip(bench):
    section = bench.section(requirements_file=None)
    bench.setup(section)
    assert "pip" in bench.run(section, "python -m pip --version").text


def test_pip_is_unpacked_and_not_installed(bench):
    """An installation of pip takes seconds of each worker, again after each preemption; it compiles all of pip."""
    python = (bench.bin / "python3").read_text().replace("#!/bin/sh\n", f'#!/bin/sh\necho "$@" >>{bench.bin}/calls\n')
    (bench.bin / "python3").write_text(python)
    section = bench.section(requirements_file=None)
    bench.setup(section)
    made = [line for line in (bench.bin / "calls").read_text().splitlines() if line.startswith("-m venv")]
    assert made == [f"-m venv --without-pip {bench.home}/env"]
    ran = bench.run(
        section, "pip --version; python -m pip --version; pip install --no-index --find-links wheels tpux-tiny\n"
    )
    assert ran.text.count(f"from {bench.home}/env/lib/") == 2
    assert bench.run(section, WHERE).text == f"{bench.home}/env 1.0"
    expected = "setuptools" if sys.version_info < (3, 12) else "pip"
    assert bench.run(section, f"python -c 'import {expected}; print(0)'").text == "0"


def test_uv_installs_if_present(bench, uv):
    bench.setup(bench.section())
    assert "pip install" in uv.read_text()
    assert "1.0" in bench.run(bench.section(), WHERE).text


def test_pip_installs_if_uv_fails(bench):
    bench.program("uv", "[ $1 = --version ]")
    bench.setup(bench.section())
    assert "1.0" in bench.run(bench.section(), WHERE).text


def test_uv_creates_the_environment_if_python_cannot(bench):
    bench.program("python3", "exit 1")
    bench.program(f"python{VERSION}", "exit 1")
    make = f'[ "$1" != venv ] || for place; do :; done; [ "$1" != venv ] || {sys.executable} -m venv "$place"'
    bench.program("uv", f'echo "$@" >>{bench.bin}/calls; {make}')
    bench.setup(bench.section(requirements_file=None, python=VERSION))
    assert f"venv --seed --allow-existing --python {VERSION}" in (bench.bin / "calls").read_text()


def test_apt_installs_a_missing_python(bench):
    without_venv = f'[ "$1" = -c ] && [ ! -e {bench.bin}/installed ] && exit 1; exec {sys.executable} "$@"'
    bench.program("python3", without_venv)
    bench.program(f"python{VERSION}", without_venv)
    bench.program("sudo", 'shift; exec "$@"')
    bench.program("id", "echo 1000")
    bench.program("apt-get", f'echo "$@" >>{bench.bin}/calls; touch {bench.bin}/installed')
    bench.setup(bench.section(python=VERSION))
    *_, install = (bench.bin / "calls").read_text().splitlines()
    assert install.endswith(f"install python{VERSION} python{VERSION}-venv")


def test_without_root_the_missing_package_is_named(bench):
    bench.program("sudo", "exit 1")
    bench.program("id", "echo 1000")
    failed = bench.run_steps(build(bench.section(python="3.99")))
    assert "python3.99-venv is not installed" in failed[1].text


def test_a_new_requirement_is_installed_into_the_same_environment(bench):
    section = bench.section()
    bench.setup(section)
    (bench.home / "env" / "mine").touch()
    bench.add_wheel("2.0")
    bench.requirements.write_text("--no-index\ntpux-tiny==2.0\n")
    bench.setup(section)
    assert "2.0" in bench.run(section, WHERE).text
    assert (bench.home / "env" / "mine").exists()


def test_an_environment_of_another_index_is_another_one():
    """Its copies in the bucket are, too."""
    urls = ("https://a/cpu", "https://a/tpu", "https://u:p/@a/tpu", "https://a/w@1", "https://b/w@1")
    digests = [VenvSection(index_url=url).digest() for url in urls]
    assert len({VenvSection().digest(), *digests}) == 5


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"index_url": "https://a/tpu"}, False),
        ({"find_links": "more"}, False),
        ({"requirements": "--extra-index-url https://b/tpu\n"}, False),
        ({"index_url": "https://ann:new/@a/cpu?token=x"}, True),
        ({"requirements": "--extra-index-url https://ann:new/@b/cpu\n"}, True),
        ({"requirements": "--extra-index-url https://b/cpu\npip\n"}, True),
    ],
)
def test_an_environment_whose_packages_come_from_another_index_is_created_again(bench, change, kept):
    """The installer takes a requirement as satisfied by what another index has sent."""
    (bench.home / "more").symlink_to("wheels")
    bench.requirements.write_text("--extra-index-url https://b/cpu\n" + REQUIREMENTS)
    bench.setup(bench.section(index_url="https://a/cpu"))
    (bench.home / "env" / "mine").touch()
    bench.requirements.write_text(change.pop("requirements", "--extra-index-url https://b/cpu\n") + REQUIREMENTS)
    changed = bench.section(**{"index_url": "https://a/cpu", **change})
    bench.setup(changed)
    assert (bench.home / "env" / "mine").exists() == kept
    assert "1.0" in bench.run(changed, WHERE).text


@pytest.mark.parametrize("steps", [1, 3, 5, 6])
def test_an_incomplete_environment_is_not_ready_and_is_created_again(bench, steps):
    """Interrupted before the last step, which marks it as ready."""
    section = bench.section()
    bench.run_steps(build(section), most=steps)
    assert bench.check(section) != ""
    (bench.home / "env" / "left-over").touch()
    bench.setup(section)
    assert bench.check(section) == ""
    assert not (bench.home / "env" / "left-over").exists()


def test_unavailable_requirements_fail_and_are_not_ready(bench):
    bench.requirements.write_text("--no-index\nthere-is-no-such-thing\n")
    section = bench.section()
    failed = bench.run_steps(build(section))
    assert "there-is-no-such-thing" in failed[1].text
    assert bench.check(section) != ""


def test_another_python_version_is_detected(bench):
    bench.setup(bench.section())
    assert f"is Python {VERSION}, not 3.99" in bench.check(bench.section(python="3.99"))


def test_a_directory_that_is_not_an_environment_is_never_changed(bench):
    (bench.home / "env").mkdir()
    (bench.home / "env" / "thesis.tex").write_text("all of it")
    failed = bench.run_steps(build(bench.section()))
    assert "is not a virtual environment" in failed[1].text
    assert [path.name for path in (bench.home / "env").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("path", ["env", "~/env/"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_link_to_a_disk_is_replaced(bench, path, is_there):
    """It may be one to the local SSD of a machine that was preempted, and Python creates no environment at a link."""
    (bench.home / "env").symlink_to("disk")
    if is_there:
        (bench.home / "disk").mkdir()
    section = bench.section(path=path, requirements_file=None)
    bench.setup(section)
    assert bench.check(section) == ""
    assert not (bench.home / "env").is_symlink()


def test_a_manually_created_environment_is_kept(bench):
    bench.sh("python3", "-m", "venv", "env")
    (bench.home / "env" / "mine").touch()
    bench.setup(bench.section())
    assert bench.check(bench.section()) == ""
    assert (bench.home / "env" / "mine").exists()


@pytest.mark.parametrize("path", ["~/deep/er", "an odd 'place'; touch x", "{absolute}/tmp/x y"])
def test_the_directory_is_configurable(bench, path):
    path = path.replace("{absolute}", str(bench.home))
    section = bench.section(path=path)
    bench.setup(section)
    expected = bench.home / path.removeprefix("~/")
    assert bench.run(section, WHERE).text == f"{expected} 1.0"
    assert not (bench.home / "x").exists()


def _moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def _copied(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.with_name("env").symlink_to("elsewhere")
    text = (path / "bin/activate").read_text()
    (path / "bin/activate").write_text(text.replace(str(path), str(path.with_name("gone"))))


def _without_python(path: Path) -> None:
    for python in (path / "bin").glob("python*"):
        python.unlink()


def _without_activate(path: Path) -> None:
    (path / "bin/activate").unlink()


@pytest.mark.parametrize("breaks", [_moved, _copied, _without_python, _without_activate])
def test_nothing_runs_if_activation_fails(bench, breaks):
    section = bench.section()
    bench.sh("python3", "-m", "venv", "env")
    breaks(bench.home / "env")
    ran = bench.run(section, "touch one\ntouch two\n")
    assert ran.code == 127
    assert "the command was not run" in ran.text
    assert not (bench.home / "one").exists()
    assert not (bench.home / "two").exists()


def test_the_commands_exit_code_is_its_own(bench):
    bench.sh("python3", "-m", "venv", "env")
    section = bench.section()
    assert bench.run(section, "exit 7").code == 7


def _all(steps):
    """Yield the steps of the longest path: every step that may fail fails."""
    result = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration:
            return
        yield step
        result = Result(int(isinstance(step, Sh) and step.may_fail))


words = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp"), exclude_characters=","), min_size=1)


@given(words, words)
def test_scripts_contain_no_index_url(url, links):
    section = VenvSection(index_url=f"https://u:{url}-hidden@x/", find_links=f"{links}-hidden")
    steps = build(section)
    for step in _all(steps):
        assert "-hidden" not in (step.script if isinstance(step, Sh) else step.remote)


@pytest.mark.parametrize("links", ["/mnt/wheels", "wheels", "~/o'dd$(x)", "https://example.com/`x`?a=b&c"])
def test_the_shell_reads_the_settings_unchanged(bench, links):
    (bench.home / "settings").write_bytes(index_settings(VenvSection(index_url="https://x/$y'z", find_links=links)))
    read = bench.sh("sh", "-c", '. ./settings; printf "%s\n" "$PIP_INDEX_URL" "$UV_DEFAULT_INDEX" "$UV_FIND_LINKS"')
    expected = links if links.startswith(("/", "https")) else f"{bench.home}/{links.removeprefix('~/')}"
    assert read.text.splitlines() == ["https://x/$y'z", "https://x/$y'z", expected]


def test_only_the_owner_can_read_settings_and_requirements(bench):
    steps = _all(build(bench.section()))
    assert {step.mode for step in steps if isinstance(step, Put)} == {0o600}


def test_preflight_names_a_file_that_is_not_copied(bench, tmp_path):
    bench.requirements.write_text("-r base.txt\n")
    job = new_job({"job": {"env_type": "venv"}, "venv": {"requirements_file": bench.requirements}})
    (finding,) = tpux_venv.preflight(job)
    assert finding.level == "error"
    assert finding.where == f"{bench.requirements}:1:4"
    assert "set `code: .`" in finding.hint
    bench.requirements.write_text("numpy\n")
    assert tpux_venv.preflight(job) == []


@pytest.mark.parametrize(("more", "found"), [({}, 1), ({"ssh": {}}, 0)])
def test_preflight_says_if_each_worker_asks_the_index(bench, more, found):
    machines = {"tpu": {"allocation_mode": "tpu-vm", "accelerator": "v4-32", "endpoint": "http://127.0.0.1:1"}}
    job = new_job({"job": {"env_type": "venv"}, "venv": {"requirements_file": bench.requirements}, **machines, **more})
    assert len(tpux_venv.preflight(job)) == found


def test_jobs_that_share_a_machine_wait_for_each_others_set_up(bench, monkeypatch):
    monkeypatch.setattr(scripts, "SETUP_LOCK_TIMEOUT", 1)
    section, job = bench.section(requirements_file=None), new_job()
    first, second = (replace(job, id=f"{number:06}") for number in (1, 2))

    def set_up(one: Job, most: int = 100):
        return bench.run_steps(tpux_venv.setup(one, section, worker(), []), most)

    assert set_up(first, 1) is None, "cut off after its first step"
    failed = set_up(second)
    assert "waiting for job 1 of" in failed[1].text
    assert "has not set up" in failed[1].text.splitlines()[-1]
    assert set_up(first) is None
    assert set_up(second) is None, "a job that has ended its set-up holds nobody up"
    set_up(first, 1)
    assert bench.run_steps(tpux_venv.clean_up(second, section)) is None
    assert set_up(second) is not None
    assert bench.run_steps(tpux_venv.clean_up(first, section)) is None
    assert set_up(second) is None


def test_the_requirements_do_not_stay_on_the_worker(bench):
    bench.requirements.write_text(f"{bench.requirements.read_text()}# a URL with a secret\n")
    section, first = bench.section(), new_job()
    second, copied = replace(first, id="000002"), bench.home / scripts.requirements_file(bench.section())
    bench.run_steps(tpux_venv.setup(first, section, worker(), []), 6)
    assert "secret" in copied.read_text(), "cut off before its last step"
    bench.run_steps(tpux_venv.clean_up(second, section))
    assert copied.exists(), "the first job needs it to go on"
    bench.run_steps(tpux_venv.clean_up(first, section))
    assert not copied.exists()
    assert bench.run_steps(tpux_venv.setup(first, section, worker(), [])) is None
    assert not copied.exists()
    assert bench.check(section) == ""
