"""The job service's options of notebook servers that leave their GPUs idle."""

from __future__ import annotations

from traitlets import Bool, Float, Integer
from traitlets.config import Configurable

from minicluster_hub.scheduling.idle import IdleLimits


class IdleOptions(Configurable):
    """Set them as options of MiniclusterHub."""

    gpu_idle_warn_s = Float(
        900.0,
        min=0.0,
        help="Seconds without use of a notebook server's GPUs after which its owner is warned; 0: never.",
    ).tag(config=True)
    gpu_idle_reclaim_s = Float(
        3600.0,
        min=0.0,
        help="Seconds without use after which the GPUs go to others, while the server and its kernels keep "
        "running; 0: never. Less leaves more GPUs to jobs, and takes more GPUs from users who only paused.",
    ).tag(config=True)
    gpu_idle_held_bytes = Integer(
        2**30,
        min=0,
        help="GPUs are not taken back while kernels hold more bytes of their memory than this: the next job "
        "would lack it. A kernel that only initialized CUDA holds some hundred MB.",
    ).tag(config=True)
    gpu_idle_reclaim_when_needed = Bool(
        False,
        help="If a job waits, take idle GPUs back soon after the warning and not only after "
        "gpu_idle_reclaim_s.",
    ).tag(config=True)

    @property
    def idle_limits(self) -> IdleLimits:
        return IdleLimits(
            warn_s=self.gpu_idle_warn_s,
            reclaim_s=self.gpu_idle_reclaim_s,
            held_bytes=self.gpu_idle_held_bytes,
            when_needed=self.gpu_idle_reclaim_when_needed,
        )
