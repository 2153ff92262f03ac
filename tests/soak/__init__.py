"""The soak test: many jobs on the emulator through hours of its clock, with faults from a seed (`make soak`)."""
