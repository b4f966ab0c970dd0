"""The images with JAX and TensorFlow on three hosts: in the catalogue, and ranks of several nodes train."""

from __future__ import annotations

import pytest

from minicluster.wire.training.framework import Framework

from ...lab.cluster import LabCluster
from ...lab.faults.inject import power_lost
from ...lab.jobs import Jobs
from ..cells import training

FIND = {
    Framework.JAX: """
import jax
jax.distributed.initialize()
total = float(jax.pmap(lambda x: jax.lax.psum(x, "i"), "i")(jax.numpy.ones(1))[0])
print("processes", jax.process_count(), "total", total, flush=True)
""",
    Framework.TENSORFLOW: """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
total = float(strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None))
print("processes", strategy.num_replicas_in_sync, "total", total, flush=True)
""",
}


STEP = "    step += 1\n    print('step', step, flush=True)\n    time.sleep(0.02)\n"
FROM = "losses=losses)\nprint('from', step, flush=True)\nwhile"


def test_the_catalogue_has_both_beside_the_notebook_image(jobs: Jobs) -> None:
    listed = {image["name"]: image for image in jobs.http.get("api/images").json()["images"]}
    names = {f"minicluster-notebook-{name}" for name in ("jax", "tensorflow")}
    assert names <= listed.keys()
    assert {listed[name]["state"] for name in names} == {"allowed"}


@pytest.mark.parametrize("framework", FIND)
def test_ranks_of_three_nodes_find_each_other(jobs: Jobs, framework: Framework) -> None:
    image = f"minicluster-notebook-{framework}"
    job_id = jobs.submit(FIND[framework], nodes=3, image=image, framework=framework)
    done = jobs.wait(job_id, within_s=1200)
    assert done["state"] == "succeeded", (done, jobs.history(job_id), jobs.log(job_id))
    assert "processes 3 total 3.0" in jobs.log(job_id, rank=2)


def test_a_training_of_jax_outlives_a_node(jobs: Jobs, offering: LabCluster) -> None:
    image = "minicluster-notebook-jax"
    source = training(100_000).replace("    step += 1\n", STEP).replace("losses=losses)\nwhile", FROM)
    job_id = jobs.submit(source, nodes={"min": 2, "max": 3}, image=image, framework=Framework.JAX)
    jobs.wait_log(job_id, "step 60", within_s=600)
    with power_lost(offering, offering.lab.nodes[2]):
        jobs.wait_log(job_id, "on where 3 were", within_s=600)
        began = [line for line in jobs.log(job_id).splitlines() if line.startswith("from ")][-1]
        assert int(began.split()[1]) >= 20
    jobs.stop(job_id)
    assert jobs.wait(job_id)["state"] == "stopped"
