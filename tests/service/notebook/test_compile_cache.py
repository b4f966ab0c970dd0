"""torch.compile on real ranks: what one gang compiled, the owner's next gang does not compile again."""

import tarfile

import pytest

from ...patience import until
from .conftest import Cluster

CELL = """%%distribute OPTIONS --pull seen
import os
from pathlib import Path
import torch, torch.distributed as dist
import torch._inductor.compile_fx  # what the first compilation does: here, the cache is fetched
from torch._dynamo.utils import counters
folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
libraries = lambda: {path.name for path in folder.rglob("*.so")}
fetched = libraries()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, WIDTH), torch.nn.GELU())
trained = torch.nn.parallel.DistributedDataParallel(torch.compile(model))
trained(torch.ones(4, 8)).sum().backward()
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


def compiling(notebook, width=16, nodes=2, options="--nodes {nodes}"):
    """Compile a model and take a step with it; return what each rank saw."""
    notebook.run(CELL.replace("WIDTH", str(width)).replace("OPTIONS", options.format(nodes=nodes)))
    return notebook.names["seen"]


def pieces(cluster):
    return sorted((cluster.folder / "service" / "compiled").glob("??/*"))


def kernels(cluster):
    """Return the names of the compiled kernels in all pieces."""
    names: list[str] = []
    for piece in pieces(cluster):
        with tarfile.open(piece) as archive:
            names += archive.getnames()
    return [name for name in names if name.endswith(".so")]


def notes(service):
    """Return the notes of the newest job."""
    history = service.ask("GET", f"api/jobs/{service.jobs(1)[0].id}/history").json()["lines"]
    return " ".join(line["text"] for line in history if line["kind"] == "note")


def compiled_all(ranks):
    return all(rank["misses"] and rank["compiled"] and not rank["hits"] for rank in ranks)


def compiled_nothing(ranks):
    return all(rank["hits"] and not rank["misses"] and not rank["compiled"] for rank in ranks)


@pytest.mark.full("a minute of compilers; the stores of compiled graphs are tested without one in the gate")
@pytest.mark.timeout(900)
def test_the_second_gang_compiles_nothing(notebook, cluster, service):
    first = compiling(notebook)
    assert compiled_all(first), first
    assert len({rank["folder"] for rank in first}) == 2, "each task has a folder of its own"
    stored = pieces(cluster)
    second = compiling(notebook)
    assert compiled_nothing(second), second
    assert not {rank["folder"] for rank in first} & {rank["folder"] for rank in second}
    assert [rank["gradient"] for rank in first] == [rank["gradient"] for rank in second]
    assert pieces(cluster) == stored
    assert len(set(kernels(cluster))) == len(kernels(cluster)), "the other rank sent it again"


@pytest.mark.full("compiles three times; the API's tests keep most of it")
@pytest.mark.timeout(900)
def test_what_changes_or_is_damaged_is_compiled_again(notebook, cluster, service):
    compiling(notebook, nodes=1)
    stored = pieces(cluster)
    (changed,) = compiling(notebook, width=24, nodes=1)
    assert changed["misses"] and changed["compiled"] and changed["fetched"]
    assert len(pieces(cluster)) > len(stored)
    for piece in pieces(cluster):
        piece.write_bytes(piece.read_bytes()[:-100])
    assert compiled_all(compiling(notebook, nodes=1))
    assert "parts came damaged to node-" in notes(service)
    assert compiled_nothing(compiling(notebook, nodes=1))
    assert not notes(service)


@pytest.mark.full("compiles; what a session sends is sent as by any other gang")
@pytest.mark.timeout(900)
def test_what_a_session_compiled_is_there_after_it(notebook, cluster, service):
    notebook.run("%distribute up --nodes 1")
    assert compiled_all(compiling(notebook, nodes=1, options=""))
    session = service.jobs(1)[0].id
    notebook.run("%distribute down")
    until(lambda: service.job(session).state.terminal)
    assert compiled_nothing(compiling(notebook, nodes=1))
