"""Large parts of a cell are mapped from the node's files, but private to the rank."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from minicluster.capture.payload import CellPayload, PayloadDamaged
from minicluster.pickling.parts import PartReference, digests, to_out_of_band
from minicluster.pickling.pickling import load_shared, pack_names
from minicluster.runtime.rank.parts import PartStore

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
SIDE = 1024


def arrive(names: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Pickle names as a notebook does; read them as a rank does, from a node's folder."""
    packed = pack_names(names, {}, "names")
    store, found = PartStore(scratch), digests(packed.parts)
    (scratch / "parts").mkdir(exist_ok=True)
    for sha256, part in zip(found, packed.parts, strict=True):
        store.path(sha256).write_bytes(part.data)
    blob = CellPayload("", "", names=packed.data, parts=packed.parts).without_parts(found)
    given = CellPayload.from_bytes(blob).open_names(store.memory)
    return load_shared(given, packed.shared.shared(), {}, False)[0]


def contents(scratch: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (scratch / "parts").iterdir()}


def linear() -> Any:
    return torch.nn.Linear(SIDE, SIDE)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_is_written_stays_with_who_writes_it(tmp_path: Path) -> None:
    model, before = linear(), descriptors()
    one, other = (arrive({"model": model}, tmp_path)["model"] for _ in range(2))
    kept = contents(tmp_path)
    assert descriptors() == before
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    one(torch.ones(2, SIDE)).sum().backward()
    optimizer.step()
    assert not torch.equal(one.weight, model.weight)
    assert torch.equal(other.weight, model.weight) and other.weight.requires_grad
    assert contents(tmp_path) == kept
    assert torch.equal(arrive({"model": model}, tmp_path)["model"].weight, model.weight)


def test_a_parameter_is_the_nodes_only_copy_until_it_is_written(tmp_path: Path) -> None:
    there = arrive({"model": linear(), "tensor": torch.ones(SIDE, SIDE)}, tmp_path)
    [file] = [path for path in (tmp_path / "parts").iterdir() if path.read_bytes() != kept_bytes(there)]
    assert is_mapped(there["model"].weight.data_ptr(), file)
    assert not is_mapped(there["tensor"].data_ptr(), file)


def kept_bytes(there: dict[str, Any]) -> bytes:
    return there["tensor"].numpy().tobytes()


def is_mapped(address: int, file: Path) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(one, 16) for one in line.split()[0].split("-"))
        if begin <= address < end:
            return line.endswith(str(file))
    return False


def test_it_stays_when_the_node_removes_the_file(tmp_path: Path) -> None:
    model = linear()
    there = arrive({"model": model}, tmp_path)["model"]
    for path in (tmp_path / "parts").iterdir():
        path.unlink()
    assert torch.equal(there.weight, model.weight)


def test_tensors_change_their_size_and_arrays_their_content(tmp_path: Path) -> None:
    big = torch.arange(SIDE * SIDE, dtype=torch.float32)
    names = {"big": big, "view": big[5:9], "array": numpy.ones(SIDE * SIDE), "frame": bytearray(2 << 20)}
    there = arrive(names, tmp_path)
    there["view"].fill_(1)
    assert there["big"][4:10].tolist() == [4, 1, 1, 1, 1, 9]
    there["big"].resize_(2 * SIDE * SIDE).fill_(3)
    assert there["view"].tolist() == [3] * 4
    there["array"][:2] = 5
    assert there["array"].sum() == SIDE * SIDE + 8
    there["frame"].extend(b"more")
    assert type(there["frame"]) is bytearray and len(there["frame"]) == (2 << 20) + 4
    assert arrive(names, tmp_path)["array"].sum() == SIDE * SIDE


def test_empty_half_and_transposed_ones_arrive(tmp_path: Path) -> None:
    names = {
        "empty": torch.empty(0),
        "none": torch.nn.Parameter(torch.empty(0, 5)),
        "half": torch.nn.Parameter(torch.randn(SIDE, SIDE).bfloat16()),
        "turned": torch.nn.Parameter(torch.randn(SIDE, SIDE).t()[3:]),
        "column": numpy.asfortranarray(numpy.random.rand(SIDE, SIDE)),
        "frozen": torch.nn.Parameter(torch.ones(SIDE, SIDE), requires_grad=False),
    }
    there = arrive(names, tmp_path)
    for name in ("empty", "none", "half", "turned", "frozen"):
        assert torch.equal(there[name], names[name]) and there[name].stride() == names[name].stride()
    assert there["column"].flags.f_contiguous and (there["column"] == names["column"]).all()
    assert not there["frozen"].requires_grad


def test_it_is_saved_shared_and_sent_on_as_any_other(tmp_path: Path) -> None:
    model = linear()
    there = arrive({"model": model}, tmp_path)["model"]
    file = io.BytesIO()
    torch.save(there, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False).weight, model.weight)
    again = arrive({"model": there}, tmp_path / "parts")["model"]
    assert torch.equal(again.weight, model.weight)
    there.share_memory()
    assert there.weight.is_shared() and torch.equal(there.weight, model.weight)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_loaders_processes_read_it(tmp_path: Path, method: str) -> None:
    weight, ones = linear().weight, torch.ones(SIDE, SIDE)
    there = arrive({"weight": weight, "ones": ones}, tmp_path)
    rows = torch.utils.data.TensorDataset(there["weight"].detach(), there["ones"])
    loader = torch.utils.data.DataLoader(rows, SIDE, num_workers=1, multiprocessing_context=method)
    [[found, same]] = list(loader)
    assert torch.equal(found, weight.detach()) and torch.equal(same, ones)


def test_a_part_that_is_not_what_the_pickle_says_is_refused(tmp_path: Path) -> None:
    packed = pack_names({"weight": linear().weight}, {}, "names")
    [part] = packed.parts
    part_references = (PartReference(part.at, "a", part.form),)
    with pytest.raises(PayloadDamaged, match="is not what its pickle says"):
        cell = CellPayload("", "", names=packed.data, part_references=part_references)
        cell.open_names(lambda sha256: part.data[:-1])
    assert to_out_of_band(packed.data, part_references, lambda sha256: part.data).buffers
