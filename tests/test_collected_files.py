"""`command.collect`: which files are fetched after an attempt, from where, and what is said of the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

JOB = """
tpu: {{accelerator: {accelerator}}}
command:
  cmd: |
    {cmd}
  collect: {patterns}
watch: {{straggler_grace: 1s, verdict_grace: 1s, poll_every: 0.2s}}
"""


def run(tpux, cmd, patterns, *overrides, accelerator="v4-8", code=0):
    """Run a job to its end, and return its number and the one event of its files."""
    text = JOB.format(cmd=cmd.strip().replace("\n", "\n    "), patterns=patterns, accelerator=accelerator)
    job = tpux.create(text, *overrides)
    tpux("wait", job, code=code)
    [event] = tpux.events(job, "files-collected")
    return job, event


def files_in(event):
    """Return the content of each file that was fetched, by its path below the job's directory of the attempt."""
    top = Path(event["directory"])
    return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


def test_files_of_all_workers_are_in_the_jobs_directory_and_show_says_where(tpux):
    cmd = "mkdir out; echo $TPUX_RANK >out/a.json; touch out/b.txt; echo m >model.pkl; echo h >~/other"
    job, event = run(tpux, cmd, "['out/*.json', model.pkl, ~/other]", accelerator="v4-16")
    assert files_in(event) == {
        f"worker-{index}/{name}": content
        for index in (0, 1)
        for name, content in [("out/a.json", b"%d\n" % index), ("model.pkl", b"m\n"), ("home/other", b"h\n")]
    }
    assert event["missing"] == []
    assert event["directory"] == str(tpux.directory(job) / "collected/1")
    said = f"attempt 1: 6 files collected, 12 B, in {tpux.directory(job)}/collected/1"
    assert f"result:       {said}\n" in tpux("show", job).stdout
    asked = tpux("delete", job, "--dry-run").stderr
    assert f"deletes {tpux.directory(job)}/collected" in asked
    tpux("delete", job, "-y")
    assert not Path(event["directory"]).exists()


def test_the_files_of_a_failed_program_are_fetched_too(tpux):
    job, event = run(tpux, "echo 1 >metrics; exit 3", "[metrics]", code=100)
    assert files_in(event) == {"worker-0/metrics": b"1\n"}
    assert "collected:    attempt 1: 1 file collected, 2 B, in " in tpux("show", job).stdout


@pytest.mark.system
def test_each_attempt_has_its_own_files(tpux):
    text = JOB.format(
        cmd='echo $TPUX_ATTEMPT >n; [ "$TPUX_ATTEMPT" = 2 ] || kill -9 $$', patterns="[n]", accelerator="v4-8"
    )
    job = tpux.create(text, "job.max_restarts={program: 1}")
    tpux("wait", job, code=None)
    if tpux.show(job)["state"] != "succeeded":
        tpux("resume", job)
        tpux("wait", job)
    first, second = tpux.events(job, "files-collected")
    assert (files_in(first), files_in(second)) == ({"worker-0/n": b"1\n"}, {"worker-0/n": b"2\n"})


def test_a_stop_fetches_the_files_before_it_releases_the_machines(tpux):
    job = tpux.create(JOB.format(cmd="echo 1 >part; echo on; sleep 1000", patterns="[part]", accelerator="v4-8"))
    tpux.until(lambda: b"on" in tpux.output_so_far(job))
    tpux("stop", job, "--release")
    [event] = tpux.events(job, "files-collected")
    assert files_in(event) == {"worker-0/part": b"1\n"}


def test_a_delete_fetches_nothing(tpux):
    job = tpux.create(JOB.format(cmd="echo 1 >part; echo on; sleep 1000", patterns="[part]", accelerator="v4-8"))
    tpux.until(lambda: b"on" in tpux.output_so_far(job))
    tpux("delete", job, "-y")
    assert not list(tpux.home.glob("jobs/*/*/collected"))


def test_what_exceeds_the_limit_is_named_and_what_fits_is_fetched(tpux):
    cmd = "truncate -s 3000 a; truncate -s 1000 b; truncate -s 900 c; truncate -s 100 d"
    job, event = run(tpux, cmd, "['?']", "command.collect_limit=2kB")
    assert sorted(files_in(event)) == ["worker-0/b", "worker-0/c", "worker-0/d"]
    why = "worker 0: a (3.0 kB): more than is left of command.collect_limit, 2.0 kB"
    assert event["missing"] == [why]
    assert f"not fetched:  {why}\n" in tpux("show", job).stdout


def test_a_pattern_that_matches_nothing_is_named_and_fails_nothing(tpux):
    job, event = run(tpux, "touch a", "[a, 'none/*', /nowhere/x]")
    assert event["files"] == 1
    assert event["missing"] == ["none/*: no file matches", "/nowhere/x: no file matches"]
    assert tpux.show(job)["state"] == "succeeded"


