"""The digits of scikit-learn: 1,797 grey images of 8x8 pixels, no files needed."""

import torch
from sklearn.datasets import load_digits

from probseq_apps.data.containers import ImageData, ImageSplit
from probseq_apps.data.splits import stratified
from probseq_apps.data.transforms import channel_statistics

DIGIT_NAMES = tuple("0123456789")


def digits() -> ImageData:
    """Load the digits, split 60/20/20 with equal shares of the classes.

    The grey levels 0..16 are stretched to 0..255. Mean and standard deviation are those of the
    training part.
    """
    levels, classes = load_digits(return_X_y=True)
    images = (torch.as_tensor(levels) * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)
    labels = torch.as_tensor(classes, dtype=torch.int64)
    rows = stratified(labels, (0.2, 0.2), DIGIT_NAMES)
    train, validation, test = (ImageSplit(images[part], labels[part]) for part in rows)
    mean, std = channel_statistics(train.images)
    return ImageData("digits", train, validation, test, mean, std, DIGIT_NAMES)
