"""`tpux rehearse` (Administration): preempt a job here; report whether it resumed."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpux import TpuxError, UsageError, api
from tpux.api.options import DURATION, Json
from tpux.api.text import echo, echo_painted, format_duration, paint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpux import JsonValue
    from tpux_rehearse.plan import Plan, Preemptions
    from tpux_rehearse.report import Comparison, Interruption, Report
    from tpux_rehearse.run import Rehearsal
    from tpux_rehearse.sandbox import Sandbox

app = api.new_app()
REPORT = "report.json"
TIMES = 3
"""How many attempts are preempted, without `--times`."""


@app.command(
    epilog="Example: tpux rehearse train.yaml --preempt-after 2m --notice 30s --compare 'loss {value}'\n\n"
    "Example: tpux rehearse train.yaml --restart --json tpu.accelerator=v4-8"
)
def rehearse(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The config.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Overrides of the config, such as tpu.accelerator=v4-8."),
    ] = None,
    preempt_after: Annotated[
        float, typer.Option(click_type=DURATION, help="Time from each start of the program to its preemption.")
    ] = 60.0,
    times: Annotated[
        int | None,
        typer.Option(min=1, help=f"How many attempts are preempted, one after the other; without it {TIMES}."),
    ] = None,
    notice: Annotated[
        str | None,
        typer.Option(help="Time from the announcement to the loss of the machines, such as 30s; without it none."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Stop and resume the program once, in place of preemptions.")
    ] = False,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="Run it on TPU VMs of an emulator, in place of local workers.")
    ] = False,
    compare: Annotated[
        str | None,
        typer.Option(help="Compare the last value with an undisturbed run's, such as 'loss {value}'."),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(min=0.0, help="The largest relative difference; else they must be printed the same.")
    ] = None,
    json: Json = False,
) -> None:
    """Preempt a job here; report whether it resumed.

    The job runs on local workers, or with --emulate on emulated TPU VMs that are set up over SSH, in a store of its
    own: no cloud is asked, and your jobs are not touched. Without --compare, the last attempt runs only as long as the
    ones before.

    Exit codes: 0 it resumed (with the same value), 1 it did not, 2 an error in the command line or the config.
    """
    from tpux_rehearse.emulation import start_emulator
    from tpux_rehearse.plan import Preemptions, plan_rehearsal
    from tpux_rehearse.run import Rehearsal
    from tpux_rehearse.sandbox import REHEARSED, installed_listeners, open_sandbox, read_config

    if compare is not None and compare.count("{value}") != 1:
        raise UsageError(f"--compare {compare!r}: write {{value}} once, where the value is", hint="'loss {value}'")
    if tolerance is not None and compare is None:
        raise UsageError("--tolerance needs --compare", hint="for example --compare 'loss {value}'")
    for option, value in (("--times", times), ("--notice", notice)):
        if restart and value is not None:
            raise UsageError(f"{option} has no effect with --restart, which stops once", hint="leave it out")
    count = 1 if restart else times or TIMES
    preemptions = Preemptions(preempt_after, count, _parse_notice(notice), restart)
    given = list(overrides or [])
    found = read_config(config, given if emulate else [*given, "tpu.allocation_mode=local"])
    with open_sandbox(config.stem) as sandbox:
        emulation = start_emulator(sandbox) if emulate else None
        plan = plan_rehearsal(found, given, preemptions, listeners=installed_listeners(), emulation=emulation)
        for note in plan.notes:
            api.say(note)
        to_end = compare is not None
        rehearsal = Rehearsal(sandbox, REHEARSED, config, plan, preemptions, to_end=to_end, emulation=emulation)
        report = _rehearse(rehearsal, found, preemptions)
        if compare is not None and report.verdict == "resumed":
            report.comparison = _compare(config, plan, sandbox, rehearsal, compare, tolerance)
    data = {**report.to_json(), "notes": [*plan.notes], "output": str(sandbox.kept)}
    (sandbox.kept / REPORT).write_text(json_.dumps(data, indent=2) + "\n")
    if json:
        api.emit(data)
    else:
        _print(report, sandbox)
    raise typer.Exit(0 if report.passed else 1)


def _parse_notice(text: str | None) -> float | None:
    """Return the seconds of `--notice`; None for none.

    Raises:
        UsageError: it is no duration.
    """
    from tpux.fields import parse_duration

    if text in {None, "none"}:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--notice: {error}", hint="or none") from error


def _rehearse(rehearsal: Rehearsal, found: Mapping[str, JsonValue], preemptions: Preemptions) -> Report:
    """Run the job with preemptions, and return what that has shown."""
    from tpux_rehearse.report import make_report

    rehearsal.run()
    command = found.get("command")
    section = command if isinstance(command, dict) else {}
    return make_report(
        rehearsal.attempts, rehearsal.ended, section, times=preemptions.times, restart=preemptions.restart
    )


def _compare(
    config: Path, plan: Plan, sandbox: Sandbox, rehearsal: Rehearsal, pattern: str, tolerance: float | None
) -> Comparison:
    """Run the job once more, undisturbed, and compare what both runs printed.

    Raises:
        TpuxError: the undisturbed run failed, so that there is nothing to compare with.
    """
    from tpux_rehearse.plan import undisturbed
    from tpux_rehearse.report import compare
    from tpux_rehearse.run import Rehearsal
    from tpux_rehearse.sandbox import UNDISTURBED

    api.say("running the job once more, undisturbed")
    other = Rehearsal(sandbox, UNDISTURBED, config, undisturbed(plan), None, to_end=True)
    other.run()
    if other.ended.state != "succeeded":
        raise TpuxError(f"the undisturbed run has {other.ended.state}: {other.ended.why}", hint=other.ended.hint)
    return compare(pattern, rehearsal.lines(), other.lines(), tolerance)


def _print(report: Report, sandbox: Sandbox) -> None:
    for one in report.interruptions:
        echo(_describe(one))
    if report.interruptions:
        lost = format_duration(sum(one.lost_seconds for one in report.interruptions))
        echo(f"repeated: {report.repeated_steps} steps; lost: {lost}, beside the wait for new machines in a cloud")
    for text in report.seen:
        echo(f"seen: {text}")
    if compared := report.comparison:
        echo(_describe_comparison(compared))
    echo_painted(paint(report.message, "green" if report.passed else "red"))
    if report.page:
        echo(f"see {report.page}")
    echo(f"output: {sandbox.kept}")


def _describe(one: Interruption) -> str:
    before, after = one.before, one.after
    last = "" if before.progress.step is None else f" at step {before.progress.step}"
    parts = [f"attempt {before.number}: {'stopped' if before.stopped else 'preempted'}{last}"]
    count = len(before.files) or "no"
    parts.append(f"{count} {'file' if count in (1, 'no') else 'files'} in its output directory")
    if after is not None:
        first = after.progress.first_step
        parts.append("the next printed no step" if first is None else f"the next begins with step {first}")
        if one.lost_steps is not None and one.resumed:
            parts.append(f"{one.lost_steps} steps lost")
    if one.down is not None:
        parts.append(f"{format_duration(one.lost_seconds)} lost")
    if after is not None and after.printed and one.resumed:
        parts.append(f"it printed: {after.printed[0]}")
    return "; ".join(parts)


def _describe_comparison(one: Comparison) -> str:
    names = (("rehearsed", one.rehearsed), ("undisturbed", one.undisturbed))
    if missing := [name for name, value in names if value is None]:
        return f"{one.pattern}: no line of the {' and the '.join(missing)} run has it"
    if one.rehearsed == one.undisturbed:
        return f"{one.pattern}: {one.rehearsed} in both runs"
    kind = "equal within the tolerance" if one.equal else "different"
    return f"{one.pattern}: {one.rehearsed}, undisturbed {one.undisturbed}: {kind}"
