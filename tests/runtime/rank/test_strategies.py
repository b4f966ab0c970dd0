"""Each strategy on real ranks with Gloo: the losses of one process, and what each rank has."""

from __future__ import annotations

from typing import Any

import pytest

from ..cluster import Cluster
from .divided_model import MODEL, PULLED, beside, some_in_gate

TABLE = {
    "blocks.*.attention.q_proj": "column",
    "blocks.*.attention.k_proj": "column",
    "blocks.*.attention.v_proj": "column",
    "blocks.*.attention.o_proj": "row",
    "blocks.*.up_proj": "column",
    "blocks.*.down_proj": "row",
    "blocks.*.norm1": "sequence",
}
CASES: dict[str, tuple[str, tuple[int, int], int, dict[str, Any]]] = {
    "fsdp": ("fsdp", (3, 1), 3, {}),
    "fsdp, recomputed": ("fsdp", (2, 1), 2, {"activation_checkpointing": True, "plan": ["blocks.*"]}),
    "tensor": ("tensor", (2, 1), 1, {}),
    "tensor, by a table": ("tensor", (1, 4), 1, {"plan": TABLE, "activation_checkpointing": True}),
    "pipeline": ("pipeline", (3, 1), 1, {}),
    "pipeline, gpipe": (
        "pipeline", (2, 1), 1, {"schedule": "gpipe", "microbatches": 3, "plan": ["blocks.1"]}
    ),
    "pipelines": ("pipeline", (2, 2), 2, {"group_size": 2, "activation_checkpointing": True}),
    "hybrid": ("hybrid", (2, 2), 4, {}),
    "hybrid, tensor": ("hybrid", (2, 2), 2, {"plan": TABLE, "activation_checkpointing": ["blocks.0"]}),
}  # fmt: skip
GATE = ("fsdp", "tensor", "pipeline", "hybrid, tensor")


@pytest.mark.parametrize("case", some_in_gate(CASES, GATE))
async def test_a_divided_model_has_the_losses_of_one_process(cluster: Cluster, case: str) -> None:
    strategy, (nodes, ranks_per_node), shares, options = CASES[case]
    source = beside(strategy, shares, **options)
    run = await cluster.run(source, nodes=nodes, ranks_per_node=ranks_per_node, pull=PULLED)
    found = await run.result()
    assert len(found["losses"]) == 5
    assert found["losses"] == pytest.approx(found["expected"], abs=1e-5)
    assert found["norms"] == pytest.approx(found["expected_norms"], rel=1e-4)
    assert found["apart"] < 1e-4
    assert found["apart_moments"] < 1e-4
    assert found["numbers"] == found["expected_numbers"]
    assert f'strategy="{strategy}"' in found["shown"]


EXPLAINED = """
more = {"example": text[:1, :-1]} if STRATEGY == "pipeline" else {}
model, optimizer = mc.prepare(model, optimizer, strategy=STRATEGY, **more)
before = mc.explain(model, optimizer)
x, y = data[:12]
loss = model.step(x, y, loss_of) if STRATEGY == "pipeline" else loss_of(model(x), y)
if STRATEGY != "pipeline":
    loss.backward()
optimizer.step()
after = mc.explain(model, optimizer, measure=True)
table = [dict(zip(after.table.heads, row)) for row in after.table.rows]
notes, html = after.notes, after._repr_html_()
local = sum(one.to_local().nbytes if hasattr(one, "to_local") else one.nbytes
            for one in (model.stage if STRATEGY == "pipeline" else model).parameters())
"""


