"""What an environment promises: the program runs as it would without it, and nothing of it outlives a stop."""

from __future__ import annotations

import random
import secrets
import shlex
from collections.abc import Mapping

from tpux.model.events import WorkerExited
from tpux.model.host import OpenHost
from tpux.plugin import spec
from tpux_testing.contract import ContractError, contract, require
from tpux_testing.sandbox import Sandbox, SandboxJob, environment

_CODE = 7
_VALUE = "two words, \"double\" and 'single' quotes, $HOME, \\, *"
_VARIABLE = "TPUX_CONTRACT_VALUE"
_COMMANDS, _VARIABLES = 300, 60
"""How many commands and variables are generated."""
# Weighted towards what shells treat specially. Without DEL, which YAML does not allow, and without surrogates.
_CHARACTERS = "".join(map(chr, range(32, 127))) + "'\"\\$` \n\t*~{}" * 5 + "\x01\x1b\x85\xe9\u20ac\u2028\ufeff\uffff"
_BEGIN, _END = b"<received>", b"</received>"
# First attempt: output, variables and an exit code. Second: a program that saves a checkpoint when it is stopped, and a
# process that has left its session and parents and ignores SIGTERM. The processes are found by the argument of sleep,
# since an environment may clear their variables.
_PROGRAM = r"""
if [ "$TPUX_ATTEMPT" != 2 ]; then
  echo to-stdout
  echo to-stderr >&2
  printf 'secret=%s\n' "${env:TPUX_CONTRACT_VALUE}"
  printf 'worker=%s\n' "$TPUX_WORKER"
  printf '<received>'
  GENERATED
  printf '</received>'
  exit 7
fi
trap 'echo saved; exit 0' TERM
(setsid sh -c 'trap "" TERM; exec sleep MARK' </dev/null >/dev/null 2>&1 &)
sleep MARK &
echo started
wait
"""


@contract
def environment_contract(word: str, config: Mapping[str, object] | None = None, *, plugin: object = None) -> None:
    """Test that an environment's `run` keeps what core relies on, with a job on a local worker.

    The program's output, exit code and variables are the same as without the environment, with a few hundred generated
    arguments and values that contain quotes, newlines and control characters. SIGTERM reaches it, and
    after a stop nothing that it has started is alive, even in an environment that clears variables (`env -i`): all of
    `command.env` must be passed on. An environment is a module as well, see `module_contract`.

    Args:
        word: the environment.
        config: the keys of its section.
        plugin: the module or object to use, if it is not installed.

    Raises:
        ContractError: the environment does not keep it.

    Example:
        def test_contract():
            environment_contract("venv", {"name": "env"})
    """
    with Sandbox({} if plugin is None else {word: plugin}) as sandbox, environment(**{_VARIABLE: _VALUE}):
        implemented = sandbox.plugins.implements(word, spec.run)
        require(implemented, word, spec.run, "an environment implements run")
        mark = f"86400.{secrets.randbelow(10**12):012d}"
        commands, variables = _generate()
        program = _PROGRAM.replace("MARK", mark).replace("GENERATED", "\n".join(_script(commands, variables)))
        command = {"cmd": program, "env": variables, "grace_period": 1}
        settings: dict[str, object] = {"job": {"env_type": word, "rule": "pass"}, "command": command}
        job = sandbox.start(settings if config is None else {**settings, word: dict(config)})
        try:
            _same_result(word, job)
            _same_values(word, job, [*commands, *([value] for value in variables.values())])
            _ends_at_stop(word, job)
        finally:
            survivors = _processes(job, mark)
            if survivors:
                _host(job).run(f"kill -9 {survivors}")
        message = (
            "processes that the program started are alive after a stop; they are found by the variables TPUX_RUN_ID "
            "and TPUX_RUN_HOME of `command.env`: pass all of `command.env` on (`env -i` clears it)"
        )
        require(not survivors, word, spec.run, message)


