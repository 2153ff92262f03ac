"""The contracts that fit an installed plugin, run in a throw-away home: `tpux plugins check`."""

from __future__ import annotations

import os
import shlex
import site
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from tpux import config as configs
from tpux import env
from tpux.errors import TpuxError
from tpux.model.host import OpenHost
from tpux.model.json import JsonValue
from tpux.model.machines import Worker
from tpux.plugin import spec
from tpux.plugin.entrypoints import find, is_interrupt, reason
from tpux.plugin.manager import Plugins
from tpux.plugin.stdout import stdout_to_stderr
from tpux_testing.allocators import allocator_contract
from tpux_testing.environments import environment_contract
from tpux_testing.modules import module_contract
from tpux_testing.observers import detector_contract, listener_contract
from tpux_testing.sandbox import LOCAL
from tpux_testing.static import documentation_contract, hooks_contract, section_contract
from tpux_testing.transports import transport_contract

ContractConfig = dict[str, JsonValue]
"""A config by section, as it is written in a file."""
_USERS_OWN = {"SSH_AUTH_SOCK", "CLOUDSDK_CONFIG", env.USER, env.HOME, env.CLOCK_RATE}
"""What a supervisor gets from the user's shell, and a contract does not."""
_NO_SUDO = "#!/bin/sh\necho 'sudo: not available to tpux plugins check: this is your own machine' >&2\nexit 1\n"


@dataclass(frozen=True)
class LocalFixture:
    """What the contracts of a plugin use in place of a cloud or of other machines.

    The entry point of the group `tpux.fixtures` that has the plugin's name is a context manager: it takes the config,
    a mapping by section, starts an emulator or a server, and yields this. What it starts ends with the context.

    Attributes:
        config: the config to test with, changed so that it uses what was started, such as an `endpoint`.
        existing: of an allocator: returns what exists in the emulated cloud, to find machines that are left behind.
        worker: of a transport: a worker whose home directory is not the user's; by default a directory here.
        unreachable: of a transport: a worker that does not exist.
        new_host: of a module: returns a connection to a new worker; by default a directory on this machine.

    Example:
        @contextmanager
        def emulated_cloud(config):
            with Emulator() as cloud:
                tpu = {**config["tpu"], "endpoint": cloud.url}
                yield LocalFixture({**config, "tpu": tpu}, existing=cloud.machines)
    """

    config: Mapping[str, object]
    existing: Callable[[], Collection[object]] | None = None
    worker: Worker | None = None
    unreachable: Worker | None = None
    new_host: Callable[[], OpenHost] | None = None


@dataclass(frozen=True)
class ContractResult:
    """The result of one contract.

    Attributes:
        contract: its name, such as `module_contract`.
        outcome: what came of it; a warning does not make the check fail.
        message: what is wrong, or why it was skipped.
        hint: what to do about it.
    """

    contract: str
    outcome: Literal["ok", "warning", "failed", "skipped"]
    message: str = ""
    hint: str = ""


def load_config(path: Path, plugins: Plugins) -> tuple[ContractConfig, frozenset[str]]:
    """Read a config for `run_contracts`.

    Returns:
        The config, with the paths of its files made absolute, and the names of its secrets.

    Raises:
        ConfigError: it is invalid.
    """
    loaded = configs.load(path, plugins=plugins)
    data = cast("ContractConfig", loaded.resolved(id="000001", user=env.user())["config"])
    absolute = {name: _absolute(value, path.absolute().parent, loaded.files) for name, value in data.items()}
    return absolute, frozenset(loaded.secrets)


def _absolute(value: JsonValue, directory: Path, files: Collection[Path]) -> JsonValue:
    if isinstance(value, dict):
        return {key: _absolute(one, directory, files) for key, one in value.items()}
    if isinstance(value, list):
        return [_absolute(one, directory, files) for one in value]
    if isinstance(value, str):
        with suppress(RuntimeError):  # `~name` of no user
            path = directory / Path(value).expanduser()
            return str(path) if path in files else value
    return value