def test_names_are_data(tpux):
    cmd = r"""
mkdir -- out -d 'sp ace'
cd out; : >'a b'; : >'-n'; : >"$(printf 'new\nline')"; : >'ünï'; : >'$(touch x)'; : >"it's"; : >'per%s\n'; : >'!'
: >"$(printf 'bad\377')"
cd ..; : >'-d/-e'; : >'sp ace/x'
"""
    _, event = run(tpux, cmd, "['out/*', '-d/*', 'sp ace/x']")
    names = ["out/a b", "out/-n", "out/new\nline", "out/ünï", "out/$(touch x)", "out/it's", "out/per%s\\n", "out/!"]
    assert set(files_in(event)) == {f"worker-0/{name}" for name in [*names, "-d/-e", "sp ace/x"]}
    assert event["missing"] == ["worker 0: out/bad� (0 B): its name is not valid UTF-8"]


def test_a_pattern_is_no_shell_script(tpux):
    _, event = run(tpux, "touch a", """["$(touch pwned)", "`touch pwned`", "';touch pwned;'", "a' 'b", a]""")
    assert (event["files"], len(event["missing"])) == (1, 4)
    assert not list(tpux.home.rglob("pwned"))


def test_links_that_lead_out_and_what_is_no_file_are_skipped(tpux):
    cmd = """
mkdir out out/deep real; echo 1 >out/a; echo 2 >real/r; echo s >secret; echo 3 >out/deep/d
ln -s a out/inside; ln -s ../secret out/outside; ln -s ../real out/dir; ln -s nowhere out/dangling; mkfifo out/pipe
ln -s /etc/passwd out/deep/passwd; ln -s real linked; ln -s loop out/loop
"""
    _, event = run(tpux, cmd, "['out/*', 'linked/*', missing]")
    assert files_in(event) == {
        "worker-0/out/a": b"1\n",
        "worker-0/out/inside": b"1\n",
        "worker-0/out/deep/d": b"3\n",
        "worker-0/linked/r": b"2\n",
    }
    assert sorted(event["missing"]) == [
        "missing: no file matches",
        "worker 0: out/dangling: it is a link",
        "worker 0: out/deep/passwd: it is a link",
        "worker 0: out/dir: it is a link that leads out of the directory",
        "worker 0: out/loop: it is a link that leads out of the directory",
        "worker 0: out/outside: it is a link that leads out of the directory",
        "worker 0: out/pipe: it is no regular file",
    ]


def test_a_link_that_a_pattern_names_is_followed_wherever_it_leads(tpux):
    cmd = """
mkdir ../elsewhere; echo 1 >../elsewhere/a
ln -s $HOME/../elsewhere out; ln -s ../elsewhere/a model.pkl
"""
    _, event = run(tpux, cmd, "[out, model.pkl]")
    assert files_in(event) == {"worker-0/out/a": b"1\n", "worker-0/model.pkl": b"1\n"}
    assert event["missing"] == []


@pytest.mark.system
def test_a_pattern_with_too_many_files_takes_none_of_the_others(tpux):
    cmd = "mkdir many; cd many; seq 10003 | xargs touch; cd ..; echo 1 >last"
    _, event = run(tpux, cmd, "['many/*', last, none]", "command.collect_limit=1kB")
    assert event["files"] == 10_001
    assert files_in(event)["worker-0/last"] == b"1\n"
    too_many = "worker 0: more than 10000 files match in many; the others were not fetched"
    assert event["missing"] == ["none: no file matches", too_many]


def test_times_are_kept(tpux):
    _, event = run(tpux, "touch -d '2020-01-02 03:04:05.25 UTC' a", "[a]")
    assert (Path(event["directory"]) / "worker-0/a").stat().st_mtime == 1577934245.25


@pytest.mark.parametrize("pattern", ["../x", "a/../x", "**/x", "~other/x", "gs://bucket/x", "/", "~", "", r"a\[1]"])
def test_patterns_that_cannot_work_are_refused(tpux, pattern):
    text = JOB.format(cmd="true", patterns=f"['{pattern}']", accelerator="v4-8")
    assert "command.collect" in tpux("create", tpux.config(text), code=2).stderr


def test_a_disk_that_is_not_writable_does_not_hold_the_machines(tpux):
    text = JOB.format(
        cmd="echo 1 >a; echo on; until [ -e ~/go ]; do sleep 0.1; done", patterns="[a]", accelerator="v4-8"
    )
    job = tpux.create(text)
    tpux.until(lambda: b"on" in tpux.output_so_far(job))
    (tpux.directory(job) / "collected").write_text("in the way")
    (tpux.machines(job) / "worker-0/go").touch()
    tpux("wait", job)
    [event] = tpux.events(job, "files-collected")
    assert event["files"] == 0
    assert "worker 0: a (2 B): it cannot be written here" in event["missing"][0]


