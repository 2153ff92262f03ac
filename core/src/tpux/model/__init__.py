"""Plain data that all packages share: jobs, machines, failures, steps, events, and the sections of a config."""
