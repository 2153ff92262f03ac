"""The emulated cloud: its resources, their state machines, and faults."""
