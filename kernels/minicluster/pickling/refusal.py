"""Why an object cannot be sent to another process, in words, and where in a variable it is."""

from __future__ import annotations

import pickle
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any

SET_UP = "is set up for the processes in which it was made; move the line that makes it into the cell"
OF_ITS_PROCESSES = frozenset(
    {
        "accelerate.accelerator.Accelerator",
        "accelerate.state.AcceleratorState",
        "accelerate.state.GradientState",
        "accelerate.state.PartialState",
        "lightning.fabric.fabric.Fabric",
        "lightning.pytorch.trainer.trainer.Trainer",
        "lightning_fabric.fabric.Fabric",
        "pytorch_lightning.trainer.trainer.Trainer",
        "transformers.trainer.Trainer",
        "transformers.training_args.TrainingArguments",
    }
)
"""If they were sent to the ranks, each rank would train alone, without an error."""
_AROUND = {
    "accelerate.optimizer.AcceleratedOptimizer": "optimizer",
    "accelerate.scheduler.AcceleratedScheduler": "scheduler",
}


def plain_part(obj: object) -> Any:
    """Return the object inside a library's wrapper; None for an object that is no such wrapper."""
    for base in type(obj).__mro__:
        inside = _AROUND.get(f"{base.__module__}.{base.__qualname__}")
        if inside is not None:
            return getattr(obj, inside)
    return None


# Why objects of these types cannot be sent. The libraries are not imported here, so types are given by name.


_ALLOWED = ""
_INSIDE = "make it inside the cell"
_SHARDED = (
    "each rank has a part of it only; `state = mc.gather(model)` inside the cell, on all ranks, gives "
    "rank 0 all of it, and `state, optimizer_state = mc.gather(model, optimizer)` the optimizer's, too"
)
_DEEPSPEED = (
    "its ranks have a part of it each; bring model_engine.module.state_dict() after ZeRO stage 0 to 2, "
    "or call model_engine.save_checkpoint(mc.output())"
)
_REASONS: Mapping[str, str] = {
    "torch.distributed.tensor.DTensor": _SHARDED,
    "torch.distributed.tensor._api.DTensor": _SHARDED,
    "torch.distributed.fsdp._fully_shard._fully_shard.FSDPModule": _SHARDED,
    "torch.distributed.fsdp.FSDPModule": _SHARDED,
    "minicluster.train.strategies.pipeline.LeftOnRanks": _SHARDED,
    "minicluster.train.strategies.pipeline.PipelineModel": _SHARDED,
    "deepspeed.runtime.engine.DeepSpeedEngine": _DEEPSPEED,
    "_io.BytesIO": _ALLOWED,
    "_io.StringIO": _ALLOWED,
    "_io._IOBase": "an open file belongs to one process; open it inside the cell (its path travels)",
    "_thread.lock": f"a lock belongs to one process; {_INSIDE}",
    "_thread.RLock": f"a lock belongs to one process; {_INSIDE}",
    "_thread._local": f"values of a thread belong to one process; {_INSIDE}",
    "weakref.ReferenceType": "a weak reference keeps nothing alive elsewhere; send the object itself",
    "ctypes.CDLL": f"a loaded library belongs to one process; {_INSIDE}",
    "multiprocessing.shared_memory.SharedMemory": "shared memory is of one machine; send its contents",
    "concurrent.futures._base.Executor": f"a pool of processes or threads belongs to one process; {_INSIDE}",
    "multiprocessing.pool.Pool": f"a pool of processes or threads belongs to one process; {_INSIDE}",
    "tqdm.std.tqdm": f"a progress bar belongs to one process; {_INSIDE}",
    "torch.jit._script.ScriptModule": "a scripted module belongs to one process; send the plain one, "
    "and call torch.jit inside the cell",
    "torch.jit.torch.jit.ScriptFunction": "a scripted function belongs to one process; send the plain one, "
    "and call torch.jit inside the cell",
    "threading.Thread": f"a thread belongs to one process; {_INSIDE}",
    "multiprocessing.process.BaseProcess": f"a process handle stays with its parent; {_INSIDE}",
    "subprocess.Popen": f"a process handle stays with its parent; {_INSIDE}",
    "builtins.generator": f"a generator cannot be copied in the middle of its run; {_INSIDE}, or send a list",
    "builtins.coroutine": f"a coroutine cannot be copied in the middle of its run; {_INSIDE}",
    "builtins.async_generator": f"a generator cannot be copied in the middle of its run; {_INSIDE}",
    "builtins.frame": "a stack frame belongs to one process",
    "_socket.socket": f"a socket is an open connection of one process; {_INSIDE}",
    "sqlite3.Connection": f"a database connection belongs to one process; {_INSIDE}",
    "sqlite3.Cursor": f"a database cursor belongs to one process; {_INSIDE}",
    "psycopg.BaseConnection": f"a database connection belongs to one process; {_INSIDE}",
    "psycopg2.extensions.connection": f"a database connection belongs to one process; {_INSIDE}",
    "sqlalchemy.engine.base.Engine": f"a database connection belongs to one process; {_INSIDE}",
    "sqlalchemy.orm.session.Session": f"a database connection belongs to one process; {_INSIDE}",
    "torch.cuda.streams.Stream": f"a CUDA stream belongs to one GPU of one process; {_INSIDE}",
    "torch.cuda.streams.Event": f"a CUDA event belongs to one GPU of one process; {_INSIDE}",
    "torch.cuda.graphs.CUDAGraph": f"a CUDA graph belongs to one GPU of one process; {_INSIDE}",
    "torch.distributed.distributed_c10d.ProcessGroup": "a process group is made anew on the ranks",
    "torch._C._distributed_c10d.ProcessGroup": "a process group is made anew on the ranks",
    "torch.utils.data.dataloader._BaseDataLoaderIter": "an iterator over a loader; send the loader",
    "IPython.core.interactiveshell.InteractiveShell": "the notebook's shell exists only in the notebook",
    "IPython.core.autocall.IPyAutocall": "this name exists only in the notebook",
    "ipywidgets.widgets.widget.Widget": "a widget lives in the notebook's page",
    **dict.fromkeys(OF_ITS_PROCESSES, SET_UP),
}


