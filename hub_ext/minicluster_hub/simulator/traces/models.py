"""How many bytes jobs of well-known models exchange in a step: roughly their parameters in float32."""

from __future__ import annotations

from minicluster_hub.simulator.workload import GRADIENT_BYTES

_PARAMETERS_MILLIONS = {
    "a2c": 1.7,
    "a3c": 1.7,
    "alexnet": 61.1,
    "bert": 110.0,
    "cifar10": 11.2,
    "cyclegan": 28.3,
    "deepspeech2": 53.0,
    "dqn": 1.7,
    "gpt2": 124.0,
    "imagenet": 25.6,
    "inception3": 23.8,
    "inception4": 42.7,
    "lm": 84.0,
    "ncf": 31.8,
    "recommendation": 16.0,
    "resnet-18": 11.7,
    "resnet-50": 25.6,
    "resnet18": 11.7,
    "resnet50": 25.6,
    "resnet101": 44.5,
    "resnet152": 60.2,
    "shufflenet_v2_x1_0": 2.3,
    "transformer": 65.0,
    "vgg11": 132.9,
    "vgg16": 138.4,
    "vgg19": 143.7,
    "yolov3": 61.9,
}
"""From the models' papers and torchvision's tables. Pollux names some jobs by data set: the value is that of
the model that Pollux trains on it."""


def gradient_bytes(model: str) -> int:
    """Return the bytes that ranks exchange in a step; for an unknown model, ResNet50's."""
    millions = _PARAMETERS_MILLIONS.get(model.partition(" ")[0].lower())
    return GRADIENT_BYTES if millions is None else round(millions * 4e6)
