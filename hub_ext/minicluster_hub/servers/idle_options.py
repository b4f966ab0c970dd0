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
        help="Seconds without use of a notebook server's GPUs after which its owner is told; 0: never.",
    ).tag(config=True)
    gpu_idle_reclaim_s = Float(
        3600.0,
        min=0.0,
        help="The same, after which the GPUs go to others while the server and its kernels go on; 0: never. "
        "Less leaves more to jobs, and more often somebody without the GPU that was to be used in a moment.",
    ).tag(config=True)
    gpu_idle_held_bytes = Integer(
        2**30,
        min=0,
        help="GPUs of which kernels hold more memory than this are not taken back: the next job would not "
        "have it. A kernel that only imported CUDA holds some hundred MB.",
    ).tag(config=True)
    gpu_idle_reclaim_when_needed = Bool(
        False,
        help="Take idle GPUs back soon after the warning if a job waits, not only after the time above.",
    ).tag(config=True)

    @property
    def idle_limits(self) -> IdleLimits:
        return IdleLimits(
            warn_s=self.gpu_idle_warn_s,
            reclaim_s=self.gpu_idle_reclaim_s,
            held_bytes=self.gpu_idle_held_bytes,
            when_needed=self.gpu_idle_reclaim_when_needed,
        )
