"""Images in place of those of recipes."""

import pytest
import torch

from probseq_apps.data.images import GenerationData

SIZES = {
    "gaussian-digits": (1, 8),
    "digits": (1, 16),
    "mnist": (1, 32),
    "cifar10": (3, 32),
    "celeba": (3, 64),
}


@pytest.fixture
def stand_in():
    """Two images of the size that a data set's have."""

    def make(name):
        channels, side = SIZES.get(name, (3, 32))
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (2, channels, side, side), generator=generator)
        return GenerationData(name, *[images.to(torch.uint8)] * 3)

    return make
