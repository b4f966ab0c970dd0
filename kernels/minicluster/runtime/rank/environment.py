"""A rank's environment variables, with torchrun's names, computed from the order alone."""

from __future__ import annotations

import os
from collections.abc import Mapping

from minicluster.train.live.settings import JOINS, LIGHTHOUSE
from minicluster.train.place import FRAMEWORK
from minicluster.wire import RunOrder
from minicluster.wire.machines.gpu_share import SHARE_VARIABLE

ATTEMPT = "MINICLUSTER_ATTEMPT"
RECORDS_FD = "MINICLUSTER_RECORDS_FD"
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
THREADS = "OMP_NUM_THREADS"
SLOTS, NODE_SLOTS = "MINICLUSTER_SLOTS", "MINICLUSTER_NODE_SLOTS"
"""Variables with the number of slots of the task, and of its node."""


def rank_environment(order: RunOrder, local_rank: int, error_file: str) -> dict[str, str]:
    """Return a rank's variables in addition to the task's. The user's variables cannot override ranks
    and addresses that the service chose."""
    rank = str(order.first_rank + local_rank)
    places = {
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(order.world_size),
        "LOCAL_WORLD_SIZE": str(order.local_world_size),
        "GROUP_RANK": str(order.group_rank),
        "GROUP_WORLD_SIZE": str(order.group_world_size),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": str(order.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": order.master_addr,
        "MASTER_PORT": str(order.master_port),
        "TORCHELASTIC_RUN_ID": f"job-{order.job_id}",
        "TORCHELASTIC_RESTART_COUNT": str(order.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(order.restart_count),
        # A process of the task hosts the store, so no rank may host one.
        AGENT_STORE: "True",
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        ATTEMPT: str(order.attempt),
        FRAMEWORK: order.framework.value,
    }
    if order.fault_tolerant:
        places |= {LIGHTHOUSE: order.lighthouse, JOINS: str(int(order.joins))}
    return {**order.env, **places}


def fair_threads(order: RunOrder, environ: Mapping[str, str] = os.environ) -> int:
    """Return a rank's number of CPU threads: its share of the cores of the task's slots."""
    cores = len(os.sched_getaffinity(0))
    if order.master_addr.startswith("127."):
        # All tasks of the gang run on this machine.
        return max(1, cores // order.world_size)
    slots = len(environ.get(SLOTS, "").split(","))
    of_node = max(slots, int(environ.get(NODE_SLOTS) or 0))
    share = float(environ.get(SHARE_VARIABLE) or 1)
    return max(1, int(cores * slots * share) // of_node // order.local_world_size)
