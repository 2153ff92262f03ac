"""The background process that drives the jobs of one user. Commands and supervisor communicate through the store."""
