"""Module `script`: runs the user's own set-up scripts on each worker, once per change."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tpux import Finding, Job, Section, Sh, Steps, TpuxError, Worker, hookimpl, put, sh
from tpux_script.section import Script, ScriptSection
from tpux_worker_tools import apt

DIRECTORY = ".tpux/script"
CHECK_TIMEOUT = 60.0
"""Seconds that the user's check may take."""

LOCK_TIMEOUT = 600
"""Seconds to wait for the set-up script of another job on a machine that jobs share, and for the lock of apt."""

TRANSIENT_TRIES = 3
"""How many times a script that the network has failed is run again, beside the tries of the set-up."""

# Without these marks a worker on which a script never ran would look ready where no `check` says otherwise. The job's
# own holds until its end: another one that shares the machine may run scripts of its own meanwhile. A mark is a line
# with the script's place in the list and its digest; the first line of the machine's is the job.
_WAS_RUN = """# check that the set-up script{which} was run
for done in {own}/done {directory}/done; do
    if grep -qxF {mark} $done 2>/dev/null; then exit 0; fi
done
echo 'it has not been run here, or has changed since'
exit 1
"""

# The variables may be secrets, so the file is removed before anything else: a signal would leave it. They are set only
# for the script, since PATH may be among them. What the script starts holds neither the lock nor the output: `tail`
# ends with a process that is ended when the script has ended.
_RUN = """# run the set-up script{which}
variables=$(cat {own}/variables)
rm -f {own}/variables
directory={directory} own={own} place={place} mark={mark} limit={limit}
exec 8>>$directory/lock
if ! flock -n 8; then
    other=$(cat $directory/lock)
    echo "waiting for $other, which runs its set-up script on this machine"
    if ! flock -w "$limit" 8; then
        echo "$other has not ended its set-up script within $limit s: wait for it, or stop it"
        exit 75
    fi
fi
echo {job} >$directory/lock
if [ "$(head -n 1 $directory/done 2>/dev/null)" != {key} ]; then echo {key} >$directory/done; fi
for done in $own/done $directory/done; do
    sed -i "/^$place /d" $done 2>/dev/null || :
done
@wait@
if [ -z "${APT_CONFIG-}" ]; then
    echo "DPkg::Lock::Timeout \\"$limit\\";" >$own/apt.conf
    export APT_CONFIG="$PWD/$own/apt.conf"
fi
said=$own/output again=0 locked_since= pause=5
trap 'rm -f $said' EXIT
while :; do
    (umask 077 && : >$said)
    tail -f /dev/null >/dev/null 2>&1 8>&- &
    running=$!
    tail -s 0.1 -n +1 -f --pid=$running $said 2>/dev/null 8>&- &
    shown=$!
    code=0
    (
        eval "$variables"
        exec {command}
    ) >>$said 2>&1 8>&- || code=$?
    kill $running
    wait $running 2>/dev/null || :
    wait $shown || :
    [ "$code" != 0 ] || break
    case $(tail -n 40 $said) in
    *'Could not get lock'* | *'Unable to lock'* | *'Unable to acquire the dpkg'* | *'dpkg frontend lock'*)
        why='another program holds the lock of apt' now=$(date +%s)
        locked_since=${locked_since:-$now}
        if [ $((now - locked_since)) -ge "$limit" ]; then
            echo "another program has held the lock of apt for $limit s: wait for it, and try again"
            exit "$code"
        fi
        ;;
    *'emporary failure'* | *'ould not resolve'* | *'onnection timed out'* | *'onnection reset'* | *'ead timed out'* | \
        *'TLS handshake timeout'* | *'Hash Sum mismatch'* | *'Too Many Requests'* | *'Bad Gateway'* | \
        *'Service Unavailable'* | *'Gateway Time'* | *'error: 429'* | *'error: 50'[234]* | *'etwork is unreachable'*)
        [ "$again" -lt {transient} ] || exit "$code"
        why='the network, or a server, has failed it' again=$((again + 1))
        ;;
    *) exit "$code" ;;
    esac
    echo "$why: running the set-up script again in $pause s"
    sleep "$pause"
    [ "$pause" -ge 30 ] || pause=$((pause * 2))
done
for done in $own/done $directory/done; do
    echo "$mark" >>$done
done
"""


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `script`."""
    return ScriptSection


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Report a script that this machine's kind of line ends, or an empty file, would make fail on every worker."""
    if (section := job.section("script", ScriptSection)) is None:
        return [Finding("error", "the module script needs the section script", hint="for example script: setup.sh")]
    return [finding for script in section.all for finding in _problems(script.path)]