def _same_result(word: str, job: SandboxJob) -> None:
    state = job.until(lambda state: state.ended)
    codes = [event.code for event, _ in job.controller.record.events() if isinstance(event, WorkerExited)]
    output = job.output(attempt=1)
    if not codes:
        why = state.failure.evidence if state.failure else state.why
        raise ContractError(word, "run", f"the command was not run: {why}")
    shown = f"the output was:\n{_without_values(output)}"
    require(codes == [_CODE], word, spec.run, f"a script that exits with {_CODE} ended with {codes[0]}; {shown}")
    for stream in ("stdout", "stderr"):
        require(f"to-{stream}\n" in output, word, spec.run, f"what the script wrote to {stream} is lost; {shown}")
    for line in (f"secret={_VALUE}\n", "worker=0\n"):
        name = line.partition("=")[0]
        message = f"a variable of `command.env` ({name}) does not reach the script as it is; {shown}"
        require(line in output, word, spec.run, message)


def _without_values(output: str) -> str:
    """Return the output of the contract's program for people: without the generated arguments and variables."""
    before, begin, rest = output.partition(_BEGIN.decode())
    return before + (rest.partition(_END.decode())[2].lstrip("\n") if begin else "")


def _generate() -> tuple[list[list[str]], dict[str, str]]:
    """Return the arguments of commands, and variables: the same each time."""
    source = random.Random(1)  # noqa: S311  (test values, not secrets)

    def text() -> str:
        characters = "".join(source.choices(_CHARACTERS, k=source.randrange(12)))
        return characters.replace("${", "$ {")  # a reference to another value of the config

    commands = [[text() for _ in range(source.randrange(6))] for _ in range(_COMMANDS)]
    return commands, {f"CONTRACT_{number}": text() for number in range(_VARIABLES)}


def _script(commands: list[list[str]], variables: Mapping[str, str]) -> list[str]:
    """Return lines of a shell script that print arguments and variables, each followed by a NUL."""
    given = [f"printf '%s\\0' {shlex.join(arguments)}" for arguments in commands if arguments]
    return [*given, *(f"printf '%s\\0' \"${name}\"" for name in variables)]


def _same_values(word: str, job: SandboxJob, expected: list[list[str]]) -> None:
    output = job.controller.record.output_log(1, 0).read_bytes()
    received = output.partition(_BEGIN)[2].partition(_END)[0].split(b"\0")
    values = [value.encode() for values in expected for value in values]
    for value, arrived in zip(values, received, strict=False):
        message = f"an argument or a variable of the program arrived as {arrived!r} and was {value!r}"
        require(value == arrived, word, spec.run, message)
    message = f"{len(values)} arguments and variables were given to the program, and {len(received) - 1} arrived"
    require(len(values) == len(received) - 1, word, spec.run, message)


def _ends_at_stop(word: str, job: SandboxJob) -> None:
    job.request("resume")
    job.until(lambda state: state.attempt == 2 and (state.ended or "started\n" in job.output()))
    require(
        not job.state.ended, word, spec.run, f"the script ended early; the output was:\n{_without_values(job.output())}"
    )
    job.request("stop")
    job.until(lambda state: state.state == "stopped")
    message = "SIGTERM does not reach the script, so it cannot save a checkpoint; the output was:\n"
    message += _without_values(job.output())
    require("saved\n" in job.output(), word, spec.run, message)


def _processes(job: SandboxJob, mark: str) -> str:
    """Return the pids of the processes with an argument, separated by blanks."""
    pattern = mark.replace(".", "[.]")  # so that it does not match this script's own command line
    return _host(job).run(f"grep -lse '{pattern}' /proc/[0-9]*/cmdline | cut -d/ -f3").text.replace("\n", " ")


def _host(job: SandboxJob) -> OpenHost:
    return job.controller.workers.host(job.controller.begin().machines.workers[0])
