"""The background process that drives the jobs of one user; the command line and it speak through the store."""
