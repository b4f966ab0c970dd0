"""Cells that several tests run, and how to run them."""

from __future__ import annotations

from typing import Any

from minicluster.wire import StopMode
from minicluster.wire.training.framework import Framework

from ..runtime.cluster import Cluster, Run

WITHIN_S = 300.0
"""Until three ranks have imported a framework and run a cell, on a busy machine."""

TRAIN_JAX = """
import time
import jax, jax.numpy as jnp, numpy as np, optax
import minicluster as mc
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("data",))
by_rank, same = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
points = np.random.default_rng(jax.process_index()).normal(size=(8, 4)).astype("float32")
targets = points @ np.array([1.0, -2.0, 3.0, 0.5], "float32")
x = jax.make_array_from_process_local_data(by_rank, points)
y = jax.make_array_from_process_local_data(by_rank, targets)
optimizer = optax.adam(0.1)


@jax.jit
def update(params, moments, x, y):
    loss, gradients = jax.value_and_grad(lambda params: jnp.mean((x @ params["w"] - y) ** 2))(params)
    changes, moments = optimizer.update(gradients, moments)
    return optax.apply_updates(params, changes), moments, loss


params = jax.device_put({"w": jnp.zeros(4)}, same)
state = {"params": params, "moments": jax.device_put(optimizer.init(params), same), "key": jax.random.key(3)}
losses = {}
step = began_at = mc.resume(state, losses=losses)
while step < STEPS:
    step += 1
    state["params"], state["moments"], loss = update(state["params"], state["moments"], x, y)
    losses[step] = float(loss)
    mc.log(step=step, loss=loss)
    mc.checkpoint(state, step=step, every=5, losses=losses)
    if step == STOP_AT:
        from minicluster.train.snapshots.session import session

        session().writer.wait()
        mc.comm().barrier()
        print("there", flush=True)
        time.sleep(600)
weights = state["params"]["w"]
count = int(state["moments"][0].count)
key = jax.random.key_data(state["key"]).tolist()
"""
"""Data parallel over the ranks' devices. Fill in STEPS, and STOP_AT: the step at which it waits; 0: none."""


def training(steps: int, stop_at: int = 0) -> str:
    return TRAIN_JAX.replace("STEPS", str(steps)).replace("STOP_AT", str(stop_at))


async def result_of(run: Run) -> dict[str, Any]:
    """Return a run's names, after a time in which a framework is imported."""
    await run.over(WITHIN_S)
    return await run.result()


async def started(run: Run) -> None:
    """Wait until each rank has printed "here" or "there": Gloo prints lines of its own before."""
    ranks = range(run.attempt.world_size)
    await run.cluster.service.until(
        lambda: run.attempt.failed or all("here\n" in run.attempt.text(rank) for rank in ranks), WITHIN_S
    )
    assert not run.attempt.failed, run.errors()


async def killed(run: Run) -> None:
    """Kill the ranks of a run that has reached its stop, as after the loss of a node."""
    await started(run)
    for task in run.attempt.tasks:
        await run.cluster.service.order(task, task.orders.run, StopMode.KILL)
    await run.over()


async def run_jax(cluster: Cluster, source: str, **more: Any) -> Run:
    return await cluster.run(source, framework=Framework.JAX, **more)


async def run_tensorflow(cluster: Cluster, source: str, **more: Any) -> Run:
    return await cluster.run(source, framework=Framework.TENSORFLOW, **more)
