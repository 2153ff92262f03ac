"""Commands that break requests, and settings of the cloud as a whole."""

from __future__ import annotations

from typing import Annotated

import typer

from tpux_emulator.cli.common import For, HomeOption, client_at, duration, optional_duration

Zone = Annotated[str, typer.Option(help="Only in this zone.")]
Count = Annotated[int | None, typer.Option(help="For so many requests.", min=1)]
Method = Annotated[str, typer.Option(help="Only for methods like nodes.create or queuedResources.*")]
Message = Annotated[str, typer.Option(help="The error's sentence; Google's own without it.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (stockout, quota, throttle, error, drop, lose, hang, slow, clear, delay):
        app.command()(command)
    app.command("fail-operation")(fail_operation)
    app.command("weather")(random_preemption)


def stockout(zone: Zone = "", count: Count = None, lasting: For = None, home: HomeOption = None) -> None:
    """No capacity: creations fail with code 8, queued resources wait."""
    typer.echo(client_at(home).stockout(zone, count=count, lasting=optional_duration(lasting)))


def quota(
    zone: Zone = "",
    generation: Annotated[str, typer.Option(help="Only for this generation, as v4.")] = "",
    limit: Annotated[int, typer.Option(help="Chips that may be held.", min=0)] = 0,
    lasting: For = None,
    home: HomeOption = None,
) -> None:
    """A quota: creations above it are answered 429."""
    typer.echo(client_at(home).quota(zone, generation=generation, limit=limit, lasting=optional_duration(lasting)))


def throttle(method: Method = "*.create", count: Count = None, lasting: For = None, home: HomeOption = None) -> None:
    """Too many requests a minute: 429."""
    typer.echo(client_at(home).throttle(method, count=count, lasting=optional_duration(lasting)))


def error(
    status: Annotated[int, typer.Argument(help="The HTTP status: 403, 500, 503.", min=400, max=599)],
    method: Method = "*",
    count: Count = None,
    lasting: For = None,
    message: Message = "",
    home: HomeOption = None,
) -> None:
    """Answer requests with an error."""
    typer.echo(client_at(home).error(status, method, count=count, lasting=optional_duration(lasting), message=message))


def drop(method: Method = "*", count: Count = None, lasting: For = None, home: HomeOption = None) -> None:
    """Close connections before anything is done."""
    typer.echo(client_at(home).drop(method, count=count, lasting=optional_duration(lasting)))


def lose(method: Method = "*", count: Count = None, lasting: For = None, home: HomeOption = None) -> None:
    """Do what is asked, then close the connection without an answer."""
    typer.echo(client_at(home).lose(method, count=count, lasting=optional_duration(lasting)))


def hang(
    method: Method = "*",
    count: Count = None,
    lasting: For = None,
    each: Annotated[str, typer.Option(help="How long each request hangs; 0s until the client gives up.")] = "0s",
    home: HomeOption = None,
) -> None:
    """Take requests and do not answer."""
    typer.echo(client_at(home).hang(method, count=count, lasting=optional_duration(lasting), seconds=duration(each)))


def slow(
    by: Annotated[str, typer.Argument(help="How late: 5s.")],
    method: Method = "*",
    count: Count = None,
    lasting: For = None,
    home: HomeOption = None,
) -> None:
    """Answer late."""
    typer.echo(client_at(home).slow(duration(by), method, count=count, lasting=optional_duration(lasting)))


def fail_operation(
    method: Method = "nodes.create",
    code: Annotated[int, typer.Option(help="A google.rpc code.", min=1, max=16)] = 13,
    message: Message = "",
    count: Count = 1,
    home: HomeOption = None,
) -> None:
    """Let an operation end in an error."""
    typer.echo(client_at(home).fail_operation(method, code=code, message=message, count=count))


def clear(
    fault: Annotated[str, typer.Argument(help="The id that setting it printed; all without one.")] = "",
    home: HomeOption = None,
) -> None:
    """Lift a fault, or all."""
    client_at(home).clear(fault)


def delay(
    delays: Annotated[list[str], typer.Argument(help="node.CREATING=30s queued-resource.ACCEPTED=5m ...")],
    home: HomeOption = None,
) -> None:
    """Set how long things stay in a state."""
    named = {}
    for each in delays:
        key, found, value = each.partition("=")
        if not found:
            raise typer.BadParameter(f"{each!r} is not NAME=DURATION")
        named[key] = duration(value)
    client_at(home).change(delays=dict(named))


def random_preemption(
    preemptions: Annotated[float, typer.Option(help="Preemptions an hour, of each spot node.", min=0)] = 0,
    notice: Annotated[str, typer.Option(help="The notice that they give.")] = "0s",
    seed: Annotated[int, typer.Option(help="The same seed gives the same preemptions.")] = 0,
    home: HomeOption = None,
) -> None:
    """Preempt spot nodes at random; counts for nodes that become READY from now on."""
    client_at(home).change(preemptions_per_hour=preemptions, preemption_notice=duration(notice), seed=seed)
