"""The sentence on which rank waits for which, from agents' stacks."""

import pytest

from minicluster.wire import Collective, RankStack, StackFrame, StackStatus
from minicluster_hub.diagnosis.why import explain

from ... import messages

TORCH = "/usr/lib/python3/site-packages/torch"
CELL = "Cell In[5]"
SOURCE = {9: "while True:", 12: "model(next(batches))", 14: "dist.all_reduce(loss)", 20: "dist.barrier()"}


def frame(file, function, line=1):
    return StackFrame(file=file, line=line, function=function)


def line(number):
    return StackFrame(file=CELL, line=number, function="train", cell=True, text=SOURCE[number])


def rank(number, *frames, quiet_s=120.0, sight=StackStatus.SEEN):
    outermost = StackFrame(file=CELL, line=30, function="<module>", cell=True, text="train()")
    return RankStack(rank=number, sight=sight, quiet_s=quiet_s, frames=(*frames, outermost) if frames else ())


def collective(number, name, at):
    inside = frame(f"{TORCH}/distributed/distributed_c10d.py", name, 2806)
    return rank(number, inside, frame(f"{TORCH}/distributed/c10d_logger.py", "wrapper"), line(at))


def in_all_reduce(number):
    return collective(number, "all_reduce", 14)


def joining(number):
    inside = frame(f"{TORCH}/distributed/distributed_c10d.py", "init_process_group")
    return RankStack(rank=number, sight=StackStatus.SEEN, quiet_s=120.0, frames=(inside,))


def backward(number, quiet_s=120.0):
    graph = frame(f"{TORCH}/autograd/graph.py", "_engine_run_backward")
    return rank(number, graph, frame(f"{TORCH}/_tensor.py", "backward"), line(14), quiet_s=quiet_s)


def by_object(number):
    inside = (
        frame("/opt/minicluster/train/objects.py", name) for name in ("_wait", "_take", "bcast", "allreduce")
    )
    return rank(number, *inside, line(14))


def in_jax(number, quiet_s=120.0):
    inside = frame("/usr/lib/python3/site-packages/jax/_src/array.py", "_value")
    return rank(number, inside, line(14), quiet_s=quiet_s)


def in_loader(number):
    frames = [frame("/usr/lib/python3.11/selectors.py", "select")]
    frames += [frame(f"{TORCH}/utils/data/dataloader.py", name) for name in ("_try_get_data", "__next__")]
    return rank(number, *frames, line(12))


def out_of_sight(number, sight):
    return rank(number, sight=sight)


def recorded(stack, tensors, number=9):
    """Return a stack with the collective that the flight recorder has of its rank."""
    one = Collective(name="all_reduce", number=number, group="0:default_pg", tensors=tensors)
    return stack.model_copy(update={"collective": one})


