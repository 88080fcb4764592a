"""Images in place of those of recipes."""

import pytest
import torch

from probseq_apps.data.images import GenerationData, PartLabels

SIZES = {
    "gaussian-digits": (1, 8),
    "digits": (1, 16),
    "mnist": (1, 32),
    "cifar10": (3, 32),
    "celeba": (3, 64),
}


@pytest.fixture
def stand_in():
    """Ten images of the size that a data set's have."""

    def make(name, side=None):
        channels, own = SIZES.get(name, (3, 32))
        side = side or own
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (10, channels, side, side), generator=generator)
        labels = PartLabels(*[torch.arange(10)] * 3) if name == "digits" else None
        parts, names = [images.to(torch.uint8)] * 3, (*"0123456789",)
        return GenerationData(name, *parts, labels=labels, class_names=names)

    return make
