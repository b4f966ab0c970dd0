"""TensorFlow and Keras on real ranks: TF_CONFIG is set, a step of one's own trains, Keras trains on JAX."""

from __future__ import annotations

import pytest

from minicluster.wire.training.framework import Framework

from ..runtime.cluster import Cluster
from .cells import WITHIN_S, killed, result_of, run_jax, run_tensorflow, started

FIND = """
import json, os
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
total = float(strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None))
config = json.loads(os.environ["TF_CONFIG"])
found = [strategy.num_replicas_in_sync, total, config["task"]["index"] == int(os.environ["RANK"])]
"""

TRAIN = """
import time
import numpy as np
import tensorflow as tf
import minicluster as mc

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = tf.Variable(tf.zeros([4, 1]), aggregation=tf.VariableAggregation.MEAN)


@tf.function
def update(x, y):
    def on_replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights - y) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    return strategy.reduce("MEAN", strategy.run(on_replica, (x, y)), axis=None)


x = np.random.default_rng(mc.rank()).normal(size=(8, 4)).astype("float32")
y = x @ np.array([[1.0], [-2.0], [3.0], [0.5]], "float32")
losses = {}
step = began_at = mc.resume(variables=[weights], losses=losses)
while step < 20:
    step += 1
    losses[step] = float(update(x, y))
    mc.log(step=step, loss=losses[step])
    mc.checkpoint(step=step, every=5, variables=[weights], losses=losses)
    if step == STOP_AT:
        from minicluster.train.snapshots.session import session

        session().writer.wait()
        mc.comm().barrier()
        print("there", flush=True)
        time.sleep(600)
final = weights.numpy().tolist()
device = mc.device()
"""


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize("nodes", [3, 1])
async def test_the_strategy_has_all_ranks(cluster: Cluster, nodes: int) -> None:
    run = await run_tensorflow(cluster, FIND, nodes=nodes, pull=("found",))
    assert await result_of(run) == {"found": [nodes, float(nodes), True]}


@pytest.mark.usefixtures("tensorflow")
async def test_a_step_of_ones_own_trains_the_same_on_all_ranks(cluster: Cluster) -> None:
    source = TRAIN.replace("STOP_AT", "0")
    run = await run_tensorflow(cluster, source, pull=("final", "losses", "device"), gather=("final",))
    result = await result_of(run)
    first, *others = result["final"]
    assert all(other == first for other in others)
    assert result["losses"][20] < result["losses"][1] / 2
    assert result["device"].endswith("CPU:0")
    assert len([record for record in run.records() if record.kind == "log" and record.rank == 0]) == 20


@pytest.mark.usefixtures("tensorflow")
async def test_its_variables_go_on_from_a_snapshot(cluster: Cluster) -> None:
    wanted = ("began_at", "losses", "final")
    whole = await result_of(
        await run_tensorflow(cluster, TRAIN.replace("STOP_AT", "0"), nodes=2, pull=wanted)
    )
    first = await run_tensorflow(cluster, TRAIN.replace("STOP_AT", "13"), nodes=2)
    await killed(first)
    again = await run_tensorflow(
        cluster, TRAIN.replace("STOP_AT", "0"), nodes=2, job_id=first.attempt.id, pull=wanted
    )
    resumed = await result_of(again)
    assert (resumed["began_at"], resumed["final"]) == (10, whole["final"])
    assert resumed["losses"] == whole["losses"]


@pytest.mark.usefixtures("tensorflow")
async def test_a_rank_that_fails_ends_the_others_and_stop_ends_all(cluster: Cluster) -> None:
    fails = "\nif config['task']['index'] == 1:\n    raise ValueError('rank one')\n"
    run = await run_tensorflow(cluster, FIND + fails + "strategy.run(lambda: tf.constant(1.0))")
    await run.over(WITHIN_S)
    error = await run.culprit()
    assert (error.rank, error.message) == (1, "ValueError: rank one")
    run = await run_tensorflow(cluster, FIND + "\nimport time\nprint('here', flush=True)\ntime.sleep(600)")
    await started(run)
    await run.stop()
    assert (await run.over()).failed


FIT = """
import numpy as np
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
"""


@pytest.mark.usefixtures("tensorflow")
async def test_fit_of_keras_3_fails_in_the_strategy_as_the_table_says(cluster: Cluster) -> None:
    """When this test fails, Keras can do it again: then the table of docs/frameworks.md is to be changed."""
    run = await run_tensorflow(cluster, FIT, nodes=2)
    await run.over(WITHIN_S)
    assert run.attempt.failed


KERAS = """
import time
import keras, numpy as np
import minicluster as mc

keras.distribution.initialize()
keras.utils.set_random_seed(1)
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.1), "mse")
model.optimizer.build(model.trainable_variables)
x = np.random.default_rng(mc.rank()).normal(size=(8, 4)).astype("float32")
y = x @ np.array([[1.0], [-2.0], [3.0], [0.5]], "float32")
losses = {}
epoch = began_at = mc.resume(model, model.optimizer, losses=losses)
while epoch < 12:
    epoch += 1
    losses[epoch] = model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False).history["loss"][0]
    mc.log(step=epoch, loss=losses[epoch])
    mc.checkpoint(model, model.optimizer, step=epoch, every=3, losses=losses)
    if epoch == STOP_AT:
        from minicluster.train.snapshots.session import session

        session().writer.wait()
        mc.comm().barrier()
        print("there", flush=True)
        time.sleep(600)
weights = [one.tolist() for one in model.get_weights()]
backend = keras.backend.backend()
processes = mc.world_size(), keras.src.backend.distribution_lib.num_processes()
"""


@pytest.mark.usefixtures("jax")
async def test_keras_trains_on_jax_by_keras_distribution(cluster: Cluster) -> None:
    wanted = ("weights", "losses", "backend", "processes")
    run = await run_jax(cluster, KERAS.replace("STOP_AT", "0"), pull=wanted, gather=("weights",))
    result = await result_of(run)
    first, *others = result["weights"]
    assert all(other == first for other in others)
    assert result["losses"][12] < result["losses"][1] / 2
    assert (result["backend"], result["processes"]) == ("jax", (3, 3))


@pytest.mark.usefixtures("jax")
async def test_a_model_of_keras_goes_on_with_its_optimizer(cluster: Cluster) -> None:
    wanted = ("began_at", "losses", "weights")
    whole = await result_of(await run_jax(cluster, KERAS.replace("STOP_AT", "0"), nodes=2, pull=wanted))
    first = await run_jax(cluster, KERAS.replace("STOP_AT", "8"), nodes=2)
    await killed(first)
    again = await run_jax(
        cluster, KERAS.replace("STOP_AT", "0"), nodes=2, job_id=first.attempt.id, pull=wanted
    )
    resumed = await result_of(again)
    assert resumed["began_at"] == 6
    assert resumed["losses"] == pytest.approx(whole["losses"])


@pytest.mark.usefixtures("tensorflow")
async def test_a_seed_is_tensorflows_too(cluster: Cluster) -> None:
    cell = "import tensorflow as tf\ndrawn = float(tf.random.uniform([]))"
    runs = [
        await result_of(
            await cluster.run(
                cell, framework=Framework.TENSORFLOW, seed=3, gather=("drawn",), pull=("drawn",)
            )
        )
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0]["drawn"])) == 3