SLOW = """
import time
from dataclasses import replace
from pathlib import Path
from tpux import HostUnreachableError, TpuSection, hookimpl
import tpux_local

HERE = Path(__file__).parent

class Section(TpuSection):
    transport = "slow"

class Host:
    def __init__(self, host): self._host, self.worker = host, host.worker
    def run(self, *args, **options): return self._host.run(*args, **options)
    def put(self, *args, **options): return self._host.put(*args, **options)
    def get(self, *args): return self._host.get(*args)
    def follow(self, *args, **options): return self._host.follow(*args, **options)
    def close(self): pass
    def read(self, *pieces):
        for path, offset in pieces:
            if not path.endswith("big"):
                continue
            with (HERE / "reads").open("a") as file:
                print(offset, file=file)
            while offset and (HERE / "hold").exists():
                time.sleep(0.05)
            if offset and (HERE / "cut").exists():
                (HERE / "cut").unlink()
                raise HostUnreachableError("the line is cut")
        return self._host.read(*pieces)

@hookimpl
def tpu_section(): return Section
@hookimpl
def provision(request):
    answer = tpux_local.provision(request)
    return replace(answer, allocation=replace(answer.allocation, transport="slow"))
@hookimpl
def inspect(request): return tpux_local.inspect(request)
@hookimpl
def release(request): return tpux_local.release(request)
@hookimpl
def connect(worker, job): return Host(tpux_local.connect(worker, job))
"""
MIB = 2**20
BIG = """
tpu: {allocation_mode: slow}
command: {cmd: "head -c 10000000 /dev/urandom >big; cksum <big", collect: [big]}
watch: {verdict_grace: 1s, poll_every: 0.2s}
"""


def check_big(tpux, job, offsets, place):
    """Check that the file has arrived as it is, and that no byte was read twice."""
    [event] = tpux.events(job, "files-collected")
    [content] = files_in(event).values()
    (tpux.work / "copy").write_bytes(content)
    assert os.popen(f"cksum <{tpux.work / 'copy'}").read().encode() in tpux.output(job)
    assert event["missing"] == []
    assert [int(line) for line in (place / "reads").read_text().split()] == offsets
    assert [path.name for path in Path(event["directory"]).iterdir()] == ["worker-0"]


def test_a_cut_connection_continues_where_it_was(tpux):
    place = tpux.plugin("tpux-slow", SLOW, entries="slow = tpux_slow").parent
    (place / "cut").touch()
    job = tpux.create(BIG)
    tpux("wait", job)
    check_big(tpux, job, [0, 4 * MIB, 4 * MIB, 8 * MIB], place)


def test_a_killed_supervisor_continues_where_it_was(tpux):
    place = tpux.plugin("tpux-slow", SLOW, entries="slow = tpux_slow").parent
    (place / "hold").touch()
    job = tpux.create(BIG)
    tpux.until(lambda: (place / "reads").exists() and len((place / "reads").read_text().split()) == 2)
    tpux.kill_supervisor()
    (place / "hold").unlink()
    tpux("wait", job)
    check_big(tpux, job, [0, 4 * MIB, 4 * MIB, 8 * MIB], place)


def test_a_stop_during_the_fetch_continues_it(tpux):
    place = tpux.plugin("tpux-slow", SLOW, entries="slow = tpux_slow").parent
    (place / "hold").touch()
    job = tpux.create(BIG)
    tpux.until(lambda: "fetching the files of command.collect, 4.2 MB of 10 MB" in str(tpux.show(job)["why"]))
    stop = tpux.popen("stop", job)
    tpux.until(lambda: tpux.show(job)["state"] == "stopping")
    (place / "hold").unlink()
    assert stop.wait(60) == 0
    [event] = tpux.events(job, "files-collected")
    assert [len(content) for content in files_in(event).values()] == [10_000_000]
    assert tpux.show(job)["state"] == "succeeded"


def test_lost_machines_are_named_and_do_not_hold_the_job(tpux):
    text = JOB.format(cmd="echo 1 >a; echo on; sleep 1000", patterns="[a]", accelerator="v4-8")
    job = tpux.create(text, "watch.lost_after=1s")
    tpux.until(lambda: b"on" in tpux.output_so_far(job))
    machine = tpux.machines(job)
    machine.rename(machine.with_name("gone"))
    tpux("wait", job, code=100)
    [event] = tpux.events(job, "files-collected")
    assert (event["files"], len(event["missing"])) == (0, 1)
    assert event["missing"][0].startswith("worker 0: ")
