"""Counting tensors: what lives, the peak of a step, and what of it is the model's."""

import subprocess
import sys

import torch

from minicluster.dry_run.memory import LiveTensors, sizes_of

KB = 1024


def floats(count):
    return torch.zeros(count // 4)


def test_what_lives_is_counted_and_what_is_gone_is_not():
    with LiveTensors() as live:
        kept = floats(4 * KB)
        assert live.live_bytes == 4 * KB
        view = kept[:10]
        assert live.live_bytes == 4 * KB, "a view has no memory of its own"
        gone = floats(8 * KB)
        del gone
        assert (live.live_bytes, live.peak_bytes) == (4 * KB, 12 * KB)
        live.begin_step()
        assert live.peak_bytes == 4 * KB
        del kept
        assert live.live_bytes == 4 * KB, "the view holds it"
        del view
        assert live.live_bytes == 0


def test_tensors_from_before_count_once_they_were_seen():
    before = floats(4 * KB)
    live = LiveTensors()
    live.see(before)
    with live:
        before.add_(1)
    assert live.live_bytes == 4 * KB
    del before
    assert live.live_bytes == 0


def test_a_backward_pass_holds_its_activations_until_it_is_over():
    weight = torch.nn.Parameter(floats(4 * KB))
    live = LiveTensors()
    live.see(weight)
    with live:
        hidden = [weight * 2]
        for _ in range(9):
            hidden.append(hidden[-1].exp())
        loss = hidden[-1].sum()
        del hidden
        assert live.live_bytes >= 10 * 4 * KB
        loss.backward()
    assert live.live_bytes <= 2 * 4 * KB + KB, "the weight, its gradient, the loss"


def test_a_models_sizes_count_each_tensor_once():
    layer = torch.nn.Linear(16, 16, bias=False)
    model = torch.nn.Sequential(layer, layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = sizes_of([])
    assert before.weights >= 16 * 16 * 4, "modules of the process count, whatever trains them"
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    found = sizes_of([optimizer])
    assert found.weights == before.weights
    assert (found.gradients, found.optimizer) == (16 * 16 * 4, 16 * 16 * 4)


GROWING = """
from minicluster.dry_run.memory import ProcessMemory
memory = ProcessMemory()
block = bytearray(64 << 20)
block[:: 4 << 10] = b"x" * len(block[:: 4 << 10])
del block
print(memory.growth_bytes)
"""


def test_a_process_that_grows_is_seen_to_grow():
    # One of its own: Linux may take from this one, meanwhile, as much as it grows.
    grown = int(subprocess.run([sys.executable, "-c", GROWING], capture_output=True, check=True).stdout)
    assert 60 << 20 < grown < 160 << 20, "the peak counts, though it is over"
