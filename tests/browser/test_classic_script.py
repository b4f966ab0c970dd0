"""A typical script: DistributedDataParallel around the notebook's model, without an assignment."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .. import messages
from .conftest import USER, Site
from .lab import JOB_MS, cell, open_notebook, output_of, run_cell, wait_ran

MODEL = """import torch
from torch import nn
inputs = torch.randn(600, 2)
truth = inputs[:, 0] * 3 - inputs[:, 1] + 0.5
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"""
TRAIN = """%%distribute --nodes 3
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group()
ddp = DDP(model)
mine = slice(dist.get_rank(), None, dist.get_world_size())
for step in range(60):
    loss = nn.functional.mse_loss(ddp(inputs[mine]).flatten(), truth[mine])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 14:
        print(f'step {step + 1}: loss {loss.item():.5f}')
dist.destroy_process_group()"""
# In the notebook, without the cluster: the same model, and an optimizer bound to it.
MORE = """loss = nn.functional.mse_loss(model(inputs).flatten(), truth)
loss.backward()
optimizer.step()
print(f'here, one step more: loss {loss.item():.5f}')"""
LOOK = "model.weight, model.bias"


@pytest.mark.full("tests/service/notebook/test_changes has it without a page")
def test_the_classic_script_trains_the_notebooks_own_model(page: Page, site: Site, shots: Path) -> None:
    site.put_notebook("classic.ipynb", MODEL, TRAIN, MORE, LOOK)
    open_notebook(page, site.url, USER, "classic.ipynb")
    page.keyboard.press("Control+b")
    wait_ran(run_cell(page, 0))
    training = run_cell(page, 1)
    wait_ran(training, 2 * JOB_MS)
    expect(training.locator(".mc-picture")).to_contain_text(messages.SUCCEEDED.format(ranks=3))
    page.set_viewport_size({"width": 1100, "height": 760})
    training.evaluate("cell => cell.scrollIntoView({block: 'start'})")
    page.screenshot(path=shots / "classic.png")
    wait_ran(run_cell(page, 2))
    wait_ran(run_cell(page, 3))
    assert float(output_of(cell(page, 2)).inner_text().split()[-1]) < 0.01
    # Two cells after the training, what it made.
    expect(output_of(cell(page, 3))).to_contain_text("tensor([[ 3.0")
    page.set_viewport_size({"width": 1100, "height": 520})
    cell(page, 3).evaluate("cell => cell.scrollIntoView({block: 'end'})")
    page.screenshot(path=shots / "later.png")
