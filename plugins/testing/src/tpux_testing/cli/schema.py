"""`tpux config schema`: print the JSON Schema of a config, for editors."""

from __future__ import annotations

from tpux.cli.common import emit, new_app

app = new_app()


@app.command(epilog="Example: tpux config schema > tpux.schema.json")
def schema() -> None:
    """Print the JSON Schema of a config, for editors.

    It includes the sections of all installed plugins.
    """
    from tpux.plugin.manager import Plugins
    from tpux_testing.schema import schema as schema_of

    emit(schema_of(Plugins()))
