"""strategy="pipeline": each rank holds some of the model's parts and hands on what it has computed.

The loop of a pipeline is another one: `loss = model.step(inputs, targets, loss_fn)` computes forward and
backward of the batch, cut into microbatches, by a schedule of torch.distributed.pipelining.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from minicluster.train import place
from minicluster.train.strategies.chain import sequence_of, split
from minicluster.train.strategies.divided import Divided, StagedModel, WholeForm, note_part
from minicluster.train.strategies.fsdp import recompute
from minicluster.train.strategies.layout import Layout, grid, share_random_state
from minicluster.train.strategies.options import StrategyImpossible, StrategyOptions
from minicluster.train.strategies.plans import is_on_meta, without_memory

LossFunction = Callable[[Any, Any], torch.Tensor]
_SCHEDULES = 8
"""How many schedules are kept: each is for batches of one shape, and has memory for what it receives."""
_HAS_NOT = ("parameters", "named_parameters", "modules", "zero_grad", "load_state_dict")


class Stage(nn.Module):
    """Some parts of a model, called one after the other. parts: their names and themselves."""

    def __init__(self, parts: Sequence[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self.names = {f"part{number}": name for number, (name, _) in enumerate(parts)}
        for number, (_, part) in enumerate(parts):
            self.add_module(f"part{number}", part)

    def forward(self, given: Any) -> Any:
        for part in self.children():
            given = part(given)
        return given

    def in_whole(self, name: str) -> str:
        """Return the name that one of the stage's parameters or buffers has in the whole model."""
        part, _, rest = name.partition(".")
        return f"{self.names[part]}.{rest}"

    def state_in_whole(self) -> dict[str, Any]:
        return {self.in_whole(name): value for name, value in self.state_dict().items()}


class LeftOnRanks(nn.Module):
    """Base of modules of which this rank has no weights: another rank has that stage."""


@cache
def _left(kind: type) -> type:
    return type(f"Pipeline{kind.__name__}", (LeftOnRanks, kind), {})