def run_contracts(
    word: str,
    plugins: Plugins,
    config: ContractConfig | None = None,
    secrets: Collection[str] = (),
    plugin: object = None,
) -> Iterator[ContractResult]:
    """Run the contracts that fit a plugin, each when its result is asked for.

    HOME and the store are temporary meanwhile, and most variables of the user's shell are unset.

    Args:
        word: a plugin that can be loaded.
        plugins: the installed plugins.
        config: the config for the contracts that call hooks or run steps, from `load_config`; without it these are
            skipped.
        secrets: the variables that the config refers to.
        plugin: the module to use, if it is that of a file.
    """
    yield run_contract("hooks_contract", lambda: hooks_contract(word, plugin=plugin))
    if LOCAL not in plugins.names():
        hint = "pip install tpux-plugin-local"
        for name in [*(["section_contract"] if _has_section(plugins, word) else []), *_fitting(plugins, word)]:
            yield ContractResult(name, "skipped", f"it needs the plugin {LOCAL!r}, which is not installed", hint)
        return
    with _throw_away_home(secrets), ExitStack() as stack:
        if _has_section(plugins, word):
            yield _section(word, plugins, config, plugin)
        if config is None:
            hint = _with_config(word, plugin)
            for name in _fitting(plugins, word):
                yield ContractResult(name, "skipped", "it needs a config", hint)
            return
        check = _Check(word, config, stack, plugin)
        for name, run in _fitting(plugins, word).items():
            yield run(check, name)
        ended = run_contract("fixture", stack.close)
        if ended.outcome != "ok":
            yield replace(ended, message=f"the local fixture of {word} did not end: {ended.message}")


def _with_config(word: str, plugin: object) -> str:
    return f"tpux plugins check {shlex.quote(getattr(plugin, '__file__', word))} --config FILE"


def run_contract(name: str, contract: Callable[[], object]) -> ContractResult:
    """Call a contract, and return what came of it."""
    try:
        with stdout_to_stderr():
            contract()
    except AssertionError as error:
        return ContractResult(name, "failed", str(error))
    except TpuxError as error:
        return ContractResult(name, "failed", error.message, error.hint)
    # The boundary to plugin code: whatever it raises where a contract does not expect it is the finding.
    except BaseException as error:
        if is_interrupt(error):
            raise
        return ContractResult(name, "failed", reason(error))
    return ContractResult(name, "ok")


def _has_section(plugins: Plugins, word: str) -> bool:
    return plugins.implements(word, spec.config_section) or plugins.implements(word, spec.tpu_section)


def _section(word: str, plugins: Plugins, config: ContractConfig | None, plugin: object) -> ContractResult:
    """Test the section; without an example of one that has required keys, its documentation alone."""
    name, example = "section_contract", (config or {}).get(word)
    with suppress(TpuxError):  # a wrong answer of config_section is the contract's finding
        own = plugins.call_one(word, spec.config_section)
        required = [key for key, field in (own.model_fields if own else {}).items() if field.is_required()]
        if isinstance(example, list) and own:  # a short form of the section
            example = own.model_validate(example).model_dump(mode="json", exclude_unset=True)
        if required and not example:
            documented = run_contract(name, lambda: documentation_contract(word, plugin=plugin))
            message = f"the keys are documented; testing values needs a section {word} with {', '.join(required)}"
            hint = _with_config(word, plugin)
            return documented if documented.outcome == "failed" else ContractResult(name, "skipped", message, hint)
    keys = example if isinstance(example, dict) else None
    return run_contract(name, lambda: section_contract(word, keys, plugin=plugin))


