"""The emulated cloud: what there is, and how it changes with time."""
