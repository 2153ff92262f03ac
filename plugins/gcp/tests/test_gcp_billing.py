"""`tpux billing`: Google's own client library, and a server on loopback that speaks the JSON of BigQuery."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from tpux import TpuxError, UsageError
from tpux_gcp import billing

COLUMNS = ("day", "service", "sku", "currency", "cost", "credits")
TABLE = "gcp_billing_export_v1_01"
REFERENCE = {"projectId": "p", "jobId": "j1", "location": "EU"}


def rows(*found: tuple[str, ...]):
    return {
        "jobComplete": True,
        "jobReference": REFERENCE,
        "schema": {"fields": [{"name": name} for name in COLUMNS]},
        "rows": [{"f": [{"v": value} for value in row]} for row in found],
    }


@pytest.fixture
def bigquery(google_apis):
    """The table of one dataset; the query is completed at the second look, and its answer has two pages."""
    asked = []

    def query(_, body):
        asked.append(body)
        return {"jobComplete": False, "jobReference": REFERENCE}

    def results(found, _):
        assert found["location"] == "EU"
        if found.get("pageToken") == "2":
            return rows(("2026-11-26", "Cloud Storage", "Standard Storage Iowa", "USD", "3", "0"))
        return {
            **rows(
                ("2026-11-26", "Cloud TPU", "TpuV4 pod", "USD", "100.5", "-100"),
                ("2026-11-27", "Compute Engine", "Network Inter Zone Egress", "USD", "2", "-0.5"),
                ("2026-11-26", "Cloud TPU", "TPU-v4 Preemptible", "USD", "10", None),
            ),
            "pageToken": "2",
        }

    tables = "GET /bigquery/v2/projects/p/datasets/bills/tables"
    google_apis.answers = {
        "GET /bigquery/v2/projects/p/datasets": {"datasets": [{"datasetReference": {"datasetId": "bills"}}]},
        tables: {"tables": [{"tableReference": {"tableId": name}} for name in ("other", TABLE)]},
        "POST /bigquery/v2/projects/p/queries": query,
        "GET /bigquery/v2/projects/p/queries/j1": results,
    }
    google_apis.asked, google_apis.tables = asked, tables
    return google_apis


def run(*words: str):
    return CliRunner().invoke(billing.app, ["--project", "p", *words])


def parameters(body):
    return {one["name"]: one["parameterValue"]["value"] for one in body["queryParameters"]}


def test_cost_and_credits_by_day_and_category(bigquery):
    found = json.loads(run("--days", "2", "--json").stdout)
    keys = ("day", "category", "cost", "credits", "total")
    assert [tuple(one[key] for key in keys) for one in found] == [
        ("2026-11-27", "network", 2.0, -0.5, 1.5),
        ("2026-11-26", "storage", 3.0, 0.0, 3.0),
        ("2026-11-26", "tpu", 110.5, -100.0, 10.5),
    ]
    body = bigquery.asked[0]
    assert f"FROM `p.bills.{TABLE}`" in body["query"]
    yesterday = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%d")
    assert parameters(body) == {"begin": yesterday, "project": "p"}
    shown = run()
    assert shown.stdout.splitlines()[1].split() == ["2026-11-27", "network", "2.00", "-0.50", "1.50", "USD"]
    assert "together 115.50 USD, credits -100.50, total 15.00" in shown.stderr


def test_the_table_and_the_projects_can_be_chosen(bigquery):
    run("--table", "other-p.bills.gcp_billing_export_v1_9", "--all-projects")
    assert "FROM `other-p.bills.gcp_billing_export_v1_9`" in bigquery.asked[0]["query"]
    assert not parameters(bigquery.asked[0])["project"]
    assert not [url for url in bigquery.requests if "/datasets" in url]
    error = run("--table", "a.b.c`; DROP TABLE x").exception
    assert isinstance(error, UsageError)
    assert len(bigquery.asked) == 1


def test_no_export_several_ones_and_a_refusal(bigquery):
    names = (TABLE, "gcp_billing_export_v1_02", "gcp_billing_export_resource_v1_01")
    bigquery.answers[bigquery.tables] = {"tables": [{"tableReference": {"tableId": name}} for name in names]}
    error = run().exception
    assert isinstance(error, UsageError)
    assert error.message == f"project p has several exports: p.bills.{TABLE}, p.bills.gcp_billing_export_v1_02"
    bigquery.answers[bigquery.tables] = {"tables": []}
    error = run().exception
    assert isinstance(error, UsageError)
    assert "export-data-bigquery-setup" in error.hint
    error = run("--table", "other-p.bills.t", "--project", "q").exception
    assert isinstance(error, TpuxError)
    assert error.message.startswith("bigquery.googleapis.com: ")


def test_a_query_that_never_ends(bigquery):
    bigquery.answers["GET /bigquery/v2/projects/p/queries/j1"] = {"jobComplete": False}
    error = run().exception
    assert isinstance(error, TpuxError)
    assert error.message == "BigQuery has not completed the query in 300 s"


@pytest.mark.parametrize(
    ("service", "sku", "category"),
    [
        ("Compute Engine", "Storage PD Capacity", "disks"),
        ("Compute Engine", "External IP Charge on a Standard VM", "network"),
        ("Cloud Storage", "Download Worldwide Destinations", "network"),
        ("Compute Engine", "N2 Instance Core running in Americas", "compute"),
        ("Support", "Standard", "other"),
    ],
)
def test_categories(service, sku, category):
    assert billing.category(service, sku) == category
