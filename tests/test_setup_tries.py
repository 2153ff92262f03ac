"""Where the tries of a module's set-up begin."""

from __future__ import annotations

import pytest

from tpux import Steps, hookimpl, put, sh
from tpux.testing import run_job


class Installer:
    """A module with a file that its second step removes, and a third step that fails some times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    @hookimpl
    def check(self) -> Steps:
        yield sh("test -e installed")

    @hookimpl
    def setup(self) -> Steps:
        found = yield sh("echo find >>steps; wc -l <steps")
        yield put(b"secret", "token")
        yield sh("rm token; echo get >>steps")
        yield put(found.output, "found")
        yield sh("cat found; rm found; echo install >>steps; [ $(grep -c install steps) -gt {n} ]", n=self.failures)
        yield sh("echo end >>steps; touch installed")


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        (0, "find get install end"),
        (1, "find get install install end"),
        (2, "find get install install find get install end"),
    ],
)
def test_every_other_try_begins_at_the_step_that_failed(failures, expected):
    config = {
        "setup": {"modules": ["installer"]},
        "command": {"cmd": "echo $(cat steps); ls -d installed token found 2>/dev/null; true"},
    }
    ran = run_job(config, plugins={"installer": Installer(failures)})
    assert ran.state == "succeeded", ran.why
    steps, *files = ran.output[0].splitlines()
    assert steps == expected
    assert files == ["installed"], "the file of a step that is not run again is not copied again"
    log = ran.logs["installer_worker_0.log"]
    assert log.count("$ echo find") == expected.count("find"), "what was not run again is not logged again"


def test_a_set_up_whose_check_fails_begins_at_its_first_step():
    class Unfinished(Installer):
        @hookimpl
        def check(self) -> Steps:
            yield sh("[ $(grep -c end steps) = 2 ]")

    config = {"setup": {"modules": ["installer"]}, "command": {"cmd": "echo $(cat steps)"}}
    ran = run_job(config, plugins={"installer": Unfinished(0)})
    assert ran.state == "succeeded", ran.why
    assert ran.output[0] == "find get install end find get install end\n"