class _Check:
    """The contracts of one plugin with a config.

    Args:
        word: the plugin.
        config: the user's config.
        stack: ends the plugin's fixture.
        plugin: the module to use, if it is that of a file.
    """

    def __init__(self, word: str, config: ContractConfig, stack: ExitStack, plugin: object) -> None:
        self.word = word
        self.plugin = plugin
        own = {word: config[word]} if word in config else {}
        tpu = config.get("tpu") or {}
        self._selected = isinstance(tpu, dict) and tpu.get("allocation_mode", LOCAL) == word
        self._fixture = LocalFixture({"tpu": tpu, **own} if self._selected else own)
        self._unavailable = self._enter(stack)

    def _enter(self, stack: ExitStack) -> ContractResult | None:
        """Enter the plugin's fixture; return the result of the contracts that need it, if it cannot be used."""
        found = find("tpux.fixtures").get(self.word)
        if found is None or found.disabled:
            hint = f"name a context manager in the entry points `tpux.fixtures` of its dist: {self.word} = ..."
            return ContractResult("", "skipped", f"{self.word} has no local fixture, and a cloud is never used", hint)
        try:
            with stdout_to_stderr():
                make = cast("Callable[[object], AbstractContextManager[LocalFixture]]", found.load())
                self._fixture = stack.enter_context(make(dict(self._fixture.config)))
        # The fixture is plugin code. A TpuxError says what this machine lacks, such as sshd.
        except BaseException as error:
            if is_interrupt(error):
                raise
            missing = isinstance(error, ModuleNotFoundError) or isinstance(error.__cause__, ModuleNotFoundError)
            hint = error.hint if isinstance(error, TpuxError) else ""
            what = error.message if isinstance(error, TpuxError) else reason(error)
            return ContractResult(
                "",
                "skipped" if missing or isinstance(error, TpuxError) else "failed",
                f"its local fixture {found.value} cannot be used: {what}",
                f"pip install '{found.dist}[testing]'" if missing else hint,
            )
        return None

    def run(self, name: str, contract: Callable[[LocalFixture], None], *, remote: bool = False) -> ContractResult:
        """Run a contract; one that uses remote machines only with a fixture."""
        if remote and self._unavailable:
            return replace(self._unavailable, contract=name)
        return run_contract(name, lambda: contract(self._fixture))

    def section(self, fixture: LocalFixture) -> Mapping[str, object] | None:
        """Return the plugin's section."""
        return cast("Mapping[str, object] | None", fixture.config.get(self.word))

    def module(self, name: str) -> ContractResult:
        """Test a module."""

        def contract(one: LocalFixture) -> None:
            module_contract(self.word, self.section(one), plugin=self.plugin, new_host=one.new_host)

        return self.run(name, contract)

    def environment(self, name: str) -> ContractResult:
        """Test an environment."""
        return self.run(name, lambda one: environment_contract(self.word, self.section(one), plugin=self.plugin))

    def allocator(self, name: str) -> ContractResult:
        """Test an allocator."""
        if not self._selected:
            message, hint = "the config uses another allocator", f"tpu: {{allocation_mode: {self.word}}}"
            return ContractResult(name, "skipped", message, hint)
        return self.run(name, lambda one: allocator_contract(self.word, one.config, existing=one.existing), remote=True)

    def transport(self, name: str) -> ContractResult:
        """Test a transport."""

        def contract(one: LocalFixture) -> None:  # with `tpu`, in which `resolve` finds the place
            transport_contract(self.word, one.worker, one.config, unreachable=one.unreachable)

        return self.run(name, contract, remote=True)

    def detector(self, name: str) -> ContractResult:
        """Test a detector."""
        own = {key: value for key, value in self._fixture.config.items() if key == self.word}
        return self.run(name, lambda _: detector_contract(self.word, config=own, plugin=self.plugin))

    def listener(self, name: str) -> ContractResult:
        """Test a listener."""
        own = {key: value for key, value in self._fixture.config.items() if key == self.word}
        return self.run(name, lambda _: listener_contract(self.word, own, plugin=self.plugin))


_KINDS: dict[str, tuple[tuple[Callable[..., object], ...], Callable[[_Check, str], ContractResult]]] = {
    "module_contract": ((spec.setup,), _Check.module),
    "environment_contract": ((spec.run,), _Check.environment),
    "allocator_contract": ((spec.provision,), _Check.allocator),
    "transport_contract": ((spec.connect,), _Check.transport),
    "detector_contract": ((spec.classify_failure,), _Check.detector),
    "listener_contract": ((spec.on_event,), _Check.listener),
}
"""The contracts that need a config, by the hooks that make a plugin one of their kind."""


def _fitting(plugins: Plugins, word: str) -> dict[str, Callable[[_Check, str], ContractResult]]:
    return {name: run for name, (hooks, run) in _KINDS.items() if any(plugins.implements(word, hook) for hook in hooks)}


@contextmanager
def _throw_away_home(secrets: Collection[str]) -> Iterator[None]:
    """Set HOME and the store to a temporary directory, without sudo; unset what could name the user's own accounts."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="tpux-plugins-check-") as made:
        home = Path(made).resolve()
        programs = home / "bin"
        programs.mkdir()
        (programs / "sudo").write_text(_NO_SUDO)
        (programs / "sudo").chmod(0o755)
        kept = {name: value for name, value in env.supervisor_environment(before).items() if name not in _USERS_OWN}
        changed = {
            **{name: before[name] for name in secrets if name in before},
            "HOME": str(home),
            env.HOME: str(home / ".tpux"),
            "PATH": f"{programs}{os.pathsep}{before.get('PATH', os.defpath)}",
            "PYTHONUSERBASE": site.getuserbase(),  # found through HOME otherwise
        }
        try:
            os.environ.clear()
            os.environ.update({**kept, **changed})
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
