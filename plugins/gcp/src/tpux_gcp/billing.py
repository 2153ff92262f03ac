"""`tpux billing` (Watch): show what a project has cost, by day and category."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tpux import JsonValue, TpuxError, UsageError
from tpux.api import emit, new_app, say
from tpux.api.text import print_table
from tpux_gcp.google_client import ask, errors_of, inner, items, open_client
from tpux_gcp.lookup import open_api

if TYPE_CHECKING:
    from tpux_gcp.credentials import Place

app = new_app()
TABLE = re.compile(r"([a-z][-a-z0-9:.]{3,60}[a-z0-9])\.([A-Za-z0-9_]{1,200})\.([A-Za-z0-9_-]{1,200})")
PREFIXES = ("gcp_billing_export_v1_", "gcp_billing_export_resource_v1_")
"""What the names of the tables begin with: those of the standard export, and of the detailed one."""
QUERY = """
SELECT
  FORMAT_DATE('%F', DATE(usage_start_time)) AS day, service.description AS service, sku.description AS sku, currency,
  SUM(cost) AS cost,
  SUM((SELECT IFNULL(SUM(credit.amount), 0) FROM UNNEST(credits) AS credit)) AS credits
FROM `{table}`
WHERE _PARTITIONTIME >= TIMESTAMP(@begin) AND usage_start_time >= TIMESTAMP(@begin)
  AND (@project = '' OR project.id = @project)
GROUP BY day, service, sku, currency
"""  # a partition has what was exported on a day, which is not before its use
POLL_MS = 10_000
"""How long BigQuery waits for the end of the query before it answers that it has none."""
POLLS = 30
CATEGORIES = {
    "network": r"egress|ingress|network|data transfer|download|external ip|\bip address|\bnat\b|vpn",
    "tpu": r"\btpu",
    "storage": r"cloud storage|filestore",
    "disks": r"\bpd\b|disk|snapshot|image storage|\bssd\b",
    "compute": r"compute engine|kubernetes|cloud run",
    "logging": r"logging|monitoring|bigquery",
}
"""What the name of a service and of what it sells has; in lower case; the first that matches is the category."""
Row = tuple[str, str, str, float, float]
"""A day, a category, a currency, the cost before credits, and the credits, which are negative."""


@app.command(
    epilog="Example: tpux billing --days 7\n\nExample: tpux billing --table p.billing.gcp_billing_export_v1_01"
)
def billing(
    days: Annotated[int, typer.Option(min=1, max=366, help="How many days, today included (UTC).")] = 30,
    table: Annotated[
        str | None,
        typer.Option(metavar="PROJECT.DATASET.TABLE", help="The table of the export. Default: the project's."),
    ] = None,
    project: Annotated[str | None, typer.Option(help="Google Cloud project. Default: gcloud's.")] = None,
    every: Annotated[bool, typer.Option("--all-projects", help="All projects of the billing account.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a project has cost, by day and category, and the credits.

    It queries the export of Cloud Billing to BigQuery, which must have been set up, and lags behind by some hours.
    BigQuery charges for the bytes that a query reads. It needs pip install 'tpux-plugin-gcp[accounting]'.
    """
    api = open_api(project)
    if table is not None and not TABLE.fullmatch(table):
        raise UsageError(f"{table} is no table", hint="write PROJECT.DATASET.TABLE")
    chosen = table or _find_table(api.place, api.project)
    begin = (datetime.now(UTC) - timedelta(days=days - 1)).strftime("%Y-%m-%d")
    found = _sum(_query(api.place, api.project, chosen, begin, "" if every else api.project))
    if json:
        keys = ("day", "category", "currency", "cost", "credits")
        emit([{**dict(zip(keys, row, strict=True)), "total": round(row[3] + row[4], 6)} for row in found])
    elif not found:
        say(f"{chosen} has no cost since {begin}")
    else:
        _print(found)


def _find_table(place: Place, project: str) -> str:
    """Return the table of the export in the project's datasets.

    Raises:
        UsageError: there is none, or more than one.
    """
    found = []
    for dataset in ask(place, "bigquery", "v2", "datasets", "datasets", projectId=project):
        name = str(inner(dataset, "datasetReference").get("datasetId"))
        for one in ask(place, "bigquery", "v2", "tables", "tables", projectId=project, datasetId=name):
            table = str(inner(one, "tableReference").get("tableId"))
            if table.startswith(PREFIXES):
                found.append(f"{project}.{name}.{table}")
    standard = [
        name for name in found if name.rpartition(".")[2].startswith(PREFIXES[0])
    ]  # a detailed one says no more
    found = standard or found
    if not found:
        hint = (
            "set up the export (https://cloud.google.com/billing/docs/how-to/export-data-bigquery-setup), or: --table"
        )
        raise UsageError(f"no dataset of project {project} has an export of Cloud Billing", hint=hint)
    if len(found) > 1:
        raise UsageError(f"project {project} has several exports: {', '.join(found)}", hint=f"--table {found[0]}")
    return found[0]


