"""Commands that add fault rules for requests, and change the settings of the cloud."""

from __future__ import annotations

from typing import Annotated

import typer

from tpux_emulator.cli.common import Commands, For, HomeOption, add_commands, client_at, duration, optional_duration

Zone = Annotated[str, typer.Option(help="Zone. Default: all.")]
Count = Annotated[int | None, typer.Option(help="Number of requests that are affected. Default: no limit.", min=1)]
Method = Annotated[str, typer.Option(help="Methods that are affected, such as nodes.create or queuedResources.*")]
Message = Annotated[str, typer.Option(help="The error's message. Default: Google's.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    examples: Commands = {
        "stockout --zone us-central2-b --for 10m": stockout,
        "quota --generation v4 --limit 8": quota,
        "forbid us-central2-b": forbid,
        "unreachable us-central2-b --for 10m": unreachable,
        "throttle --count 3": throttle,
        "error 503 --method nodes.get --count 2": error,
        "drop --count 1": drop,
        "lose --method nodes.create --count 1": lose,
        "late 60s --method nodes.create": late,
        "hang --count 1": hang,
        "slow 5s": slow,
        "clear": clear,
        "delay node.CREATING=30s": delay,
        "fail-operation --code 8": fail_operation,
        "random-preemption --preemptions 2 --notice 30s": random_preemption,
    }
    add_commands(app, examples)


def stockout(
    zone: Zone = "",
    count: Count = None,
    lasting: For = None,
    form: Annotated[
        str, typer.Option(help="The wording: zone, resources (Compute Engine's 429) or pool (its 503).")
    ] = "zone",
    home: HomeOption = None,
) -> None:
    """Simulate a lack of capacity. Creations fail, queued resources wait."""
    typer.echo(client_at(home).stockout(zone, count=count, lasting=optional_duration(lasting), form=form))


def quota(
    zone: Zone = "",
    generation: Annotated[str, typer.Option(help="TPU generation, such as v4. Default: all.")] = "",
    pricing: Annotated[str, typer.Option(help="spot or ondemand. Default: both.")] = "",
    limit: Annotated[int, typer.Option(help="Number of chips that a project may have.", min=0)] = 0,
    lasting: For = None,
    form: Annotated[
        str, typer.Option(help="The wording: zone, region, or exhausted (queued resources are accepted, then fail).")
    ] = "region",
    home: HomeOption = None,
) -> None:
    """Set a quota: creations above it are answered with 429."""
    client, duration_of_fault = client_at(home), optional_duration(lasting)
    typer.echo(
        client.quota(zone, generation=generation, pricing=pricing, limit=limit, lasting=duration_of_fault, form=form)
    )


def forbid(
    zone: Annotated[str, typer.Argument(help="The zone.")],
    lasting: For = None,
    form: Annotated[str, typer.Option(help="The wording: zone, or policy (LOCATION_POLICY_VIOLATED).")] = "zone",
    home: HomeOption = None,
) -> None:
    """Answer every request in a zone with 403. Simulates a zone that the project may not use."""
    typer.echo(client_at(home).forbid(zone, lasting=optional_duration(lasting), form=form))


def unreachable(
    zone: Annotated[str, typer.Argument(help="The zone.")], lasting: For = None, home: HomeOption = None
) -> None:
    """Leave a zone's resources out of lists, as in an outage.

    The lists name the zone as unreachable.
    """
    typer.echo(client_at(home).unreachable(zone, lasting=optional_duration(lasting)))


def throttle(method: Method = "*.create", count: Count = None, lasting: For = None, home: HomeOption = None) -> None:
    """Answer requests with 429. Simulates too many requests per minute."""
    typer.echo(client_at(home).throttle(method, count=count, lasting=optional_duration(lasting)))


def error(
    status: Annotated[int, typer.Argument(help="The HTTP status, such as 403, 500 or 503.", min=400, max=599)],
    method: Method = "*",
    count: Count = None,
    lasting: For = None,
    message: Message = "",
    home: HomeOption = None,
) -> None:
    """Answer requests with an error."""
    typer.echo(client_at(home).error(status, method, count=count, lasting=optional_duration(lasting), message=message))


def drop(method: Method = "*", count: Count = None, lasting: For = None, home: HomeOption = None) -> None:
    """Close connections without handling their requests."""
    typer.echo(client_at(home).drop(method, count=count, lasting=optional_duration(lasting)))


def lose(method: Method = "*", count: Count = None, lasting: For = None, home: HomeOption = None) -> None:
    """Handle requests, and close the connection unanswered."""
    typer.echo(client_at(home).lose(method, count=count, lasting=optional_duration(lasting)))


def late(
    by: Annotated[str, typer.Argument(help="After which time the requests are handled, such as 60s.")],
    method: Method = "*.create",
    count: Count = 1,
    lasting: For = None,
    home: HomeOption = None,
) -> None:
    """Close connections unanswered; handle requests later."""
    typer.echo(client_at(home).late(duration(by), method, count=count, lasting=optional_duration(lasting)))


def hang(
    method: Method = "*",
    count: Count = None,
    lasting: For = None,
    each: Annotated[str, typer.Option(help="How long each request hangs; 0s: until the client disconnects.")] = "0s",
    home: HomeOption = None,
) -> None:
    """Accept requests without answering."""
    typer.echo(client_at(home).hang(method, count=count, lasting=optional_duration(lasting), seconds=duration(each)))


def slow(
    by: Annotated[str, typer.Argument(help="The delay, such as 5s.")],
    method: Method = "*",
    count: Count = None,
    lasting: For = None,
    home: HomeOption = None,
) -> None:
    """Delay answers."""
    typer.echo(client_at(home).slow(duration(by), method, count=count, lasting=optional_duration(lasting)))


def fail_operation(
    method: Method = "nodes.create",
    code: Annotated[int, typer.Option(help="The error's google.rpc.Code.", min=1, max=16)] = 13,
    message: Message = "",
    count: Count = 1,
    home: HomeOption = None,
) -> None:
    """Let operations fail with an error."""
    typer.echo(client_at(home).fail_operation(method, code=code, message=message, count=count))


def clear(
    fault: Annotated[str, typer.Argument(help="The id that was printed when it was set. Default: all.")] = "",
    home: HomeOption = None,
) -> None:
    """Clear a fault, or all. Faults of nodes have their own commands (restore, unfreeze)."""
    client_at(home).clear(fault)


def delay(
    delays: Annotated[list[str], typer.Argument(help="node.CREATING=30s queued-resource.ACCEPTED=5m ...")],
    home: HomeOption = None,
) -> None:
    """Set the delays of state transitions."""
    named = {}
    for each in delays:
        key, found, value = each.partition("=")
        if not found:
            raise typer.BadParameter(f"{each!r} is not NAME=DURATION")
        named[key] = duration(value)
    client_at(home).change(delays=dict(named))


def random_preemption(
    preemptions: Annotated[
        float, typer.Option(help="Mean number of preemptions per hour of each spot node.", min=0)
    ] = 0,
    notice: Annotated[str, typer.Option(help="Their notice period.")] = "0s",
    seed: Annotated[int, typer.Option(help="The same seed gives the same preemptions.")] = 0,
    home: HomeOption = None,
) -> None:
    """Preempt spot nodes at random. Applies to nodes that become READY from now on."""
    client_at(home).change(preemptions_per_hour=preemptions, preemption_notice=duration(notice), seed=seed)
