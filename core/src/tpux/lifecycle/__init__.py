"""The life of a job, one step at a time: `advance.py` takes a step, and the other modules have the handlers' parts."""
