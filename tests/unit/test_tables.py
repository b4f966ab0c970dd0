"""What `%distribute nodes` shows of slots and of who holds them."""

from minicluster.tables import node_table
from minicluster.wire import Node, SlotUse


def test_a_slot_of_a_notebook_server_is_not_free():
    slots = (
        SlotUse(slot=0, kind="gpu", job_id=7, owner="ada"),
        SlotUse(slot=1, kind="gpu", owner="bob", server="", until=1.0),
        SlotUse(slot=2, kind="gpu", owner="cid", warm=True),
        SlotUse(slot=3, kind="gpu"),
    )
    (row,) = node_table([Node(name="node-1", up=True, slots=slots)]).rows
    assert row == ("node-1", "up", "2 of 4", "gpu", "job 7 (ada), notebook server of bob, warm for cid")
