"""The boundary to plugin code: its exceptions and wrong answers become errors that name the plugin."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar, cast

import pluggy

from tpux import env
from tpux.errors import TpuxError
from tpux.plugin import answers, calls, limited
from tpux.plugin.entrypoints import InstalledPlugin, is_interrupt, reason
from tpux.plugin.observer import HookFailure, Observer
from tpux.plugin.stdout import stdout_to_stderr

log = logging.getLogger(__name__)
Hook = Callable[..., object]
S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")
ASKED_OF_ALL = frozenset({"collect", "classify_failure", "diagnose", "solve", calls.IMPORT})
"""What is called of plugins that a job has not selected: it may hold no job. `find_checkpoint` has its own thread."""


class PluginError(TpuxError):
    """A plugin raised an exception that is not a TpuxError, or returned what its hook does not allow.

    Attributes:
        plugin: the plugin at fault; of an exception out of a wrapper, the wrapper's.
        hook: the hook that was called.
    """

    def __init__(self, message: str, *, plugin: str, hook: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.plugin = plugin
        self.hook = hook


def call_section(name: str, section: S, method: Callable[Concatenate[S, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a method of a section, which a plugin may have overridden, and validate its answer.

    Args:
        name: the plugin whose section it is.
        section: the section.
        method: the method as core defines it, such as `Section.warnings`; its annotation says what it returns.
        *args: the arguments of the method.
        **kwargs: its arguments by name.

    Raises:
        PluginError: the plugin's method failed or gave a wrong answer.
        TpuxError: the plugin's method raised it.
    """
    hook = method.__name__
    defined: object = getattr(type(section), hook)
    if defined is method:
        return method(section, *args, **kwargs)
    try:
        with calls.running(f"plugin {name}", hook, name), stdout_to_stderr():
            answer = cast("T", getattr(section, hook)(*args, **kwargs))
    except TpuxError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        log.debug("%s() of the section of plugin %s failed", hook, name, exc_info=True)
        message = f"plugin {name} failed in {hook}() of its section: {reason(error)}"
        raise PluginError(message, plugin=name, hook=hook, hint=_SECTION_HINT) from error
    if problem := answers.problem_of(method, answer):
        raise wrong_section_answer(name, method, problem)
    return answer


def wrong_section_answer(name: str, method: Hook, problem: str) -> PluginError:
    """Return the error for a problem of what a method of a plugin's section returned."""
    message = f"plugin {name} gave a wrong answer from {method.__name__}() of its section: {problem}"
    return PluginError(message, plugin=name, hook=method.__name__, hint=_SECTION_HINT)


_SECTION_HINT = "a bug in the plugin, not in your config: report it to its authors"


class UnusablePluginError(TpuxError):
    """A plugin that is named is not installed, disabled or broken: none of its code can be called.

    Attributes:
        remedy: what the user of a supervisor does about it.
    """

    remedy = "repair or reinstall the plugin"


class DisabledPluginError(UnusablePluginError):
    """A plugin that is named is disabled."""

    def __init__(self, found: InstalledPlugin) -> None:
        todo = f"remove {found.disabled_by} from {env.DISABLED_PLUGINS}"
        super().__init__(f"the plugin {found.name} is disabled", hint=f"{todo} to use it")
        self.remedy = f"{todo} and restart the supervisor: `tpux supervisor stop`, then `start`"


class AbandonedCallError(UnusablePluginError):
    """A plugin that is needed to open a job did not return from a call: a stop or delete continues without it."""


