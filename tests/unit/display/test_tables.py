"""The output of `%distribute nodes` and `%distribute snapshots`."""

from minicluster.display.tables import node_table, snapshot_table
from minicluster.wire import Node, SlotUse, Snapshot


def test_a_slot_of_a_notebook_server_is_not_free():
    slots = (
        SlotUse(slot=0, kind="gpu", job_id=7, owner="ada"),
        SlotUse(slot=1, kind="gpu", owner="bob", server="", until=1.0),
        SlotUse(slot=2, kind="gpu", owner="cid", warm=True),
        SlotUse(slot=3, kind="gpu"),
    )
    (row,) = node_table([Node(name="node-1", up=True, slots=slots)]).rows
    assert row == ("node-1", "up", "2 of 4", "gpu", "job 7 (ada), notebook server of bob, warm for cid")


def test_snapshots_are_listed_with_their_files():
    one = Snapshot(step=120, attempt=2, size_bytes=1_250_000, created_at=0.0)
    table = snapshot_table([one], 7, "/services/minicluster/")
    assert '<a href="/services/minicluster/api/jobs/7/snapshots/120" target="_blank"' in table._repr_html_()
    text = repr(table)
    assert "120   2        1.2 MB" in text
    assert "/services/minicluster/api/jobs/7/snapshots/120" in text
    assert "mc.checkpoint(" in repr(snapshot_table([], 7, "/"))


def test_each_part_of_a_divided_models_snapshot_has_its_file():
    one = Snapshot(step=120, attempt=2, size_bytes=3_000_000, created_at=0.0, parts=2)
    first, second = snapshot_table([one], 7, "/hub/").rows
    assert (first[2], second[2]) == ("3.0 MB, part 0 of 2", "3.0 MB, part 1 of 2")
    assert (first[4], second[4]) == ("/hub/api/jobs/7/snapshots/120", "/hub/api/jobs/7/snapshots/120?part=1")
