"""The commands that this plugin adds to tpux."""