@pytest.mark.parametrize("strategy", some_in_gate(["fsdp", "tensor", "pipeline"], ["fsdp"]))
async def test_explain_shows_what_is_where_and_what_it_costs(cluster: Cluster, strategy: str) -> None:
    from minicluster.train.strategies.explain import size

    source = MODEL + EXPLAINED.replace("STRATEGY", repr(strategy))
    run = await cluster.run(source, nodes=2, pull=("table", "notes", "html", "local"))
    found = await run.result()
    rows = {row["part"]: row for row in found["table"]}
    assert rows["this rank"]["weights"] == size(found["local"])
    assert "after a step" not in rows["this rank"].values()
    assert "measured between the slowest two nodes" in found["notes"][0]
    assert found["html"].count("<tr>") == len(rows) + 1
    if strategy == "fsdp":
        assert rows["blocks.*"]["where"] == "1/2 on each rank"
        # 4 blocks of 12.7 thousand weights of 4 bytes: gathered twice, and their gradients scattered once.
        assert rows["blocks.*"]["sent in a step"] == size(3 / 2 * 4 * 4 * 12_704)
        assert rows["the rest"]["optimizer"].endswith("kB")
    if strategy == "tensor":
        assert rows["blocks.*.up_proj"]["where"] == "by columns, 1/2 on each rank"
        # The output of a layer that is cut by rows is added up: 12 samples of 6 words.
        assert rows["blocks.*.down_proj"]["sent in a step"] == size(4 * 12 * 6 * 32 * 4)
    if strategy == "pipeline":
        assert rows[next(iter(rows))]["where"] == "stage 0, this rank"


PRECISION = """
model, optimizer = mc.prepare(model, optimizer, strategy="fsdp", mixed_precision=torch.bfloat16)
x, y = data[:12]
output = model(x)
loss_of(output.float(), y).backward()
optimizer.step()
kinds = str(output.dtype), str(model.head.weight.dtype), str(model.head.weight.grad.dtype)
state = mc.gather(model)
whole_kind = str(state["head.weight"].dtype) if state else ""
"""


async def test_mixed_precision_computes_in_16_bits_and_keeps_32(cluster: Cluster) -> None:
    run = await cluster.run(MODEL + PRECISION, nodes=2, pull=("kinds", "whole_kind"))
    found = await run.result()
    assert found["kinds"] == ("torch.bfloat16", "torch.float32", "torch.float32")
    assert found["whole_kind"] == "torch.float32"


SCALED = """
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
whole = copy.deepcopy(model)
whole_optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01)
model, optimizer = mc.prepare(model, optimizer, strategy="fsdp")
losses, expected = [], []
for number in range(4):
    x, y = data[12 * number : 12 * number + 12]
    loss, truth = loss_of(model(x), y), loss_of(whole(x), y)
    losses.append(loss.item())
    expected.append(truth.item())
    whole_optimizer.zero_grad()
    optimizer.zero_grad()
    if number == 1:
        loss = loss * (float("inf") if mc.rank() == 1 else 1.0)
    else:
        truth.backward()
        whole_optimizer.step()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
scale = scaler.get_scale()
"""


@pytest.mark.full("about torch's scaler; the gate has fsdp without it")
async def test_a_scaler_skips_a_step_on_all_ranks_or_on_none(cluster: Cluster) -> None:
    run = await cluster.run(MODEL + SCALED, nodes=2, pull=("losses", "expected", "scale"), gather=("scale",))
    found = await run.result()
    assert found["scale"] == [64.0, 64.0]
    assert found["losses"] == pytest.approx(found["expected"], abs=1e-5)


META = """
torch.manual_seed(100 + mc.rank())
with torch.device("meta"):
    model = Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer = mc.prepare(model, optimizer, strategy="fsdp")
x, y = data[:12]
first = loss_of(model(x), y)
for _ in range(20):
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
first, last = float(first), float(loss)
state = mc.gather(model)
rows_alike = int((state["head.weight"][0] == state["head.weight"][WORDS // 2]).sum()) if state else 0
norm = float(state["norm.weight"].mean()) if state else 0.0
"""


async def test_a_model_without_memory_gets_that_of_its_parts(cluster: Cluster) -> None:
    run = await cluster.run(MODEL + META, nodes=2, pull=("first", "last", "rows_alike", "norm"))
    found = await run.result()
    assert 2.5 < found["first"] < 4.5, "about log(24), as from weights that were drawn"
    assert found["last"] < found["first"] / 2
    assert found["rows_alike"] == 0, "each rank draws numbers of its own"


