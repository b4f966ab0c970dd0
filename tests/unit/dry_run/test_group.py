"""The virtual process group: collectives answer as if all ranks held the same."""

import torch
import torch.distributed as dist

from minicluster.dry_run.group import Broadcasts, VirtualGroup


def group(tmp_path, rank=1, size=3):
    return VirtualGroup(rank, size, Broadcasts(tmp_path / "broadcasts", rank))


def test_sums_count_all_ranks_and_largest_values_stay(tmp_path):
    made, tensor = group(tmp_path), torch.ones(2)
    made.allreduce([tensor]).wait()
    assert tensor.tolist() == [3, 3]
    options = dist.AllreduceOptions()
    options.reduceOp, options.asyncOp = dist.ReduceOp.MAX, False
    made.allreduce([tensor], options)
    assert tensor.tolist() == [3, 3]
    assert [(size, blocks) for _, size, blocks in made.collectives] == [(8, False), (8, True)]


def test_gathers_are_filled_with_this_ranks_values(tmp_path):
    made, parts = group(tmp_path), [torch.zeros(2) for _ in range(3)]
    made.allgather([parts], [torch.ones(2)])
    assert torch.stack(parts).tolist() == [[1, 1]] * 3
    whole = torch.zeros(6)
    made._allgather_base(whole, torch.ones(2))
    assert whole.tolist() == [1] * 6


def test_a_scattered_sum_is_this_ranks_part(tmp_path):
    output = torch.zeros(2)
    group(tmp_path)._reduce_scatter_base(output, torch.arange(6.0))
    assert output.tolist() == [6, 9]


def test_what_rank_0_broadcast_reaches_the_ranks_after_it(tmp_path):
    first = Broadcasts(tmp_path / "broadcasts", 0)
    first.exchange([torch.tensor([7.0])], 0)
    first.exchange([torch.zeros(1 << 20)], 0)
    first.save()
    second, small, large = Broadcasts(tmp_path / "broadcasts", 1), torch.zeros(1), torch.ones(1 << 20)
    second.exchange([small], 0)
    second.exchange([large], 0)
    assert small.item() == 7
    assert large[0] == 1, "large tensors stay as the rank has them"


def test_a_rank_with_another_way_keeps_its_own(tmp_path):
    first = Broadcasts(tmp_path / "broadcasts", 0)
    first.exchange([torch.zeros(3)], 0)
    first.save()
    own = torch.ones(2)
    Broadcasts(tmp_path / "broadcasts", 1).exchange([own], 0)
    assert own.tolist() == [1, 1]