class KindRefused(pickle.PicklingError):
    """An object of a type that can never be sent was found while pickling."""

    def __init__(self, found: object, reason: str) -> None:
        super().__init__(reason)
        self.found = found
        self.reason = reason


def reason_against(kind: type) -> str:
    """Return why objects of a type cannot be sent; empty if no reason is known."""
    for base in kind.__mro__:
        reason = _REASONS.get(f"{base.__module__}.{base.__qualname__}")
        if reason is not None:
            return reason
    return ""


def reason_of(name: str, value: object, error: BaseException) -> str:
    """Return the error that pickling `value` raised as one sentence for its owner."""
    if isinstance(error, KindRefused) and error.found is value and error.reason == SET_UP:
        return f"{SET_UP}: `{name} = {type(value).__name__}(...)`"
    if isinstance(error, KindRefused):
        path = path_to(value, error.found)
        held = "" if error.found is value else f"holds {name}{path} ({type_name(error.found)}): "
        return held + error.reason
    if isinstance(error, RecursionError) or "recursion" in str(error):
        return "is nested too deeply; send its parts, or make it inside the cell"
    kind = re.search(r"cannot pickle '?([\w.]+)'? object", str(error))
    if kind and kind[1].rpartition(".")[2] != type(value).__name__:
        return f"holds an object of type {kind[1]}, which cannot be copied; make it inside the cell"
    return f"cannot be copied ({type(error).__name__}: {str(error)[:200]}); make it inside the cell"


def type_name(value: object) -> str:
    kind = type(value)
    plain = kind.__module__ in ("builtins", "__main__")
    return kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"


def path_to(root: object, target: object, limit: int = 2000) -> str:
    """Return where `target` is in `root`, as typed after the variable's name; '…' if it is too deep."""
    todo: deque[tuple[object, str]] = deque([(root, "")])
    seen = {id(root)}
    while todo and len(seen) < limit:
        value, path = todo.popleft()
        if value is target:
            return path
        for step, part in _parts(value):
            if id(part) not in seen:
                seen.add(id(part))
                todo.append((part, path + step))
    return "…"


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in list(value.items())[:200])
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(value[:200]))
    if isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            with suppress(ValueError):  # A variable that is not assigned yet.
                yield f"'s variable {name}", cell.cell_contents
    for name in _slots(type(value)):
        if hasattr(value, name):
            yield f".{name}", getattr(value, name)
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, Mapping):
        yield from ((f".{name}", part) for name, part in fields.items())


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ()) if base.__module__ == "__main__" else ()
        yield from (names,) if isinstance(names, str) else names
