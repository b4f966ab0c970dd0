"""How a process finds NVIDIA's MPS for the GPU that it shares: names that engines and agents agree on."""

from __future__ import annotations

from minicluster.wire.jobs import GPU_SHARE

MPS_PIPES, MPS_LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SHARE_VARIABLE = "MINICLUSTER_GPU_SHARE"
"""The share of its GPU that a task has; not set: all of it."""
MPS_READY, MPS_FAILED = "minicluster.ready", "minicluster.failed"
"""Files beside the pipes: the daemon limits memory by now; or why it cannot, in words."""
MPS_MODULE = "minicluster.runtime.node.mps"
"""The program that runs the daemon."""


def share_environment(pipes: str) -> dict[str, str]:
    """Return the variables of a process that has a share of the GPU whose daemon has this folder."""
    return {MPS_PIPES: pipes, MPS_LOGS: pipes, SHARE_VARIABLE: str(GPU_SHARE)}
