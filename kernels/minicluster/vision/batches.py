"""What happens to a whole batch at once, on the device where it is."""

from __future__ import annotations

import torch

MEAN = (0.47889522, 0.47227842, 0.43047404)
STD = (0.24205776, 0.23828046, 0.25874835)
"""Of the red, green and blue values of CINIC-10, from its authors (github.com/BayesWatch/cinic-10)."""


def augmented(images: torch.Tensor, padding: int = 4) -> torch.Tensor:
    """Shift each image of a batch (N, C, H, W) by up to `padding` pixels, and mirror half of them.

    What comes in at the edges is black. The choice is drawn from the CPU's random state.
    """
    count, height, width = len(images), images.shape[2], images.shape[3]
    top, left = torch.randint(2 * padding + 1, (2, count)).to(images.device)
    mirrored = (torch.rand(count) < 0.5).to(images.device)
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (N, C, top, left, H, W), nothing copied
    cut = windows[torch.arange(count, device=images.device), :, top, left]
    return torch.where(mirrored[:, None, None, None], cut.flip(3), cut)


def normalized(
    images: torch.Tensor, mean: tuple[float, ...] = MEAN, std: tuple[float, ...] = STD
) -> torch.Tensor:
    """Turn bytes (N, C, H, W) into floats whose channels have the mean 0 and the deviation 1."""
    scale = 1 / (255 * torch.tensor(std, device=images.device))
    lifecycle = torch.tensor(mean, device=images.device) / torch.tensor(std, device=images.device)
    return images * scale[:, None, None] - lifecycle[:, None, None]
