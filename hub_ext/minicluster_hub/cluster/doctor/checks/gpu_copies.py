"""Whether direct copies between the GPUs of a node are right. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from minicluster_hub.cluster.doctor.findings import EVERYWHERE, Finding, failed, ok, warning

if TYPE_CHECKING:
    from minicluster_hub.cluster.doctor.facts import ClusterFacts

WITHOUT_P2P = (
    "Set NCCL_P2P_DISABLE=1 for all cells that use several GPUs of it: "
    "`%%distribute --env NCCL_P2P_DISABLE=1`, or for everybody `ENV NCCL_P2P_DISABLE=1` in the notebook "
    "image's Dockerfile. NCCL then copies through the machine's memory. Turning off the IOMMU in the "
    "firmware, or a newer driver, may repair it."
)


class GpuCopy(BaseModel):
    """A direct copy from one GPU to another, by the driver's numbers. words: why the driver refused it."""

    model_config = ConfigDict(frozen=True)

    source: int
    target: int
    outcome: Literal["right", "wrong", "hung", "not offered", "refused"]
    words: str = ""


class GpuCopies(BaseModel):
    """All copies of a node. error: why there are none, though the node has several GPUs."""

    model_config = ConfigDict(frozen=True)

    gpus: int = 0
    copies: tuple[GpuCopy, ...] = ()
    error: str = ""

    def pairs(self, outcome: str) -> str:
        """Return the pairs with an outcome, for people."""
        return ", ".join(f"{one.source} to {one.target}" for one in self.copies if one.outcome == outcome)


def check_gpu_copies(facts: ClusterFacts) -> Iterator[Finding]:
    """Check that what GPUs copy to each other arrives: NCCL's sums are made of such copies."""
    reporting = facts.reporting
    if reporting and not any(report.copies.gpus for _, report in reporting):
        yield ok("gpu-copies", EVERYWHERE, "no node has an NVIDIA GPU: there are no copies between GPUs")
    for node, report in reporting:
        if report.copies.gpus:
            yield from _of_node(node.name, report.copies)


def _of_node(name: str, found: GpuCopies) -> Iterator[Finding]:
    if found.gpus == 1:
        yield ok("gpu-copies", name, "one GPU: there are no copies between GPUs")
        return
    if found.error:
        words = f"copies between its {found.gpus} GPUs could not be tried: {found.error}"
        yield warning("gpu-copies", name, words, "See nvidia-smi there; run doctor again when no job runs.")
        return
    for outcome, what in (("wrong", "bring wrong bytes"), ("hung", "hang")):
        if pairs := found.pairs(outcome):
            words = f"direct copies between its GPUs (peer-to-peer) {what}: {pairs}"
            yield failed("gpu-copies", name, words, WITHOUT_P2P)
    if refused := found.pairs("refused"):
        reason = next(one.words for one in found.copies if one.outcome == "refused")
        words = f"direct copies between its GPUs could not be tried: {refused} ({reason})"
        yield warning("gpu-copies", name, words, "Run doctor again when no job uses these GPUs.")
    if right := found.pairs("right"):
        yield ok("gpu-copies", name, f"direct copies between its GPUs are right: {right}")
    if not {one.outcome for one in found.copies} - {"not offered"}:
        words = "its GPUs offer no direct copies: NCCL copies through the machine's memory"
        yield ok("gpu-copies", name, words)


CHECKS = (check_gpu_copies,)