OWN_WEIGHTS = """
torch.manual_seed(mc.rank())
model = nn.Linear(3, 2)
first = model.weight.detach().clone()
dist.broadcast(first, src=0)
model = mc.prepare(model, strategy="fsdp")
state = mc.gather(model)
same = bool((state["weight"] == first).all()) if state else None
"""


async def test_models_that_ranks_drew_by_themselves_become_rank_0s(cluster: Cluster) -> None:
    run = await cluster.run(MODEL + OWN_WEIGHTS, nodes=3, pull=("same",))
    assert (await run.result())["same"] is True


SCHEDULED = """
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
x, y = data[:12]
loss_of(model(x), y).backward()
optimizer.step()
optimizer.zero_grad()
before = optimizer.state[model.head.weight]["exp_avg"].clone()
prepared, same = mc.prepare(model, optimizer, strategy=STRATEGY)
kept = same is optimizer and (prepared is model or STRATEGY == "pipeline")
schedule.step()
rates = [group["lr"] for group in optimizer.param_groups]
state, optimizer_state = mc.gather(prepared, optimizer)
names = [name for name, _ in Transformer().named_parameters()]
moment = optimizer_state["state"][names.index("head.weight")]["exp_avg"] if state else None
equal = bool((moment == before).all()) if state else None
"""


@pytest.mark.parametrize("strategy", some_in_gate(["fsdp", "tensor", "pipeline"], ["pipeline"]))
async def test_an_optimizer_keeps_its_groups_its_schedule_and_its_state(
    cluster: Cluster, strategy: str
) -> None:
    source = MODEL + SCHEDULED.replace("STRATEGY", repr(strategy))
    if strategy == "pipeline":
        source = source.replace("strategy='pipeline'", "strategy='pipeline', example=x")
    run = await cluster.run(source, nodes=2, pull=("kept", "rates", "equal"))
    assert await run.result() == {"kept": True, "rates": [0.005], "equal": True}


WRONG_CUT = """
class Fixed(Attention):
    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            part(x).view(batch, length, HEADS, -1).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(seen.transpose(1, 2).reshape(batch, length, -1))

for block in model.blocks:
    block.attention = Fixed()
model = mc.prepare(model, strategy="tensor")
model(data[:4][0])
"""


async def test_a_cut_that_changes_the_result_is_refused_at_the_first_step(cluster: Cluster) -> None:
    run = await cluster.run(MODEL + WRONG_CUT, nodes=2)
    error = await run.culprit()
    assert "blocks.0 computes something else in parts than whole" in error.message
    assert "x.view(batch, length, -1, head_size)" in error.hint


