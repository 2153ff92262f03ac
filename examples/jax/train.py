"""A small network, trained by JAX on all workers together, with orbax checkpoints.

Each process has a part of every batch. A checkpoint is saved every few steps, and a last one when a preemption is
announced: JAX's distributed runtime receives the SIGTERM that tpux forwards, and lets all processes agree on a step. A
resumed attempt computes what an undisturbed one would have computed, bit for bit: the batches depend on the step alone.
"""

import hashlib
import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

STEPS = int(os.environ.get("STEPS", "40"))
SAVE_EVERY = 5
BATCH, FEATURES, HIDDEN, RATE = 16, 8, 32, 0.05


def parameters() -> dict[str, np.ndarray]:
    """Return the network before the first step."""
    rng = np.random.default_rng(0)
    return {
        "first": rng.normal(size=(FEATURES, HIDDEN)).astype(np.float32) / 3,
        "second": rng.normal(size=(HIDDEN, 1)).astype(np.float32) / 6,
    }


def batch(step: int, process: int) -> tuple[np.ndarray, np.ndarray]:
    """Return one process's part of a batch."""
    rng = np.random.default_rng((step, process))
    x = rng.normal(size=(BATCH, FEATURES)).astype(np.float32)
    return x, np.sin(x.sum(axis=1, keepdims=True))


def loss_of(network: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the mean squared error of the network on a batch."""
    return jnp.mean((jnp.tanh(x @ network["first"]) @ network["second"] - y) ** 2)


@jax.jit
def train(network: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """Return the network after one step of gradient descent, and the loss before it."""
    loss, gradient = jax.value_and_grad(loss_of)(network, x, y)
    return jax.tree.map(lambda value, slope: value - RATE * slope, network, gradient), loss


def manager(directory: str) -> ocp.CheckpointManager:
    """Return access to the checkpoints below an attempt's output directory."""
    # Names of four digits: `command.checkpoint` must not match one that is being written.
    options = ocp.CheckpointManagerOptions(step_format_fixed_length=4, max_to_keep=2)
    return ocp.CheckpointManager(f"{directory}/checkpoints", options=options)


def main() -> None:
    """Train from the last checkpoint, or from scratch, until all steps are done or a preemption is announced."""
    jax.distributed.initialize(
        os.environ["TPUX_COORDINATOR_ADDRESS"],
        int(os.environ["TPUX_NUM_WORKERS"]),
        int(os.environ["TPUX_WORKER"]),
        coordinator_bind_address=os.environ["TPUX_COORDINATOR_ADDRESS"],
        initialization_timeout=300,
    )
    mesh = Mesh(np.array(jax.devices()), ("data",))
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    network, first = jax.device_put(parameters(), everywhere), 0
    if os.environ["TPUX_RESUME"] == "1":
        earlier = manager(os.environ["TPUX_PREVIOUS_OUTPUT_DIR"])
        first = earlier.latest_step() + 1
        network = earlier.restore(first - 1, args=ocp.args.StandardRestore(network))
    print(f"process {jax.process_index()} of {jax.process_count()} starts at step {first}", flush=True)
    checkpoints = manager(os.environ["TPUX_OUTPUT_DIR"])
    for step in range(first, STEPS):
        parts = batch(step, jax.process_index())
        x, y = (jax.make_array_from_process_local_data(split, part) for part in parts)
        network, loss = train(network, x, y)
        print(f"step {step} loss {float(loss).hex()}", flush=True)
        preempted = checkpoints.reached_preemption(step)
        if preempted or (step + 1) % SAVE_EVERY == 0 or step + 1 == STEPS:
            checkpoints.save(step, args=ocp.args.StandardSave(network), force=True)
            checkpoints.wait_until_finished()
        if preempted:
            print(f"preempted: saved step {step}", flush=True)
            sys.exit(0)
        time.sleep(float(os.environ.get("STEP_SECONDS", "0.2")))
    for name, value in network.items():
        print(f"final {name} {hashlib.sha256(np.asarray(value).tobytes()).hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