def _query(place: Place, project: str, table: str, begin: str, of: str) -> Iterator[Mapping[str, str]]:
    """Yield the rows of the answer, by the names of their columns.

    Raises:
        TpuxError: BigQuery refuses the query or does not answer in time.
    """
    body = {
        "query": QUERY.format(table=table),
        "useLegacySql": False,
        "timeoutMs": POLL_MS,
        "parameterMode": "NAMED",
        "queryParameters": [_parameter("begin", "DATE", begin), _parameter("project", "STRING", of)],
    }
    with errors_of("bigquery"):
        jobs = open_client(place, "bigquery", "v2").jobs()  # type: ignore[attr-defined]
        answer: Mapping[str, JsonValue] = jobs.query(projectId=project, body=body).execute(num_retries=2)
        reference = inner(answer, "jobReference")
        where = {"jobId": str(reference.get("jobId")), "location": str(reference.get("location") or "US")}

        def more(**arguments: str | int) -> Mapping[str, JsonValue]:
            request = jobs.getQueryResults(projectId=project, **where, **arguments)
            result: Mapping[str, JsonValue] = request.execute(num_retries=2)
            return result

        answer = _completed(answer, more)
        yield from _rows(answer)
        while token := answer.get("pageToken"):
            answer = more(pageToken=str(token))
            yield from _rows(answer)


def _completed(
    answer: Mapping[str, JsonValue], more: Callable[..., Mapping[str, JsonValue]]
) -> Mapping[str, JsonValue]:
    for _ in range(POLLS):
        if answer.get("jobComplete"):
            return answer
        answer = more(timeoutMs=POLL_MS)
    seconds = POLLS * POLL_MS // 1000
    raise TpuxError(f"BigQuery has not completed the query in {seconds} s", hint="ask for fewer days: --days 7")


def _rows(answer: Mapping[str, JsonValue]) -> Iterator[Mapping[str, str]]:
    names = [str(field.get("name")) for field in items(inner(answer, "schema"), "fields")]
    for row in items(answer, "rows"):
        yield {name: str(cell.get("v") or "") for name, cell in zip(names, items(row, "f"), strict=True)}


def _parameter(name: str, kind: str, value: str) -> dict[str, object]:
    return {"name": name, "parameterType": {"type": kind}, "parameterValue": {"value": value}}


def _sum(rows: Iterator[Mapping[str, str]]) -> list[Row]:
    """Return cost and credits by day, category and currency, the newest day first."""
    sums = defaultdict[tuple[str, str, str], list[float]](lambda: [0.0, 0.0])
    for row in rows:
        one = sums[row["day"], category(row["service"], row["sku"]), row["currency"]]
        one[0] += float(row["cost"] or 0)
        one[1] += float(row["credits"] or 0)
    ordered = sorted(sums.items(), key=lambda item: item[0][1:])
    ordered.sort(key=lambda item: item[0][0], reverse=True)
    return [(*key, round(cost, 6), round(given, 6)) for key, (cost, given) in ordered]


def category(service: str, sku: str) -> str:
    """Return the category of what a service sells: network, tpu, storage, disks, compute, logging or other."""
    text = f"{service}: {sku}".lower()
    return next((name for name, pattern in CATEGORIES.items() if re.search(pattern, text)), "other")


def _print(found: Sequence[Row]) -> None:
    columns = {
        "day": [day for day, *_ in found],
        "category": [name for _, name, *_ in found],
        "cost": [f"{cost:.2f}" for *_, cost, _ in found],
        "credits": [f"{given:.2f}" for *_, given in found],
        "total": [f"{cost + given:.2f}" for *_, cost, given in found],
        "currency": [currency for _, _, currency, *_ in found],
    }
    print_table(columns, always=["day", "category", "cost", "credits", "total"])
    for currency in dict.fromkeys(row[2] for row in found):
        cost = sum(row[3] for row in found if row[2] == currency)
        given = sum(row[4] for row in found if row[2] == currency)
        say(f"together {cost:.2f} {currency}, credits {given:.2f}, total {cost + given:.2f}")