REFUSED = {
    "an optimizer of another model": (
        "mc.prepare(model, torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), strategy='fsdp')",
        "The optimizer has parameters that the model does not have",
    ),
    "LBFGS": (
        "mc.prepare(model, torch.optim.LBFGS(model.parameters()), strategy='fsdp')",
        "LBFGS keeps its parameters in `_params`, too",
    ),
    "a scalar": (
        "model.scale = nn.Parameter(torch.tensor(1.0)); mc.prepare(model, strategy='fsdp')",
        "scale has no dimension that could be divided",
    ),
    "a model in DDP": (
        "mc.prepare(nn.parallel.DistributedDataParallel(model), strategy='fsdp')",
        "The model is in DistributedDataParallel",
    ),
    "a compiled module": (
        "mc.prepare(torch.compile(model), strategy='fsdp')",
        "torch.compile(model) gave another module, which cannot be divided",
    ),
    "hybrid without groups": (
        "mc.prepare(model, strategy='hybrid')", 'strategy="hybrid" would divide nothing',
    ),
    "groups that do not fit": (
        "mc.prepare(model, strategy='hybrid', group_size=3)", "2 ranks cannot be put into groups of 3",
    ),
    "an unknown sequence": ("mc.prepare(model, strategy='pipeline')", "is not known"),
    "too few parts": (
        "mc.prepare(nn.Sequential(nn.Linear(2, 2)), strategy='pipeline')", "1 parts, which are too few",
    ),
    "parameters of a pipeline": (
        "mc.prepare(model, strategy='pipeline', example=text[:1, :-1]).parameters()", "has no parameters",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", some_in_gate(REFUSED, ("LBFGS", "parameters of a pipeline")))
async def test_what_cannot_be_divided_is_refused_by_name(cluster: Cluster, case: str) -> None:
    line, message = REFUSED[case]
    run = await cluster.run(MODEL + line, nodes=2)
    assert message in (await run.culprit()).message


async def test_an_option_that_wants_whole_models_is_refused(cluster: Cluster) -> None:
    run = await cluster.run(MODEL + "mc.prepare(model, strategy='fsdp')", nodes=2, comm="bf16")
    error = await run.culprit()
    assert error.message.startswith("StrategyImpossible: --comm bf16 is for DistributedDataParallel")
    assert error.hint == "Leave --comm out, or strategy='fsdp'."


OUTPUT = """
whole = copy.deepcopy(model).eval()
model, optimizer = mc.prepare(model, optimizer, strategy="pipeline", example=text[:1, :-1])
x = text[:10, :-1]
same = float((model.eval()(x) - whole(x)).abs().max())
odd = [float(model.train().step(x[:size], text[:size, 1:], loss_of)) for size in (10, 7, 1)]
expected = [float(loss_of(whole(x[:size]), text[:size, 1:])) for size in (10, 7, 1)]
"""


async def test_a_pipeline_evaluates_and_takes_batches_of_any_size(cluster: Cluster) -> None:
    run = await cluster.run(MODEL + OUTPUT, nodes=3, pull=("same", "odd", "expected"))
    found = await run.result()
    assert found["same"] < 1e-5
    assert found["odd"] == pytest.approx(found["expected"], abs=1e-5)


HOME = """
model, optimizer = mc.prepare(model, optimizer, strategy=STRATEGY, **MORE)
x, y = data[:12]
loss = model.step(x, y, loss_of) if STRATEGY == "pipeline" else loss_of(model(x), y)
if STRATEGY != "pipeline":
    loss.backward()
optimizer.step()
state = mc.gather(model)
"""


@pytest.mark.parametrize("strategy", some_in_gate(["fsdp", "tensor", "pipeline"], ["fsdp", "pipeline"]))
async def test_the_result_has_the_whole_model_and_optimizer(cluster: Cluster, strategy: str) -> None:
    more = "{'example': text[:1, :-1]}" if strategy == "pipeline" else "{}"
    source = MODEL + HOME.replace("STRATEGY", repr(strategy)).replace("MORE", more)
    run = await cluster.run(source, nodes=2, pull=("model", "optimizer", "state"))
    found = await run.result()
    model, optimizer, state = found["model"], found["optimizer"], found["state"]
    assert type(model).__name__ == "Transformer"
    assert {name: tuple(one.shape) for name, one in model.state_dict().items()} == {
        name: tuple(one.shape) for name, one in state.items()
    }
    assert all((one == state[name]).all() for name, one in model.state_dict().items())
    assert optimizer.param_groups[0]["params"][0] is next(model.parameters())
    assert optimizer.state[model.head.weight]["exp_avg"].shape == model.head.weight.shape
    assert not any(module._forward_pre_hooks for module in model.modules())


async def test_a_model_too_large_for_a_result_is_named_with_the_way_to_get_it(cluster: Cluster) -> None:
    source = MODEL + HOME.replace("STRATEGY", "'fsdp'").replace("MORE", "{}") + "\nstate = None\n"
    run = await cluster.run(source, nodes=2, pull=("model",), result_limit_bytes=100_000)
    await run.result()
    (left,) = run.left_behind()
    assert left.name == "model"
    assert "mc.gather(model)" in left.reason
    assert "model stays on the ranks, divided: whole it has" in run.attempt.text(0)


TWICE = {
    "a divided model by another strategy": (
        "mc.prepare(model, strategy='fsdp')",
        "The model is divided by strategy='fsdp'",
    ),
    "a model in DDP": (
        "model = nn.parallel.DistributedDataParallel(model)",
        "The model is in DistributedDataParallel already",
    ),
}


@pytest.mark.parametrize("case", some_in_gate(TWICE, ["a model in DDP"]))
async def test_a_model_has_one_strategy(cluster: Cluster, case: str) -> None:
    line, message = TWICE[case]
    run = await cluster.run(MODEL + line + "\nmc.prepare(model, strategy='localsgd')", nodes=2)
    assert message in (await run.culprit()).message


AGAIN = """
pipeline, optimizer = mc.prepare(model, optimizer, strategy="pipeline", example=text[:1, :-1])
again, same = mc.prepare(model, optimizer, strategy="pipeline")
found = again is pipeline and same is optimizer
"""


async def test_a_model_that_is_divided_already_stays_as_it_is(cluster: Cluster) -> None:
    run = await cluster.run(MODEL + AGAIN, nodes=2, pull=("found",))
    assert (await run.result())["found"] is True


FREED = """
def train():
    own = Transformer()
    another = torch.optim.AdamW(own.parameters(), lr=0.01)
    own, another = mc.prepare(own, another, strategy="fsdp")
    loss_of(own(data[:12][0]), data[:12][1]).backward()
    another.step()
    return own, another if mc.rank() else None

model, kept = train()
"""


async def test_an_optimizer_that_only_some_ranks_still_have_does_not_come(cluster: Cluster) -> None:
    run = await cluster.run(MODEL + FREED, nodes=2, pull=("model",))
    assert type((await run.result())["model"]).__name__ == "Transformer"


@pytest.mark.full("compiling takes half a minute")
async def test_a_model_that_was_compiled_is_divided(cluster: Cluster) -> None:
    source = beside("fsdp", 2).replace(MODEL, MODEL + '\nmodel.compile(backend="aot_eager")\n')
    run = await cluster.run(source, nodes=2, pull=PULLED)
    found = await run.result()
    assert found["losses"] == pytest.approx(found["expected"], abs=1e-5)
    assert found["apart"] < 1e-4


SHAPES = """
class Places(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(LENGTH, WIDTH)

    def forward(self, x):
        return x + self.places(torch.arange(x.shape[1]))

class Positive(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

words = nn.Embedding(WORDS, WIDTH)
model = nn.Sequential(words, Places(), nn.Linear(WIDTH, WORDS))
whole = copy.deepcopy(model)
pipeline = mc.prepare(model, strategy="pipeline")
losses = [float(pipeline.step(text[:size, :-1], text[:size, 1:], loss_of)) for size in range(1, 12)]
expected = [float(loss_of(whole(text[:size, :-1]), text[:size, 1:])) for size in range(1, 12)]
kept = len(pipeline._schedules)
"""


async def test_a_pipeline_takes_many_shapes_and_keeps_memory_for_few(cluster: Cluster) -> None:
    run = await cluster.run(MODEL + SHAPES, nodes=2, pull=("losses", "expected", "kept"))
    found = await run.result()
    assert found["losses"] == pytest.approx(found["expected"], abs=1e-5)
    assert found["kept"] == 8


async def test_a_pipeline_whose_shapes_may_depend_on_values_is_refused(cluster: Cluster) -> None:
    source = SHAPES.replace("Places(), nn.Linear", "Places(), Positive(), nn.Linear")
    run = await cluster.run(MODEL + source, nodes=2)
    message = (await run.culprit()).message
    assert "What goes between stages cannot be told from the shapes of a batch" in message