def _problems(path: Path) -> list[Finding]:
    content = path.read_bytes()
    if not content.strip():
        return [Finding("error", "the script is empty", str(path))]
    if b"\r\n" in content:
        hint = f"convert it: sed -i 's/\\r$//' {shlex.quote(str(path))}"
        return [Finding("error", "the script has Windows line ends, which shells do not accept", str(path), hint)]
    return []


@hookimpl
def check(job: Job, config: Section | None, worker: Worker) -> Steps:
    """Check that each script was run with this content, and run the user's checks."""
    scripts, own = _scripts(config), _own_directory(job, worker)
    for place, script in enumerate(scripts):
        yield from _check(script, place, len(scripts), own)


@hookimpl
def setup(job: Job, config: Section | None, worker: Worker) -> Steps:
    """Copy each script and run it; of several only those that were not run, or whose check fails."""
    scripts, own = _scripts(config), _own_directory(job, worker)
    for place, script in enumerate(scripts):
        results = []
        for step in _check(script, place, len(scripts), own) if len(scripts) > 1 else ():
            results.append((yield replace(step, may_fail=True)).ok)
            if not results[-1]:
                break
        if not results or not all(results):
            yield from _run(job, script, place, len(scripts), worker)


def _check(script: Script, place: int, count: int, own: str) -> Iterator[Sh]:
    which = _which(place, count)
    yield sh(_WAS_RUN.replace("{which}", which), directory=DIRECTORY, own=own, mark=_mark(script, place))
    if script.check is not None:
        yield Sh(f"# check the set-up{which}\n{script.check}", timeout=CHECK_TIMEOUT)


def _run(job: Job, script: Script, place: int, count: int, worker: Worker) -> Steps:
    own = _own_directory(job, worker)
    variables = {**script.env, "TPUX_JOB_ID": job.id, "TPUX_WORKER": str(worker.index)}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    content = script.path.read_bytes()
    yield put(script.path, f"{own}/program", mode=0o700)
    yield put(exports.encode(errors="surrogateescape"), f"{own}/variables")
    program = [f"{own}/program"] if content.startswith(b"#!") else ["bash", f"{own}/program"]
    # Not by `sh`'s placeholders: that refuses a value such as ~ among the arguments.
    command, uses_apt = shlex.join([*program, *script.args]), re.search(rb"\b(?:apt|dpkg)\b", content)
    made = sh(
        _RUN.replace("{which}", _which(place, count)).replace("@wait@", apt.wait(LOCK_TIMEOUT) if uses_apt else ""),
        directory=DIRECTORY,
        own=own,
        job=f"job {int(job.id)} of {job.user}",
        key=job.key,
        place=place,
        mark=_mark(script, place),
        limit=LOCK_TIMEOUT,
        transient=TRANSIENT_TRIES,
    )
    before, _, after = made.script.partition("{command}")
    yield Sh(f"{before}{command}{after}", timeout=script.timeout + 3 * LOCK_TIMEOUT)


def _which(place: int, count: int) -> str:
    return f" {place + 1} of {count}" if count > 1 else ""


def _mark(script: Script, place: int) -> str:
    return f"{place} {script.digest()}"


@hookimpl
def clean_up(job: Job, worker: Worker) -> Steps:
    """Remove the script, and the variables, which may be secrets, of a set-up that was cut off before it began."""
    yield sh("# remove the set-up script\nrm -rf {own}", own=_own_directory(job, worker))


def _own_directory(job: Job, worker: Worker) -> str:
    """Return the directory of a job's files: others may share the machine, and workers the home directory."""
    return f"{DIRECTORY}/{job.key}-w{worker.index}"


def _scripts(config: Section | None) -> list[Script]:
    if not isinstance(config, ScriptSection):
        raise TpuxError("the job has no section script", hint="for example script: setup.sh")
    return config.all
