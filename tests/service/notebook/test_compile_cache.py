"""torch.compile on real ranks: what a gang compiled is there for the owner's next one, and for nobody else."""

import hashlib

import pytest
import torch

from ...patience import until
from .conftest import Cluster

CELL = """%%distribute --nodes 2 --pull seen
import os
from pathlib import Path
import torch, torch.distributed as dist
import torch._inductor.compile_fx  # what the first compilation does: here, the cache is fetched
from torch._dynamo.utils import counters
folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
libraries = lambda: {path.name for path in folder.rglob("*.so")}
fetched = libraries()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 8), torch.nn.GELU())
trained = torch.nn.parallel.DistributedDataParallel(torch.compile(model))
trained(torch.ones(4, WIDTH)).sum().backward()
mine = {
    "rank": dist.get_rank(),
    "folder": str(folder),
    "fetched": len(fetched),
    "compiled": len(libraries() - fetched),
    "hits": counters["inductor"]["fxgraph_cache_hit"],
    "misses": counters["inductor"]["fxgraph_cache_miss"],
    "gradient": float(model[0].weight.grad.sum()),
}
seen = [None] * dist.get_world_size()
dist.all_gather_object(seen, mine)
"""


@pytest.fixture
def cluster(tmp_path, hub_url):
    """A cluster whose gangs end with their cells, so that each cell gets new tasks."""
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster", hub_url, "--MiniclusterHub.keep_warm_s=0")
    yield made
    made.end()


def compiling(notebook, width=16):
    notebook.run(CELL.replace("WIDTH", str(width)))
    return notebook.names["seen"]


def pieces(cluster):
    return sorted((cluster.folder / "service" / "compiled").glob("??/*"))


def test_the_second_gang_compiles_nothing(notebook, cluster, service, monkeypatch):
    first = compiling(notebook)
    assert all(rank["misses"] and rank["compiled"] and not rank["fetched"] for rank in first), first
    assert len({rank["folder"] for rank in first}) == 2, "each task has a folder of its own"
    assert len(pieces(cluster)) == 1, "what both ranks compiled was sent once"
    second = compiling(notebook)
    assert not {rank["folder"] for rank in first} & {rank["folder"] for rank in second}
    assert all(rank["hits"] and not rank["misses"] and not rank["compiled"] for rank in second), second
    assert [rank["gradient"] for rank in first] == [rank["gradient"] for rank in second]
    assert len(pieces(cluster)) == 1
    (stored,) = pieces(cluster)
    (own,) = service.ask("GET", "api/storage").json()["owners"]
    assert {use["kind"]: use["size_bytes"] for use in own["uses"]}["compiled"] == stored.stat().st_size
