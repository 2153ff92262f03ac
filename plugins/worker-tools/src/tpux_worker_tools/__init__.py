"""Parts of scripts for modules that set up workers: `from tpux_worker_tools import apt, peer_copy`.

- `apt` installs packages with apt while another program may hold its locks.
- `peer_copy` copies what a set-up has built from another worker, or from the job's bucket.
- `relay` makes a host of a byte stream to a shell on the worker, for transports: `from tpux_worker_tools import relay`.
- `requirements` finds the files in the job's code that a requirements file refers to.
- `setup_lock` makes jobs that share a machine set up the same thing one after the other.
"""

__all__ = ["apt", "peer_copy", "requirements", "setup_lock"]