CASES = {
    "a rank sleeps in another line": (
        [in_all_reduce(0), in_all_reduce(1), rank(2, line(9))],
        "Rank 2 never reached the all_reduce of cell line 14; ranks 0 and 1 wait there. "
        "Rank 2 is in cell line 9: `while True:`.",
    ),
    "a rank is in an endless loop": (
        [in_all_reduce(0), in_all_reduce(1), rank(2, line(9), quiet_s=0.4)],
        "Rank 2 has not reached the all_reduce of cell line 14 yet; ranks 0 and 1 wait there. "
        "Rank 2 is in cell line 9: `while True:`.",
    ),
    "a rank left its loop early and waits elsewhere": (
        [in_all_reduce(0), collective(1, "barrier", 20), in_all_reduce(2)],
        f"{messages.DIFFERENT_PLACES} ranks 0 and 2 in the all_reduce of cell line 14, "
        "rank 1 in the barrier of cell line 20.",
    ),
    "a rank is through": (
        [in_all_reduce(0), out_of_sight(1, StackStatus.ENDED), in_all_reduce(2)],
        f"The {messages.CELL_IS_OVER.format(rank=1)} all_reduce of cell line 14; ranks 0 and 2 wait there.",
    ),
    "a rank is through, and one has not come into the cell yet": (
        [out_of_sight(0, StackStatus.ENDED), collective(1, "barrier", 20), joining(2)],
        f"The {messages.CELL_IS_OVER.format(rank=0)} barrier of cell line 20; "
        "others wait: rank 1 in the barrier of cell line 20, rank 2 in the init_process_group.",
    ),
    "all are in the same collective": (
        [in_all_reduce(number) for number in range(3)],
        "All 3 ranks are in the all_reduce of cell line 14, and it does not end: no data comes through.",
    ),
    "ranks pass tensors of different shapes": (
        [
            recorded(in_all_reduce(0), "float32[32]"),
            recorded(in_all_reduce(1), "float32[32]"),
            recorded(in_all_reduce(2), "float32[7]"),
        ],
        "The ranks pass different tensors: ranks 0 and 1 in all_reduce number 9 with float32[32], "
        "rank 2 in all_reduce number 9 with float32[7].",
    ),
    "a rank was in the same line more often": (
        [recorded(in_all_reduce(0), "float32[32]"), recorded(in_all_reduce(1), "float32[32]", number=10)],
        "The ranks are in different collectives: rank 0 in all_reduce number 9 with float32[32], "
        "rank 1 in all_reduce number 10 with float32[32].",
    ),
    "all pass the same, and it does not end": (
        [recorded(in_all_reduce(number), "float32[32]") for number in range(2)],
        "All 2 ranks are in the all_reduce of cell line 14, and it does not end: no data comes through.",
    ),
    "a rank is stopped": (
        [in_all_reduce(0), out_of_sight(1, StackStatus.STOPPED)],
        f"Rank 1 is {messages.STOPPED_BY_SIGNAL}; rank 0 waits in the all_reduce of cell line 14.",
    ),
    "a node is away": (
        [
            in_all_reduce(0),
            out_of_sight(1, StackStatus.UNREACHABLE),
            out_of_sight(2, StackStatus.UNREACHABLE),
        ],
        f"{messages.NODE_AWAY.format(ranks='ranks 1 and 2')}; "
        "rank 0 waits in the all_reduce of cell line 14.",
    ),
    "a loader gives nothing, the others wait for its rank": (
        [in_loader(0), in_all_reduce(1), in_all_reduce(2)],
        "Rank 0 never reached the all_reduce of cell line 14; ranks 1 and 2 wait there. "
        "Rank 0 is waiting for a DataLoader in cell line 12: `model(next(batches))`.",
    ),
    "all loaders give nothing": (
        [in_loader(0), in_loader(1)],
        "Ranks 0 and 1 do nothing, and no rank waits for another; "
        "ranks 0 and 1 are waiting for a DataLoader in cell line 12: `model(next(batches))`.",
    ),
    "gradients wait for a rank": (
        [backward(0), rank(1, line(9))],
        f"Rank 1 never reached the {messages.BACKWARD_PASS} of cell line 14; "
        "rank 0 waits there. Rank 1 is in cell line 9: `while True:`.",
    ),
    "a rank waits for an object": (
        [by_object(0), rank(1, line(9))],
        "Rank 1 never reached the allreduce of cell line 14; rank 0 waits there. "
        "Rank 1 is in cell line 9: `while True:`.",
    ),
    "a program of JAX waits for a rank": (
        [in_jax(0), in_jax(1), rank(2, line(9))],
        "Rank 2 never reached the JAX computation of cell line 14; ranks 0 and 1 wait there. "
        "Rank 2 is in cell line 9: `while True:`.",
    ),
    "programs of JAX compute": (
        [in_jax(0, quiet_s=0.1), in_jax(1, quiet_s=0.1)],
        f"{messages.ALL_MAKE_PROGRESS}; ranks 0 and 1 are in cell line 14: `dist.all_reduce(loss)`.",
    ),
    "all ranks sleep": (
        [rank(number, line(9)) for number in range(4)],
        "Ranks 0-3 do nothing, and no rank waits for another; ranks 0-3 are in cell line 9: `while True:`.",
    ),
    "all ranks compute": (
        [backward(0, quiet_s=0.1), backward(1, quiet_s=0.1)],
        f"{messages.ALL_MAKE_PROGRESS}; ranks 0 and 1 are in cell line 14: `dist.all_reduce(loss)`.",
    ),
    "ranks on their way, caught in a collective": (
        [in_all_reduce(0).model_copy(update={"quiet_s": 0.2}), rank(1, line(9), quiet_s=0.2)],
        f"{messages.ALL_MAKE_PROGRESS}; rank 0 is in the all_reduce of cell line 14; "
        "rank 1 is in cell line 9: `while True:`.",
    ),
    "nothing runs any more": (
        [out_of_sight(0, StackStatus.ENDED)],
        "The cell is over on all ranks; what is left is being brought home.",
    ),
}


@pytest.mark.parametrize(("stacks", "sentence"), CASES.values(), ids=CASES)
def test_one_sentence_says_who_waits_for_whom(stacks, sentence):
    assert explain(stacks).sentence == sentence


def test_a_helper_of_the_users_own_is_told_by_its_file():
    helper = frame("/home/ada/project/sync.py", "average", 33)
    inside = frame(f"{TORCH}/distributed/distributed_c10d.py", "all_reduce")
    stacks = [rank(0, inside, helper, line(14)), rank(1, frame("/home/ada/project/sync.py", "read", 7))]
    sentence = explain(stacks).sentence
    assert "the all_reduce of cell line 14" in sentence


def test_torchs_own_helpers_are_told_by_the_call_that_the_user_wrote():
    c10d = f"{TORCH}/distributed/distributed_c10d.py"
    names = ("broadcast", "_object_to_tensor", "broadcast_object_list")
    frames = [frame(c10d, name) for name in names]
    stacks = [rank(0, *frames, line(14)), rank(1, line(9))]
    assert "broadcast_object_list of cell line 14" in explain(stacks).sentence


def test_waiting_on_a_handle_is_waiting_for_ranks():
    wait = StackFrame(file=CELL, line=15, function="train", cell=True, text="handle.wait()")
    stacks = [rank(0, wait), rank(1, line(9))]
    sentence = explain(stacks).sentence
    assert "never reached the wait()" in sentence and "cell line 15" in sentence


def test_what_asks_nobody_is_no_collective():
    asks = frame(f"{TORCH}/distributed/distributed_c10d.py", "get_rank")
    assert "Rank 1 never reached" in explain([in_all_reduce(0), rank(1, asks, line(9))]).sentence


def test_a_layer_below_a_wrapper_is_no_collective():
    layers = [frame(f"{TORCH}/nn/modules/linear.py", "forward")]
    layers.append(frame(f"{TORCH}/nn/parallel/distributed.py", "forward"))
    assert "Rank 1 never reached" in explain([in_all_reduce(0), rank(1, *layers, line(12))]).sentence


def test_many_ranks_are_counted_in_ranges():
    stacks = [rank(number, line(9)) if number in (3, 9) else in_all_reduce(number) for number in range(12)]
    assert "ranks 0-2, 4-8, 10 and 11 wait there" in explain(stacks).sentence
