"""What strategies would divide, and which options they take: without ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import minicluster as mc
from minicluster.train.strategies import chain, plans
from minicluster.train.strategies.options import StrategyImpossible, StrategyOptions


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down_proj(self.up_proj(x).relu())


class Model(nn.Module):
    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


# What is found.


def test_blocks_are_the_members_of_lists_and_their_plan_is_short() -> None:
    assert plans.blocks(Model()) == ["blocks.0", "blocks.1", "blocks.2"]
    assert mc.plan(Model(), "fsdp") == ["blocks.*"]
    assert mc.plan(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), "fsdp") == ["0", "2"]


def test_without_lists_the_large_parts_are_the_blocks() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small, self.middle = nn.Linear(100, 100), nn.Linear(2, 2), nn.Linear(50, 60)

    assert plans.blocks(Plain()) == ["large", "middle"]


def test_layers_that_belong_together_are_found_by_their_names() -> None:
    assert mc.plan(Model(), "tensor") == {"blocks.*.up_proj": "column", "blocks.*.down_proj": "row"}
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert mc.plan(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), "tensor") == {
        "layers.*.linear1": "column",
        "layers.*.linear2": "row",
    }
    with pytest.raises(StrategyImpossible, match="No layers with known names"):
        mc.plan(nn.Linear(2, 2), "tensor")


@pytest.mark.parametrize(
    ("columns", "row"),
    [(("q_proj", "k_proj", "v_proj"), "o_proj"), (("gate_proj", "up_proj"), "down_proj"), (("fc1",), "fc2"),
     (("c_fc",), "c_proj"), (("wq", "wk", "wv"), "wo"), (("w1", "w3"), "w2"), (("wi_0", "wi_1"), "wo")],
)  # fmt: skip
def test_the_usual_names_are_known(columns: tuple[str, ...], row: str) -> None:
    module = nn.Module()
    for name in (*columns, row):
        module.add_module(name, nn.Linear(4, 4))
    assert plans.tensor_table(module) == dict.fromkeys(columns, "column") | {row: "row"}


def test_a_layer_with_q_k_and_v_in_one_matrix_stays_whole() -> None:
    attention = nn.Module()
    attention.add_module("c_attn", nn.Linear(4, 12))
    attention.add_module("c_proj", nn.Linear(4, 4))
    with pytest.raises(StrategyImpossible):
        plans.tensor_table(attention)


# What a user gives.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("blocks.*", "a list of names, not str"),
        ({"blocks.*": "column"}, "a list of names, not dict"),
        (["layers.*"], "'layers.*', which the model does not have"),
        (["blocks"], "a list and never called"),
    ],
)
def test_a_plan_of_blocks_that_means_nothing_is_refused(given: Any, message: str) -> None:
    with pytest.raises(StrategyImpossible, match=message):
        plans.chosen_blocks(Model(), given)


@pytest.mark.parametrize(
    ("given", "parts", "message"),
    [
        (["blocks.0.up_proj"], 2, "is a dict, not list"),
        ({"blocks.*": "column"}, 2, "is a Block: torch cuts nn.Linear"),
        ({"blocks.*.up_proj": "column"}, 3, "32 columns, which 3 ranks cannot share"),
        ({"first": "row"}, 8, "4 rows, which 8 ranks"),
    ],
)
def test_a_table_that_cannot_be_cut_is_refused(given: Any, parts: int, message: str) -> None:
    with pytest.raises(StrategyImpossible, match=message):
        plans.chosen_table(Model(), given, parts)


def test_a_shared_parameter_is_cut_nowhere() -> None:
    model = Model()
    model.blocks[1].up_proj.weight = model.blocks[0].up_proj.weight  # type: ignore[union-attr]
    with pytest.raises(StrategyImpossible, match="are one parameter, which cannot be cut in one place only"):
        plans.chosen_table(model, None, 2)


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("fdsp", {}, "knows no strategy 'fdsp'"),
        ("ddp", {"plan": []}, "does not take plan"),
        ("tensor", {"mixed_precision": torch.bfloat16}, "does not take mixed_precision"),
        ("fsdp", {"microbatches": 4}, "does not take microbatches"),
        ("pipeline", {"schedule": "zigzag"}, "schedule='zigzag'"),
        ("pipeline", {"microbatches": 0}, "microbatches=0"),
    ],
)
def test_options_that_a_strategy_does_not_take_are_refused(
    strategy: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(StrategyImpossible, match=message):
        StrategyOptions.of(strategy, options)


# Sequences.


def test_the_parts_of_a_model_are_found_in_the_order_of_their_calls() -> None:
    model = Model()
    names = ["first", "blocks.0", "blocks.1", "blocks.2", "last"]
    assert mc.plan(model, "pipeline") == names
    assert chain.sequence_of(model, torch.zeros(1, 4)) == names
    assert model.training


def test_what_a_forward_does_between_its_parts_is_not_lost_without_a_word() -> None:
    class Adds(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x) + 1)

    class Ends(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).softmax(dim=-1)

    class Skips(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x))

    class Twice(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            return self.last(self.blocks[0](self.blocks[0](x)))

    for kind, message in (
        (Adds, "last gets something else than what first gives"),
        (Ends, "its forward does more at the end"),
        (Skips, "would be in no stage"),
        (Twice, "blocks.0 is called twice"),
    ):
        with pytest.raises(StrategyImpossible, match=message):
            chain.sequence_of(kind(), torch.zeros(1, 4))


def test_an_example_comes_from_the_loader_without_a_draw() -> None:
    loader = DataLoader(TensorDataset(torch.arange(8.0).view(2, 4), torch.zeros(2)), batch_size=2)
    before = torch.get_rng_state()
    assert chain.example_of(loader).tolist() == [[0, 1, 2, 3]]
    assert torch.equal(torch.get_rng_state(), before)


def test_stages_are_even_by_size_or_as_a_plan_says() -> None:
    model = nn.Sequential(nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 30), nn.Linear(30, 30), nn.Linear(30, 2))
    names = chain.part_names(model)
    assert chain.split(model, names, 2, None) == [["0", "1", "2"], ["3", "4"]]
    assert chain.split(model, names, 2, ["1"]) == [["0"], ["1", "2", "3", "4"]]
    assert [len(stage) for stage in chain.split(model, names, 5, None)] == [1] * 5
    for plan, message in (
        (["1", "2"], "2 stages need 1 names"),
        (["9"], "does not have"),
        (["0"], "in order"),
    ):
        with pytest.raises(StrategyImpossible, match=message):
            chain.split(model, names, 2, plan)


def test_a_parameter_is_in_one_stage() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with pytest.raises(StrategyImpossible, match="are one parameter, but in different stages"):
        chain.split(model, ["0", "1"], 2, None)


# Outside of a job.


def test_outside_of_a_job_a_strategy_divides_nothing() -> None:
    model, loader = Model(), DataLoader(TensorDataset(torch.rand(6, 4), torch.rand(6, 2)), batch_size=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for strategy in ("fsdp", "tensor", "hybrid"):
        prepared = mc.prepare(model, optimizer, loader, strategy=strategy)
        assert prepared[0] is model
        assert prepared[1] is optimizer
        assert len(prepared[2]) == 2
    assert mc.gather(model).keys() == model.state_dict().keys()
    assert "here" in repr(mc.explain(model, optimizer))


def test_outside_of_a_job_a_pipeline_trains_as_it_does_in_one() -> None:
    torch.manual_seed(1)
    model, x, y = Model(), torch.rand(6, 4), torch.rand(6, 2)
    expected = nn.functional.mse_loss(model(x), y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pipeline: Any
    pipeline, optimizer = mc.prepare(model, optimizer, strategy="pipeline", example=x)
    assert mc.prepare(pipeline, strategy="pipeline") is pipeline
    loss = pipeline.step(x, y, nn.functional.mse_loss)
    assert float(loss) == pytest.approx(float(expected), abs=1e-6)
    assert torch.equal(pipeline(x), model(x))
    norm = mc.clip_grad_norm_(model, 0.1)
    optimizer.step()
    assert float(norm) > 0.1
    assert float(nn.functional.mse_loss(model(x), y)) < float(expected)


def test_gradients_are_clipped_like_torch_does_it() -> None:
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other.load_state_dict(one.state_dict())
    for model in (one, other):
        model(torch.ones(1, 3)).square().sum().backward()
    assert mc.clip_grad_norm_(one, 0.01) == torch.nn.utils.clip_grad_norm_(other.parameters(), 0.01)
    assert torch.equal(one.weight.grad, other.weight.grad)  # type: ignore[arg-type]
