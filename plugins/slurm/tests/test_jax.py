"""JAX on nodes of a Slurm job: its processes find each other. `make test-jax` installs JAX."""

from __future__ import annotations

import os

import pytest
from slurm_support import Jobs

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif("JAX_PYTHON" not in os.environ, reason="make test-jax installs JAX and sets JAX_PYTHON"),
    pytest.mark.timeout(300),
]
PSUM = """
import os

import jax

rank = int(os.environ["TPUX_RANK"])
assert rank == int(os.environ["SLURM_PROCID"])
jax.distributed.initialize(
    coordinator_address=os.environ["TPUX_COORDINATOR_ADDRESS"],
    num_processes=int(os.environ["TPUX_NUM_WORKERS"]),
    process_id=rank,
    initialization_timeout=120,
)
assert jax.process_count() == 2
total = jax.pmap(lambda one: jax.lax.psum(one, "all"), axis_name="all")(jax.numpy.full(1, 10.0 ** rank))
print("total", int(total.addressable_shards[0].data[0]), flush=True)
"""


def test_a_psum_over_two_nodes(jobs: Jobs) -> None:
    """Each of the two processes has the sum of what both have."""
    (jobs.shared / "psum.py").write_text(PSUM)
    job = jobs.start(f"JAX_PLATFORMS=cpu '{os.environ['JAX_PYTHON']}' $S/psum.py", nodes=2)
    jobs.until(job, "succeeded", 240)
    printed = jobs.cli("logs", job).stdout
    assert printed.count("total 11") == 2, printed
