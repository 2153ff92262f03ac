"""`tpux preflight`: check everything that can be checked before anything is created."""

from __future__ import annotations

from dataclasses import asdict

import typer

from tpux.cli.common import Json, Overrides, echo, emit, new_app, say
from tpux.cli.create import Config, ConfigOption, Tpu, config_of
from tpux.cli.program_words import ProgramWords
from tpux.errors import Exit

app = new_app()


@app.command(cls=ProgramWords, epilog="Example: tpux preflight train.yaml")
def preflight(
    config: Config = None,
    overrides: Overrides = None,
    config_option: ConfigOption = None,
    tpu: Tpu = None,
    json: Json = False,
) -> None:
    """Check a config and what it depends on: credentials, project, zone, accelerator, keys."""
    from tpux import config as configs
    from tpux.lifecycle import new_config
    from tpux.lifecycle.open import draft_job
    from tpux.model.failures import Finding
    from tpux.plugin.manager import Plugins
    from tpux.store import Store

    loaded = configs.load(*config_of(config, config_option, overrides, tpu), plugins=Plugins())
    findings = new_config.preflight(draft_job(Store(), loaded, loaded.plugins), loaded.plugins)
    if json:
        warnings = [Finding("warning", warning.message, warning.where, warning.hint) for warning in loaded.warnings]
        emit([asdict(finding) for finding in [*warnings, *findings]])
        raise typer.Exit(Exit.USAGE if any(finding.level == "error" for finding in findings) else Exit.OK)
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    for finding in findings:
        if finding.level == "ok":
            echo(f"ok: {new_config.describe_finding(finding)}")
    new_config.report_findings(findings, warn=say)
    echo(f"ok: {loaded.path}, {loaded.allocator}, {loaded.workers or 'an unknown number of'} worker(s)")
