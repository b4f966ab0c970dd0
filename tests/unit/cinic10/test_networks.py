"""Batches of images as input of a network, and the networks."""

from __future__ import annotations

import pytest
import torch

from .pictures import cinic10_data


def test_augmentation_shifts_and_mirrors_each_image_by_itself() -> None:
    torch.manual_seed(0)
    image = torch.arange(1, 3 * 8 * 8 + 1).view(1, 3, 8, 8).to(torch.uint8)
    batch = cinic10_data.augmented(image.expand(400, -1, -1, -1), padding=2)
    padded = torch.nn.functional.pad(image[0], (2, 2, 2, 2))
    possible = [padded[:, top : top + 8, left : left + 8] for top in range(5) for left in range(5)]
    possible += [window.flip(2) for window in possible]
    which = [next(n for n, window in enumerate(possible) if torch.equal(window, got)) for got in batch]
    assert set(which) == set(range(50)), "some shift or mirror image never came"
    torch.manual_seed(0)
    assert torch.equal(batch, cinic10_data.augmented(image.expand(400, -1, -1, -1), padding=2))


def test_normalized_images_have_the_mean_and_deviation_that_were_asked_for() -> None:
    batch = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
    mean = tuple((batch / 255).mean((0, 2, 3)).tolist())
    std = tuple((batch / 255).std((0, 2, 3)).tolist())
    ready = cinic10_data.normalized(batch, mean, std)
    assert ready.dtype == torch.float32
    assert torch.allclose(ready.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(ready.std((0, 2, 3)), torch.ones(3), atol=1e-5)


@pytest.mark.parametrize(("name", "parameters"), [("resnet18", 11_173_962), ("resnet50", 23_520_842)])
def test_a_network_has_the_known_number_of_parameters_and_learns(name: str, parameters: int) -> None:
    torch.manual_seed(0)
    model = cinic10_data.MODELS[name](10)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    images, truth = torch.randn(2, 3, 32, 32), torch.tensor([0, 9])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model(images), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]


def test_the_picture_is_halved_three_times() -> None:
    sizes = []
    model = cinic10_data.resnet18()
    for layer in model:
        layer.register_forward_hook(lambda _layer, _given, made: sizes.append(tuple(made.shape[1:])))
    model(torch.zeros(1, 3, 32, 32))
    stages = [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4), (512, 1, 1), (512,), (10,)]
    assert list(dict.fromkeys(sizes)) == stages
