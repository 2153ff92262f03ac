"""Module `script`: runs the user's own set-up script on each worker, once per change."""

from __future__ import annotations

import shlex

from tpux import Finding, Job, Section, Sh, Steps, TpuxError, Worker, hookimpl, put, sh
from tpux_script.section import ScriptSection

DIRECTORY = ".tpux/script"
CHECK_TIMEOUT = 60.0
"""Seconds that the user's check may take."""

# Without this mark a worker on which the script never ran would look ready where no `check` says otherwise.
_WAS_RUN = """# check that the set-up script was run
if [ "$(cat {directory}/done 2>/dev/null)" != {digest} ]; then
    echo 'it has not been run here, or has changed since'
    exit 1
fi
"""

# The variables may be secrets, so the file is removed before the script begins: a signal would leave it.
_RUN = """# run the set-up script
rm -f {directory}/done
. ./{directory}/variables
rm -f {directory}/variables
"""

_MARK = """# remember that the set-up script was run
rm -f {directory}/variables
echo {digest} >{directory}/done
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
def check(config: Section | None) -> Steps:
    """Check that the script was run with this content, and run the user's check."""
    section = _section(config)
    yield sh(_WAS_RUN, directory=DIRECTORY, digest=section.digest())
    if section.check is not None:
        yield Sh(f"# check the set-up\n{section.check}", timeout=CHECK_TIMEOUT)


@hookimpl
def setup(job: Job, config: Section | None, worker: Worker) -> Steps:
    """Copy the script and run it."""
    section = _section(config)
    variables = {**section.env, "TPUX_JOB_ID": job.id, "TPUX_WORKER": str(worker.index)}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    has_interpreter = section.path.read_bytes().startswith(b"#!")
    yield put(section.path, f"{DIRECTORY}/program", mode=0o700)
    yield put(exports.encode(errors="surrogateescape"), f"{DIRECTORY}/variables")
    program = [f"{DIRECTORY}/program"] if has_interpreter else ["bash", f"{DIRECTORY}/program"]
    command = shlex.join([*program, *section.args])  # not a placeholder of `sh`, which refuses a value such as ~
    yield Sh(f"{sh(_RUN, directory=DIRECTORY).script}{command}\n", timeout=section.timeout)
    yield sh(_MARK, directory=DIRECTORY, digest=section.digest())


@hookimpl
def clean_up() -> Steps:
    """Remove the variables, which may be secrets, of a set-up that was cut off before the script began."""
    yield sh("# remove the variables of a set-up that was cut off\nrm -f {directory}/variables", directory=DIRECTORY)


def _section(config: Section | None) -> ScriptSection:
    if not isinstance(config, ScriptSection):
        raise TpuxError("the job has no section script", hint="for example script: setup.sh")
    return config
