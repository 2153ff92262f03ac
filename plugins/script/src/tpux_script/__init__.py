"""Module `script`: runs the user's own set-up script on each worker, once per change."""

from __future__ import annotations

import shlex

from tpux import Finding, Job, Section, Sh, Steps, TpuxError, Worker, hookimpl, put, sh
from tpux_script.section import ScriptSection

DIRECTORY = ".tpux/script"
CHECK_TIMEOUT = 60.0
"""Seconds that the user's check may take."""

LOCK_TIMEOUT = 600
"""Seconds to wait for the set-up script of another job on a machine that jobs share."""

# Without these marks a worker on which the script never ran would look ready where no `check` says otherwise. The job's
# own holds until its end: another one that shares the machine may run a script of its own meanwhile.
_WAS_RUN = """# check that the set-up script was run
for done in {own}/done {directory}/done; do
    if [ "$(cat $done 2>/dev/null)" = {digest} ]; then exit 0; fi
done
echo 'it has not been run here, or has changed since'
exit 1
"""

# The variables may be secrets, so the file is removed before anything else: a signal would leave it. They are set after
# the last program of tpux' own, since PATH may be among them. What the script starts does not hold the lock.
_RUN = """# run the set-up script
variables=$(cat {own}/variables)
rm -f {own}/variables
exec 8>>{directory}/lock
if ! flock -n 8; then
    other=$(cat {directory}/lock) limit={limit}
    echo "waiting for $other, which runs its set-up script on this machine"
    if ! flock -w "$limit" 8; then
        echo "$other has not ended its set-up script within $limit s: wait for it, or stop it"
        exit 75
    fi
fi
echo {job} >{directory}/lock
rm -f {directory}/done {own}/done
eval "$variables"
"""

_MARK = """echo {digest} >{directory}/done
echo {digest} >{own}/done
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
    content = section.path.read_bytes()
    if not content.strip():
        return [Finding("error", "the script is empty", str(section.path))]
    if b"\r\n" in content:
        hint = f"convert it: sed -i 's/\\r$//' {shlex.quote(str(section.path))}"
        return [
            Finding("error", "the script has Windows line ends, which shells do not accept", str(section.path), hint)
        ]
    return []


@hookimpl
def check(job: Job, config: Section | None, worker: Worker) -> Steps:
    """Check that the script was run with this content, and run the user's check."""
    section = _section(config)
    yield sh(_WAS_RUN, directory=DIRECTORY, own=_own_directory(job, worker), digest=section.digest())
    if section.check is not None:
        yield Sh(f"# check the set-up\n{section.check}", timeout=CHECK_TIMEOUT)


@hookimpl
def setup(job: Job, config: Section | None, worker: Worker) -> Steps:
    """Copy the script and run it."""
    section, own = _section(config), _own_directory(job, worker)
    variables = {**section.env, "TPUX_JOB_ID": job.id, "TPUX_WORKER": str(worker.index)}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    has_interpreter = section.path.read_bytes().startswith(b"#!")
    yield put(section.path, f"{own}/program", mode=0o700)
    yield put(exports.encode(errors="surrogateescape"), f"{own}/variables")
    program = [f"{own}/program"] if has_interpreter else ["bash", f"{own}/program"]
    command = shlex.join([*program, *section.args])  # not a placeholder of `sh`, which refuses a value such as ~
    who = f"job {int(job.id)} of {job.user}"
    begin = sh(_RUN, directory=DIRECTORY, own=own, job=who, limit=LOCK_TIMEOUT)
    end = sh(_MARK, directory=DIRECTORY, own=own, digest=section.digest())
    script = f"{begin.script}{command} 8>&-\n{end.script}"
    yield Sh(script, timeout=section.timeout + LOCK_TIMEOUT)


@hookimpl
def clean_up(job: Job, worker: Worker) -> Steps:
    """Remove the script, and the variables, which may be secrets, of a set-up that was cut off before it began."""
    yield sh("# remove the set-up script\nrm -rf {own}", own=_own_directory(job, worker))


def _own_directory(job: Job, worker: Worker) -> str:
    """Return the directory of a job's files: others may share the machine, and workers the home directory."""
    return f"{DIRECTORY}/{job.key}-w{worker.index}"


def _section(config: Section | None) -> ScriptSection:
    if not isinstance(config, ScriptSection):
        raise TpuxError("the job has no section script", hint="for example script: setup.sh")
    return config