class PipelineModel(StagedModel):
    """A model whose stages are on different ranks: what mc.prepare(strategy="pipeline") returns.

    stage: this rank's part, an nn.Module. number: of the stage; stages: how many there are. names: of the
    parts of each stage. It is no nn.Module: a rank cannot compute the model alone,
    and has only its own parameters.
    """

    def __init__(
        self, model: nn.Module, names: list[list[str]], layout: Layout | None, options: StrategyOptions
    ) -> None:
        self.model = model
        self.names = names
        self.stages = len(names)
        self.number = layout.mesh.get_local_rank("stage") if layout else 0
        self.stage: Stage = Stage([(name, model.get_submodule(name)) for name in names[self.number]])
        self.divided: Divided | None = None
        self._group = layout.mesh.get_group("stage") if layout else None
        self._ranks = layout.ranks_of("stage") if layout else (0,)
        self._replicas = layout.mesh.get_group("data") if layout and layout.mesh.shape[0] > 1 else None
        self._microbatches = options.microbatches or 2 * self.stages
        self._gpipe = options.schedule == "gpipe"
        self._loss_fn: LossFunction | None = None
        self._shapes = _Shapes(model, names)
        self._schedules: dict[Any, Any] = {}

    @property
    def is_first(self) -> bool:
        return self.number == 0

    @property
    def is_last(self) -> bool:
        return self.number == self.stages - 1

    def __getattr__(self, name: str) -> Any:
        if name in _HAS_NOT:
            raise AttributeError(
                f"A pipeline has no {name}: a rank holds one stage of the model. This rank's part is "
                "model.stage; mc.clip_grad_norm_(model, 1.0) clips by all stages; mc.gather(model) is all."
            )
        raise AttributeError(f"A pipeline has no {name!r}; this rank's part of the model is model.stage.")

    def __reduce__(self) -> Any:
        raise TypeError("each rank has one stage only; mc.gather(model), on all ranks, brings all of them")

    def train(self, mode: bool = True) -> PipelineModel:
        self.stage.train(mode)
        return self

    def eval(self) -> PipelineModel:
        return self.train(False)

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters and buffers of this rank's stage, by their names in the whole model."""
        return self.stage.state_in_whole()

    def step(self, inputs: torch.Tensor, targets: torch.Tensor, loss_fn: LossFunction) -> torch.Tensor:
        """Compute the gradients of a batch: `loss = model.step(inputs, targets, loss_fn)` on all ranks.

        All ranks of the pipeline give the same batch, as the loader of mc.prepare() does. loss_fn: of output
        and targets, a mean over samples. Returns its mean over the batch, the same on all stages. Gradients
        are added to those that are there: call optimizer.zero_grad() before and optimizer.step() after it.
        """
        count = self._check_batch(inputs, targets)
        inputs, targets = inputs.to(place.torch_device()), targets.to(place.torch_device())
        self._loss_fn = lambda output, target: loss_fn(output, target) / count
        losses: list[torch.Tensor] = []
        if self.stages == 1:
            for some, some_targets in zip(inputs.chunk(count), targets.chunk(count), strict=True):
                losses.append(self._loss_fn(self.stage(some), some_targets))
                losses[-1].backward()
        else:
            given = (inputs,) if self.is_first else ()
            last = {"target": targets, "losses": losses} if self.is_last else {}
            self._schedule(inputs, count, trains=True).step(*given, **last, return_outputs=False)
        self._average_gradients()
        total = torch.stack([loss.detach().float() for loss in losses]).sum() if losses else torch.zeros(())
        return self._told_by_last(total.to(place.torch_device()))

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute the model's output for a batch, without gradients; all ranks get it."""
        count = self._check_batch(inputs, inputs)
        inputs = inputs.to(place.torch_device())
        with torch.no_grad():
            if self.stages == 1:
                return self.stage(inputs)
            given = (inputs,) if self.is_first else ()
            output = self._schedule(inputs, count, trains=False).step(*given)
        form = [(output.shape, output.dtype) if self.is_last else None]
        dist.broadcast_object_list(form, src=self._ranks[-1], group=self._group)
        if not self.is_last:
            shape, dtype = form[0]  # type: ignore[misc]
            output = torch.empty(shape, dtype=dtype, device=place.torch_device())
        return self._told_by_last(output.contiguous())

    def _check_batch(self, inputs: Any, targets: Any) -> int:
        """Return the number of equal microbatches of a batch. Raises StrategyImpossible."""
        if not isinstance(inputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
            raise StrategyImpossible(
                "A pipeline's batch is a tensor of inputs and one of targets, each with a sample in a row.",
                "Put several inputs into one tensor, or use another strategy.",
            )
        if len(inputs) != len(targets) or not len(inputs):
            raise StrategyImpossible(f"{len(inputs)} inputs and {len(targets)} targets are no batch.")
        return next(n for n in range(min(self._microbatches, len(inputs)), 0, -1) if len(inputs) % n == 0)

    def _schedule(self, inputs: torch.Tensor, count: int, *, trains: bool) -> Any:
        key = (tuple(inputs.shape), inputs.dtype, count, trains)
        if key not in self._schedules:
            if len(self._schedules) == _SCHEDULES:
                self._schedules.pop(next(iter(self._schedules)))
            self._schedules[key] = self._fresh_schedule(inputs[: len(inputs) // count], count, trains=trains)
        return self._schedules[key]

    def _fresh_schedule(self, some: torch.Tensor, count: int, *, trains: bool) -> Any:
        """Return a schedule for microbatches like `some`."""
        given, output = self._shapes.of_stage(self.number, some)
        stage = PipelineStage(
            self.stage, self.number, self.stages, place.torch_device(), given, output, group=self._group
        )
        if trains:
            self._note_sizes(given, output, count)
        kind = ScheduleGPipe if self._gpipe or count < self.stages or not trains else Schedule1F1B
        return kind(stage, count, loss_fn=self._loss if trains else None, scale_grads=False)

    def _loss(self, output: Any, target: Any) -> torch.Tensor:
        assert self._loss_fn is not None  # noqa: S101 - step() sets it
        return self._loss_fn(output, target)

    def _note_sizes(self, given: torch.Tensor, output: torch.Tensor, count: int) -> None:
        if self.divided is not None:
            forward = 0 if self.is_last else output.numel() * output.element_size()
            back = 0 if self.is_first else given.numel() * given.element_size()
            self.divided.seen |= {"next": forward * count, "previous": back * count}

    def _average_gradients(self) -> None:
        """Average over the copies of this stage, where there are several pipelines."""
        if self._replicas is not None:
            for parameter in self.stage.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=self._replicas)
                    parameter.grad.div_(self._replicas.size())

    def _told_by_last(self, value: torch.Tensor) -> torch.Tensor:
        if self.stages > 1:
            dist.broadcast(value, src=self._ranks[-1], group=self._group)
        return value


class _Shapes:
    """Finds what goes between stages without computing it: by a copy of the model that has no memory."""

    def __init__(self, model: nn.Module, names: list[list[str]]) -> None:
        whole = without_memory(model)
        self._stages = [[whole.get_submodule(name) for name in stage] for stage in names]

    def of_stage(self, number: int, inputs: torch.Tensor) -> tuple[Any, Any]:
        """Return the input and the output of a stage, as tensors of the meta device."""
        given: Any = inputs.to("meta")
        output = given
        for parts in self._stages[: number + 1]:
            given = output.detach().requires_grad_(output.requires_grad)
            output = _computed(parts, given)
            if not isinstance(output, torch.Tensor):
                raise StrategyImpossible(
                    f"A stage would hand on a {type(output).__name__}, which is to be one tensor.",
                    "Choose other names at which stages begin, by plan=.",
                )
        return given, output


def _computed(parts: Sequence[nn.Module], given: torch.Tensor) -> Any:
    output = given
    try:
        # What a forward makes itself (torch.arange(n)) is then of the meta device, too.
        with torch.device("meta"):
            for part in parts:
                output = part(output)
    except (NotImplementedError, RuntimeError) as error:
        raise StrategyImpossible(
            f"What goes between stages cannot be told from the shapes of a batch: {error}",
            "The forward of a part may depend on the shape of its input, but not on its values.",
        ) from error
    return output


def alone(model: nn.Module, options: StrategyOptions, example: Any) -> PipelineModel:
    """Return a pipeline of one stage, for a process without others. Raises StrategyImpossible."""
    names = sequence_of(model, example)
    return PipelineModel(model.to(place.torch_device()), [names], None, options)


def divide(model: nn.Module, options: StrategyOptions, example: Any) -> tuple[PipelineModel, Divided]:
    """Give each rank a stage of the model. example: what the model gets. Raises StrategyImpossible."""
    if is_on_meta(model):
        raise StrategyImpossible("A model of the meta device has no stages yet.", 'strategy="fsdp" takes it.')
    stages = options.group_size or dist.get_world_size()
    layout = grid("data", "stage", stages, same_samples=True)
    names = split(model, sequence_of(model, example), stages, options.plan)
    whole = WholeForm(model)
    pipeline = PipelineModel(model, names, layout, options)
    recompute(model, options.activation_checkpointing, names[pipeline.number])
    pipeline.stage.to(place.torch_device())
    here = set(pipeline.stage.modules())
    for module in model.modules():
        if module not in here:
            module.__class__ = _left(type(module))
    # What a data set draws is then the same for inputs and targets.
    share_random_state(layout.mesh.get_group("stage"))
    whole.note_what_was_added(model)
    own = pipeline.stage.named_parameters(remove_duplicate=False)
    parameters = {pipeline.stage.in_whole(name): one for name, one in own}
    kept = set(parameters.values())
    whole.free(keep=lambda parameter: parameter in kept)
    divided = Divided(
        strategy="pipeline",
        layout=layout,
        options=options,
        plan=[stage[0] for stage in names[1:]],
        whole=whole,
        state=pipeline.stage.state_in_whole,
        parameters=parameters,
        copies=layout.mesh.shape[0],
        pipeline=weakref.ref(pipeline),
    )
    pipeline.divided = divided
    note_part(pipeline)
    return pipeline, divided
