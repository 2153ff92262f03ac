"""What a module promises: a check that fails until the setup has completed; a setup and a clean-up to repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from itertools import product

from tpux.model.host import OpenHost
from tpux.model.job import Job
from tpux.model.steps import Put, Result, Step, Steps
from tpux.plugin import spec
from tpux.remote.process import RemoteProcess, worker_key
from tpux_testing.contract import ContractError, contract, require
from tpux_testing.sandbox import Sandbox
from tpux_testing.steps import WorkerSteps, describe, run_on

NewHost = Callable[[], OpenHost]
"""Returns a connection to a worker that nothing has been set up on."""
_SHOWN = 5
"""How many changed files a message names."""
# Not the module's: what core keeps there, temporary files, and what programs write when they only read.
_IGNORED = (".tpux", ".cache", "*/__pycache__", "*/__pycache__/*")
_SNAPSHOT = r"""
list_files() {
    find . -path ./.tpux/runs -prune -o -path ./.tpux/uses -prune -o -path ./tmp -prune -o "$@"
}
list_files -printf '%y %m %l|%P\n'
list_files -type f -exec cksum {} + | sed 's,^\([0-9]* [0-9]*\) \./,\1|,'
"""


@contract
def prepare(
    word: str,
    config: Mapping[str, object] | None = None,
    *,
    plugin: object = None,
    new_host: NewHost | None = None,
    ignore: Sequence[str] = (),
) -> WorkerSteps:
    """Check, set up, check, and set up again: the life of a module on one worker.

    The check must fail on a new worker, the setup and then the check succeed, and a second setup may change no file
    in the worker's home directory.

    Args:
        word: the module.
        config: the keys of its section.
        plugin: the module or object to use, if it is not installed.
        new_host: returns a new worker; by default a directory on this machine, which needs the plugin `local`.
        ignore: patterns of files in the home directory that a setup may change each time, such as `logs/*`.

    Returns:
        The first setup: its `steps`, their `results` and the `log`.

    Raises:
        ContractError: one of these did not happen.

    Example:
        prepared = prepare("apt", {"packages": ["htop"]}, plugin=tpux_apt)
        assert "htop" in prepared.log
    """
    with Sandbox({} if plugin is None else {word: plugin}) as sandbox:
        module = _Module(sandbox, word, config)
        return _check_and_set_up(module, (new_host or sandbox.new_host)(), ignore)


@contract
def module_contract(
    word: str,
    config: Mapping[str, object] | None = None,
    *,
    plugin: object = None,
    new_host: NewHost | None = None,
    ignore: Sequence[str] = (),
) -> None:
    """Test that a module keeps what core relies on.

    What `prepare` does; besides, a check changes nothing, a hook that is run again after a crash yields the same
    steps for the same results, and a setup that was cut off after any of its steps can be repeated.

    `clean_up` can be called before and after any of that, and repeated; after it the check fails if the setup would
    bring something back. The values of `${env:NAME}` in the section are secrets: no script has one, and when a setup
    has completed or was cut off, and was cleaned up, no file on the worker has one.

    Args:
        word: the module.
        config: the keys of its section; with them there must be something to set up.
        plugin: the module or object to use, if it is not installed.
        new_host: returns a new worker at each call; by default a directory on this machine.
        ignore: patterns of files in the home directory that a setup may change each time.

    Raises:
        ContractError: the module does not keep it.

    Example:
        def test_contract():
            module_contract("apt", {"packages": ["htop"]})
    """
    with Sandbox({} if plugin is None else {word: plugin}) as sandbox:
        module = _Module(sandbox, word, config)
        create = new_host or sandbox.new_host
        first = create()
        _check_changes_nothing(module, first, ignore)
        _clean_up_new_worker(module, first, ignore)
        taken = _check_and_set_up(module, first, ignore)
        _check_changes_nothing(module, first, ignore)
        _yields_the_same_steps(module, spec.setup, first, taken)
        for released in (False, True):
            _clean_up_and_set_up(module, first, ignore, released=released)
        for limit in range(1, len(taken.steps)):
            _repeat_interrupted_setup(module, create(), limit)


class _Module:
    """A module and a job that selects it."""

    def __init__(self, sandbox: Sandbox, word: str, config: Mapping[str, object] | None) -> None:
        self.word = word
        self.plugins = sandbox.plugins
        self._sandbox = sandbox
        has_setup = self.plugins.implements(word, spec.setup)
        self.has_check = self.plugins.implements(word, spec.check)
        self.has_clean_up = self.plugins.implements(word, spec.clean_up)
        require(has_setup or self.has_check, word, spec.setup, "a module implements setup, check, or both")
        has_run = self.plugins.implements(word, spec.run)
        selected = {"job": {"env_type": word}} if has_run else {"setup": {"modules": [word]}}
        self.job: Job = sandbox.job({word: dict(config), **selected} if config is not None else selected)
        self.secrets = {name: value for name, value in sandbox.secrets.items() if value.strip()}
        self._runs = 0

    def steps(self, hook: Callable[..., Steps], host: OpenHost, *, released: bool = False) -> Steps:
        """Call a hook."""
        section = self.job.sections.get(self.word)
        arguments: dict[Callable[..., Steps], dict[str, object]] = {
            spec.setup: {"peers": ()},
            spec.clean_up: {"released": released},
        }
        more = arguments.get(hook, {})
        answer = self.plugins.call_one(self.word, hook, job=self.job, config=section, worker=host.worker, **more)
        return _no_steps() if answer is None else answer

    def run(
        self, hook: Callable[..., Steps], host: OpenHost, limit: int | None = None, *, released: bool = False
    ) -> WorkerSteps:
        """Run a hook's steps on a worker. Their scripts may contain no secret.

        Args:
            hook: the hook.
            host: the worker.
            limit: after how many steps it is cut off; None runs all.
            released: the argument of `clean_up`.
        """
        self._runs += 1
        run = RemoteProcess(worker_key(self.job.key, host.worker.index), 1, f"{self.word}-{hook.__name__}-{self._runs}")
        log = self._sandbox.new_directory() / "log"
        taken = run_on(host, self.steps(hook, host, released=released), run=run, log=log, limit=limit)
        for (number, step), (name, value) in product(enumerate(taken.steps, start=1), self.secrets.items()):
            message = (
                f"the script of step {number} contains the value of ${{env:{name}}}; scripts are logged: put a file"
            )
            require(isinstance(step, Put) or value not in step.script, self.word, hook, message)
        return taken

    def must_succeed(
        self, hook: Callable[..., Steps], host: OpenHost, when: str, *, released: bool = False
    ) -> WorkerSteps:
        """Run a hook's steps, which must all succeed.

        Args:
            hook: the hook.
            host: the worker.
            when: what had happened before, for the message.
            released: the argument of `clean_up`.
        """
        taken = self.run(hook, host, released=released)
        if taken.failed:
            step, result = taken.failed
            message = f"{when} {describe(step)} failed with exit code {result.code}: {_last_line(result.text)}"
            raise ContractError(self.word, hook.__name__, message)
        return taken


def _no_steps() -> Steps:
    yield from ()


def _check_and_set_up(module: _Module, host: OpenHost, ignore: Sequence[str]) -> WorkerSteps:
    word = module.word
    if module.has_check:
        require(
            module.run(spec.check, host).failed,
            word,
            spec.check,
            "it succeeds on a new worker, before anything was set up, so the setup would never run; "
            "check for what the setup does, and test with a config that needs a setup",
        )
    taken = module.must_succeed(spec.setup, host, "on a new worker")
    module.must_succeed(spec.check, host, "after a setup that succeeded,")
    before = _snapshot(host, ignore)
    module.must_succeed(spec.setup, host, "when it was run again,")
    changed = _differences(before, _snapshot(host, ignore))
    message = f"run again, with nothing left to do, it changed {changed}; a setup is repeated after a crash"
    require(not changed, word, spec.setup, message)
    module.must_succeed(spec.check, host, "after the setup was repeated,")
    return taken


def _check_changes_nothing(module: _Module, host: OpenHost, ignore: Sequence[str]) -> None:
    before = _snapshot(host, ignore)
    module.run(spec.check, host)
    changed = _differences(before, _snapshot(host, ignore))
    message = f"it changed {changed}; a check only looks, since `tpux check` runs it beside a running program"
    require(not changed, module.word, spec.check, message)


def _clean_up_new_worker(module: _Module, host: OpenHost, ignore: Sequence[str]) -> None:
    """Clean up a worker whose set-up was cut off before its first step."""
    if module.has_clean_up:
        before = _snapshot(host, ignore)
        module.must_succeed(spec.clean_up, host, "on a new worker", released=True)
        changed = _differences(before, _snapshot(host, ignore))
        require(
            not changed, module.word, spec.clean_up, f"on a new worker, with nothing to remove, it changed {changed}"
        )


def _clean_up_and_set_up(module: _Module, host: OpenHost, ignore: Sequence[str], *, released: bool) -> None:
    """Clean up a worker that is set up, twice, and set it up again.

    Args:
        module: the module.
        host: the worker.
        ignore: paths that may change.
        released: the argument of `clean_up`.
    """
    prepared = _snapshot(host, ignore)
    _clean_up(module, host, "after a setup that succeeded,", ignore, released=released)
    cleaned = _snapshot(host, ignore)
    if cleaned == prepared:
        return
    is_ready = module.has_check and not module.run(spec.check, host).failed
    module.must_succeed(spec.setup, host, f"after a clean-up (released={released})")
    brought_back = _differences(cleaned, _snapshot(host, ignore))
    message = f"it succeeds after a clean-up (released={released}), although the setup then changes {brought_back}"
    require(not (is_ready and brought_back), module.word, spec.check, message)
    module.must_succeed(spec.check, host, "after a clean-up and a setup that succeeded,")


def _clean_up(module: _Module, host: OpenHost, when: str, ignore: Sequence[str], *, released: bool) -> None:
    """Clean up a worker twice; then nothing there may contain a secret.

    Args:
        module: the module.
        host: the worker.
        when: what had happened before, for the message.
        ignore: paths that may change.
        released: the argument of `clean_up`.
    """
    if module.has_clean_up:
        taken = module.must_succeed(spec.clean_up, host, when, released=released)
        before = _snapshot(host, ignore)
        module.must_succeed(spec.clean_up, host, f"{when} the second time", released=released)
        changed = _differences(before, _snapshot(host, ignore))
        message = f"{when} it changed {changed} when it was called again; a clean-up is repeated after a crash"
        require(not changed, module.word, spec.clean_up, message)
        _yields_the_same_steps(module, spec.clean_up, host, taken, released=released)
    if module.secrets:
        lines = {line for value in module.secrets.values() for line in value.splitlines() if line.strip()}
        patterns = "\n".join(lines).encode(errors="surrogateescape")
        found = host.run("grep -rlF -f - . || [ $? = 1 ]", stdin=patterns, timeout=120).text.splitlines()
        message = f"{when} it leaves the value of ${{env:NAME}} in {', '.join(sorted(found)[:_SHOWN])}"
        require(not found, module.word, spec.clean_up, message)


def _yields_the_same_steps(
    module: _Module, hook: Callable[..., Steps], host: OpenHost, taken: WorkerSteps, *, released: bool = False
) -> None:
    """Run a hook again from its start, with the results that its steps had: what core does after a crash.

    Args:
        module: the module.
        hook: the hook.
        host: the worker.
        taken: the steps that it has yielded, with their results.
        released: the argument of `clean_up`.
    """
    again = list(_replay(module.steps(hook, host, released=released), taken.results))
    for number, (first, second) in enumerate(zip(taken.steps, again, strict=False), start=1):
        message = (
            f"step {number} was {describe(first)} and is {describe(second)} when the hook is run again with the same "
            "results, as after a crash; do not use the time, random numbers, or the state of this machine"
        )
        require(first == second, module.word, hook, message)
    message = f"it yielded {len(taken.steps)} steps, and {len(again)} when it was run again with the same results"
    require(len(taken.steps) == len(again), module.word, hook, message)


def _replay(steps: Steps, results: Sequence[Result]) -> Iterator[Step]:
    try:
        yield next(steps)
        for result in results:
            yield steps.send(result)
    except StopIteration:
        return
    finally:
        steps.close()


def _repeat_interrupted_setup(module: _Module, host: OpenHost, limit: int) -> None:
    taken = module.run(spec.setup, host, limit)
    if module.has_clean_up or module.secrets:
        cut_off = f"after a setup that was cut off after step {limit} ({describe(taken.steps[-1])})"
        _clean_up(module, host, cut_off, (), released=False)
        module.run(spec.setup, host, limit)
    where = f"cut off after step {limit} ({describe(taken.steps[-1])}) and run again,"
    module.must_succeed(spec.setup, host, where)
    module.must_succeed(spec.check, host, f"after a setup that was {where}")


def _snapshot(host: OpenHost, ignore: Sequence[str]) -> dict[str, list[str]]:
    """Return type, mode, target and checksum of all that is in a worker's home directory."""
    files: dict[str, list[str]] = {}
    for line in host.run(_SNAPSHOT, timeout=120).text.splitlines():
        facts, _, path = line.partition("|")
        if path and not any(fnmatch(path, pattern) for pattern in (*_IGNORED, *ignore)):
            files.setdefault(path, []).append(facts)
    return files


def _differences(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    paths = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(f"~/{path}" for path in paths[:_SHOWN]) + more


def _last_line(text: str) -> str:
    return (text.splitlines() or ["no output"])[-1]
