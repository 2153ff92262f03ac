"""Every rule with every kind of failure, and `job.loop`, by real jobs: what happens is what `tpux rules` prints."""

from __future__ import annotations

import pytest

from tpux import api, env
from tpux.model.failures import FAILURE_KINDS, FailureKind
from tpux.store import Store

RULES = ("pre", "resume", "reapply", "rerun", "pass")
KINDS = [kind for kind in FAILURE_KINDS if kind != "preempted"]
"""Those that a line of output can show; only the cloud says `preempted`."""
CONFIG = """
job: {{name: {rule}-{kind}, rule: {rule}}}
log: {{failed: {{{kind}: FAILING}}}}
command: {{cmd: '[ $TPUX_ATTEMPT = 1 ] || exit 0; echo FAILING; exit 1'}}
"""
LOOP = "job: {name: loop, loop: true}\ncommand: {cmd: 'true'}\n"


def action_of(happened: list[dict[str, object]]) -> str | None:
    """Return what followed the first attempt, as `tpux rules` prints it; None if nothing has yet."""
    for event in happened:
        if event["type"] == "state-changed" and event["to"] == "recovering":
            first = "reapply, then " if event.get("reapply") else "solve, " if event.get("solve") else ""
            return f"{first}{event['restart']}"
        if event["type"] == "state-changed" and event["to"] == "failed":
            return "pass"
    return None


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "kinds",
    [pytest.param(KINDS[:1], id="one"), pytest.param(KINDS[1:], id="others", marks=pytest.mark.system)],
)
def test_every_rule_with_every_kind(tpux, monkeypatch: pytest.MonkeyPatch, kinds: list[FailureKind]) -> None:
    for name in ("HOME", "PATH", env.HOME):
        monkeypatch.setenv(name, tpux.env[name])
    config = tpux.work / "job.yaml"
    jobs: dict[str, tuple[str, FailureKind]] = {}
    for rule in RULES:
        for kind in kinds:
            config.write_text(CONFIG.format(rule=rule, kind=kind))
            jobs[api.submit(config, warn=print).id] = rule, kind
    config.write_text(LOOP)
    looping = api.submit(config, warn=print).id
    store = Store()

    def events_of(job: str) -> list[dict[str, object]]:
        return [event.to_json() for event, _ in store.record(job).events()]

    left = {*jobs, looping}

    def decided() -> bool:
        left.difference_update([job for job in left if action_of(events_of(job))])
        return not left

    tpux.until(decided)
    found: dict[str, dict[str, str | None]] = {rule: {} for rule in RULES}
    for job, (rule, kind) in jobs.items():
        happened = events_of(job)
        [ended, *_] = [event for event in happened if event["type"] == "attempt-ended"]
        assert ended["failure"]["kind"] == kind  # type: ignore[index]
        found[rule][kind] = action_of(happened)
    printed: dict[str, dict[str, str]] = tpux.json("rules")["rules"]  # type: ignore[index,call-overload,assignment]
    assert found == {rule: {kind: actions[kind] for kind in kinds} for rule, actions in printed.items()}
    [backoff, *_] = [event for event in events_of(looping) if event.get("to") == "recovering"]
    assert backoff["kind"] == "loop"
    assert backoff["until"] - backoff["at"] == pytest.approx(10, abs=2)  # type: ignore[operator]
