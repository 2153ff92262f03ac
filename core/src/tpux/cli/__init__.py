"""The `tpux` command line: one file per command."""
