"""Which framework trains in a cell, found from what it imports and from what the notebook sends with it."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from minicluster.capture.modules import imports_in, imports_of
from minicluster.capture.payload import CellPayload
from minicluster.wire.training.framework import Framework

KERAS_BACKEND = "KERAS_BACKEND"
_TORCH = frozenset(
    [
        "accelerate",
        "bitsandbytes",
        "deepspeed",
        "fairscale",
        "fastai",
        "ignite",
        "lightning",
        "lightning_fabric",
        "mmcv",
        "mmengine",
        "monai",
        "peft",
        "pytorch_lightning",
        "sentence_transformers",
        "timm",
        "torch",
        "torch_geometric",
        "torchao",
        "torchaudio",
        "torchft",
        "torchmetrics",
        "torchtext",
        "torchvision",
        "trl",
        "ultralytics",
    ]
)
_TORCH_AT_LAST = frozenset({"diffusers", "transformers"})
"""Libraries that train with torch, and whose tokenizers and files cells of other frameworks use, too."""
_JAX = frozenset(
    [
        "brax",
        "chex",
        "diffrax",
        "distrax",
        "equinox",
        "flax",
        "haiku",
        "jax",
        "jaxlib",
        "jaxopt",
        "levanter",
        "maxtext",
        "numpyro",
        "objax",
        "optax",
        "orbax",
        "penzai",
        "rlax",
        "trax",
    ]
)
_TENSORFLOW = frozenset(
    [
        "sonnet",
        "tensorflow",
        "tensorflow_addons",
        "tensorflow_hub",
        "tensorflow_recommenders",
        "tensorflow_text",
        "tf_agents",
        "tf_keras",
        "tf_slim",
    ]
)
"""Not tensorflow_datasets and tensorflow_probability: JAX's cells read their data and use their densities."""
_KERAS = frozenset({"keras", "keras_cv", "keras_hub", "keras_nlp", "keras_tuner"})
_BY_BACKEND = {"jax": Framework.JAX, "tensorflow": Framework.TENSORFLOW, "torch": Framework.TORCH}


@dataclass(frozen=True)
class FoundFramework:
    """What trains in a cell.

    framework: None if nothing of the kind is imported: such a cell runs as those of torch.
    beside: the others that are imported, for which nothing is prepared. environ: variables that its ranks
    need, so that Keras has the backend that it has in the notebook.
    """

    framework: Framework | None = None
    beside: tuple[Framework, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def note(self) -> str:
        """A sentence about the choice between several; "" if there was none."""
        if not self.beside or self.framework is None:
            return ""
        others = " and ".join(self.beside)
        return (
            f"The cell imports {others} beside {self.framework}, which its ranks are made for. "
            f"If {self.beside[0]} trains in it: --framework {self.beside[0]}"
        )


def imports_of_payload(payload: CellPayload) -> set[str]:
    """Return the top-level names that a cell and the modules sent with it import."""
    found = imports_of(ast.parse(payload.source))
    for source in payload.modules.values():
        found |= imports_in(source)
    return found


def note_for_session(found: FoundFramework, ranks: Framework) -> str:
    """Return a sentence if what trains in a cell cannot find the ranks of its session; "" if it can.

    ranks: the framework that the session was started for. JAX finds those of torch, too.
    """
    wanted = found.framework
    if wanted not in (Framework.JAX, Framework.TENSORFLOW) or wanted is ranks:
        return ""
    if (wanted, ranks) == (Framework.JAX, Framework.TORCH):
        return ""
    return (
        f"The cell imports {wanted}, but this session's ranks are made for {ranks}. "
        f"If {wanted} trains in it: %distribute down, then %distribute up --framework {wanted}"
    )


def find_framework(
    modules: Collection[str], line: Mapping[str, str], notebook: Mapping[str, str], chosen: str | None = None
) -> FoundFramework:
    """Find the framework from top-level names of modules. line, notebook: their environment variables.

    chosen: what --framework says. Torch comes first, since what needs it may import the others; after it the
    backend of Keras, where Keras is imported; then JAX, whose cells often read their data by TensorFlow.
    """
    names = {*modules}
    keras = _by_keras(names, {**notebook, **line})
    imported = [framework for framework, found in _imported(names, keras) if found]
    framework = Framework(chosen) if chosen else next(iter(imported), None)
    if framework is None and names & _TORCH_AT_LAST:
        framework = Framework.TORCH
    backend = framework if chosen and framework is not Framework.NONE else keras
    needs_backend = names & _KERAS and backend and KERAS_BACKEND not in line
    return FoundFramework(
        framework,
        () if chosen else tuple(one for one in imported if one is not framework),
        {KERAS_BACKEND: str(backend)} if needs_backend else {},
    )


def _imported(names: set[str], keras: Framework | None) -> list[tuple[Framework, bool]]:
    """Return each framework, in the order of precedence, with whether it is imported."""
    found = {
        Framework.TORCH: bool(names & _TORCH),
        Framework.JAX: bool(names & _JAX),
        Framework.TENSORFLOW: bool(names & _TENSORFLOW),
    }
    if keras is not None:
        found[keras] = True
    # Keras trains with its backend, whatever else the cell imports; but torch may train beside Keras.
    order = sorted(found, key=lambda one: (one is not Framework.TORCH, one is not keras))
    return [(framework, found[framework]) for framework in order]


def _by_keras(names: set[str], environ: Mapping[str, str]) -> Framework | None:
    """Return the backend that Keras has in the notebook; None if the cell does not use Keras."""
    return _BY_BACKEND.get(_backend(environ)) if names & _KERAS else None


def _backend(environ: Mapping[str, str]) -> str:
    """Return Keras's backend as Keras itself finds it: a variable, its settings file, TensorFlow."""
    if backend := environ.get(KERAS_BACKEND):
        return backend
    folder = Path(environ.get("KERAS_HOME") or Path("~/.keras").expanduser())
    try:
        settings = json.loads((folder / "keras.json").read_text())
        return str(settings.get("backend", "tensorflow"))
    except (OSError, ValueError, AttributeError):
        return "tensorflow"
