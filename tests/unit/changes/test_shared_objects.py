"""Objects that both sides have after a cell was sent: the notebook's, without temporary ones."""

from __future__ import annotations

import pytest

from minicluster.pickling.parts import to_out_of_band
from minicluster.pickling.pickling import load_shared, pack_names


def test_what_was_made_for_the_way_only_is_left_out_on_both_sides() -> None:
    torch = pytest.importorskip("torch")
    names = {"model": torch.nn.Linear(3, 2), "several": [torch.ones(4)]}
    packed = pack_names(names, {}, "names")
    there, known = load_shared(to_out_of_band(packed.data, (), memoryview), packed.shared.shared(), {}, False)
    for one in (packed.shared, known):
        kinds = {type(obj) for obj in one.objects.values()}
        # torch pickles each tensor by a typed storage and a tuple, to which no object refers.
        assert not kinds & {tuple, torch.storage.TypedStorage}
        assert {torch.nn.Linear, torch.nn.Parameter, torch.Tensor, torch.UntypedStorage, list} <= kinds
    assert known.objects.keys() == packed.shared.objects.keys()
    assert there["several"][0].tolist() == [1] * 4
