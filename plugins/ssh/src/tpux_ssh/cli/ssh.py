"""`tpux ssh` (Workers): log in to a worker of a job with the system's OpenSSH."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Annotated

import typer

from tpux import UsageError
from tpux.api import new_app

if TYPE_CHECKING:
    from tpux import Worker
    from tpux.api import JobConnection

app = new_app()
# Source: ssh(1). The last letter of a word may be an option with a value; that is what follows, or the next word.
_OPTION = re.compile("-[46AaCfGgKkMNnqsTtVvXxYy]*[BbcDEeFIiJLlmOoPpQRSWw](?P<value>.*)")
_NO_SHELL = re.compile("-[46AaCfGgKkMNnqsTtVvXxYy]*[NWOQsGV]")

# An interactive shell reads what a login shell does, but what that puts into PATH comes after the environment's.
_STARTUP = """
tpux_path=$PATH tpux_directory=$PWD
if [ -r /etc/profile ]; then . /etc/profile; fi
for tpux_file in ~/.bash_profile ~/.bash_login ~/.profile; do
    if [ -r "$tpux_file" ]; then . "$tpux_file"; break; fi
done
PATH=$tpux_path:$PATH
cd -- "$tpux_directory"
unset tpux_path tpux_directory tpux_file
"""
_SHELL = """
[ -t 0 ] || exec bash
exec bash --rcfile <(printf '%s\\nPS1="(%s) $PS1"\\n' "$1" "$0") -i
"""


@app.command(
    epilog="Example: tpux ssh 12 --worker 3\n\nExample: tpux ssh 12 -- -A"
    "\n\nExample: tpux ssh 12 -- -t python -m pdb train.py\n\nExample: tpux ssh 12 --host"
)
def ssh(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id or name, or a TPU's name.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ...", help="Options for ssh, or a command to run on the worker.")
    ] = None,
    worker: Annotated[int, typer.Option(min=0, help="Number of the worker.")] = 0,
    host: Annotated[
        bool,
        typer.Option("--host", help="In the home directory of the bare machine, outside of the job's environment."),
    ] = False,
    forget_host_key: Annotated[
        bool,
        typer.Option("--forget-host-key", help="Trust the worker's current host key, after it has changed on purpose."),
    ] = False,
) -> None:
    """Log in to a worker of a job where its program runs: in the directory of its code, and in its environment.

    While the program runs in a container, so does the shell. Without a section code or an environment, with options of
    ssh that start no shell, and on a TPU that no job holds, it is a plain login.
    """
    from tpux import api
    from tpux_ssh.openssh import OpenSsh

    held = api.workers(job, or_machines=True)
    openssh, target = OpenSsh(held), held.worker(worker)
    if forget_host_key and not openssh.forget_key(target):
        target = _with_current_key(held, target)
    for error in openssh.learn_keys([target]).values():
        raise error
    options, words = _split(arguments or [])
    if not (host or held.machines or _starts_no_shell(options)):
        if not words and os.isatty(0):
            options.append("-t")
        words = ["sh", _login_file(held, target, " ".join(words))]
    command = ["ssh", "-F", str(openssh.config_file([target])), *options, openssh.alias(target), *words]
    try:
        os.execvp("ssh", command)  # noqa: S606  (ssh inherits the terminal, receives the signals and sets the exit code)
    except FileNotFoundError as error:
        raise UsageError("ssh: command not found", hint="install openssh-client") from error


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the options for ssh, and the words of the command that follows them."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "--":
        match = _OPTION.match(arguments[index])
        index += 2 if match and not match["value"] else 1
    words = arguments[index:]
    return arguments[:index], words[1:] if words[:1] == ["--"] else words


def _starts_no_shell(options: list[str]) -> bool:
    return any(_NO_SHELL.match(option) for option in options)


def _login_file(held: JobConnection, worker: Worker, script: str) -> str:
    argv = ("bash", "-c", script) if script else ("bash", "-c", _SHELL, held.title, _STARTUP)
    with contextlib.closing(held.open(worker)) as host:
        return held.login(host, argv)


def _with_current_key(held: JobConnection, worker: Worker) -> Worker:
    """Return a worker with the host key that its allocator provides now.

    Raises:
        UsageError: it provides none, or the same as when the machines were allocated.
    """
    current = held.current_worker(worker)
    if current is None or not current.details.get("host_keys"):
        message = f"worker {worker.index} has no stored host key to forget"
        raise UsageError(message, hint="no key has been learned yet: log in without --forget-host-key")
    if current == worker:
        message = f"the host key of worker {worker.index} is from the allocator, which still provides the same key"
        raise UsageError(message, hint="if the worker presents another one, it is a different machine")
    return current