class Guard:
    """Runs plugin code, and validates what it gives.

    Args:
        installed: what is installed, by name; messages name its dist.
        observer: receives each failure.

    Attributes:
        late: how often each plugin's hook has not returned in time.
    """

    def __init__(self, installed: Mapping[str, InstalledPlugin], observer: Observer | None = None) -> None:
        self._installed = installed
        self._observer = observer
        self.late: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def running(
        self, name: str, hook: Hook, involved: Sequence[pluggy.HookImpl] = (), *, expected: tuple[type[Exception], ...]
    ) -> Iterator[None]:
        """Turn exceptions of plugin code into a `PluginError`.

        Args:
            name: the plugin that was called.
            hook: the hook that was called, or that gave what runs now.
            involved: the implementations that run; the error names the one at fault.
            expected: exceptions that are raised as they are, and so are TpuxErrors.
        """
        passed: tuple[type[Exception], ...] = (TpuxError, *expected)
        try:
            with calls.running(self.describe(name), hook.__name__, name):
                yield
        except passed:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            at_fault = raised_by(error, involved) or name
            what = _described(hook, name, at_fault)
            log.exception("plugin %s failed in %s", at_fault, what)
            text = "".join(traceback.format_exception(error))
            raise self._error(f"failed in {what}: {reason(error)}", at_fault, hook, text, error) from error

    def steps(
        self, name: str, hook: Hook, steps: Generator[object, object, object], involved: Sequence[pluggy.HookImpl]
    ) -> Generator[object, object, object]:
        """Pass a generator's steps on, each guarded and validated; its end is guarded too.

        Args:
            name: the plugin that was called.
            hook: the hook that has returned the generator.
            steps: the generator.
            involved: the implementations that run; an error names the one at fault.
        """
        sent: object = None

        def send() -> object:
            with self.running(name, hook, involved, expected=(StopIteration,)), stdout_to_stderr():
                return steps.send(sent)

        try:
            while True:
                try:
                    step = self.limited(name, hook.__name__, send)
                except StopIteration as end:
                    self.validate(hook, name, answers.problem_of_result(hook, end.value))
                    return end.value
                self.validate(hook, name, answers.problem_of_step(hook, step))
                sent = yield step
        finally:
            if not getattr(steps, "gi_running", False):  # else a call of it has not returned
                with self.running(name, hook, involved, expected=()), stdout_to_stderr():
                    steps.close()

    def limited(self, name: str, what: str, call: Callable[[], T]) -> T:
        """Return what a call of a plugin returns; of a hook that is asked of all plugins in time, or it is an error.

        Args:
            name: the plugin.
            what: the hook, or `calls.IMPORT`.
            call: makes the call.

        Raises:
            PluginError: it has not returned in time, or has not so often that it is not called any more.
        """
        if what not in ASKED_OF_ALL:
            return call()
        problem = f"has not returned from {what} within {limited.LIMIT:.0f} s"
        if self.late[name, what] < limited.MAX_LATE:
            try:
                return limited.call(call)
            except TimeoutError:
                self.late[name, what] += 1
        else:
            problem = f"is not called, since it {problem} {limited.MAX_LATE} times"
        error = PluginError(
            f"{self.describe(name)} {problem}", plugin=name, hook=what, hint=f"plugins.disabled: [{name}]"
        )
        if self._observer:
            self._observer.failed(HookFailure(name, what, error.message, ""))
        raise error

    def validate(self, hook: Hook, name: str, problem: str) -> None:
        """Raise the error for a problem of an answer.

        Args:
            hook: the hook that was called.
            name: the plugin that gave the answer.
            problem: what is wrong; "" if nothing is.

        Raises:
            PluginError: there is a problem.
        """
        if problem:
            raise self.wrong_answer(hook, name, problem)

    def wrong_answer(self, hook: Hook, name: str, problem: str, *, method: str = "") -> PluginError:
        """Return the error for a problem of an answer.

        Args:
            hook: the hook that was called.
            name: the plugin.
            problem: what is wrong.
            method: the method that gave the answer, if it was one of an object that the hook returned: `Host.run`.
        """
        return self._error(f"gave a wrong answer from {method or hook.__name__}: {problem}", name, hook)

    def _error(
        self, message: str, name: str, hook: Hook, traceback: str = "", cause: BaseException | None = None
    ) -> PluginError:
        found = self._installed.get(name)
        source = f"{found.dist} {found.version}" if found and found.dist else "the plugin"
        hint = f"a bug in the plugin, not in your config: report it to the authors of {source}"
        if found and found.path:
            hint = found.hint or "correct the file"
        error = PluginError(f"{self.describe(name, cause)} {message}", plugin=name, hook=hook.__name__, hint=hint)
        if self._observer:
            self._observer.failed(HookFailure(name, hook.__name__, error.message, traceback))
        return error

    def describe(self, name: str, error: BaseException | None = None) -> str:
        """Return a plugin's name with its dist, or with its file and the line that an exception comes from."""
        found = self._installed.get(name)
        line = found.line_of(error) if found and error else ""
        return f"plugin {name} ({found.dist} {found.version}{line})" if found and found.dist else f"plugin {name}"


def _described(hook: Hook, called: str, name: str) -> str:
    return hook.__name__ if called == name else f"its wrapper of {hook.__name__} of plugin {called}"


def raised_by(error: BaseException, involved: Sequence[pluggy.HookImpl]) -> str:
    """Return the plugin whose implementation is the innermost in an exception's traceback, "" if none is."""
    owners = {one.function.__code__: one.plugin_name for one in involved}
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((owners[code] for code in reversed(frames) if code in owners), "")
