import pytest
import torch
from torch import nn

from probseq.metrics.image import (
    ClassifierFeatures,
    ModuleFeatures,
    RandomConvolution,
    extract_features,
    frechet_distance,
)


def levels(n=10, channels=1, size=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, channels, size, size), generator=generator).to(torch.uint8)


def unit(images):
    return images.float() / 127.5 - 1


def classifier(dimension=6, classes=4):
    torch.manual_seed(0)
    trunk = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, dimension),
    )
    return trunk, nn.Linear(dimension, classes)


def test_features_and_classes_are_those_of_the_two_parts():
    trunk, head = classifier()
    found = ClassifierFeatures(trunk, head, name="digits")(unit(levels()))
    with torch.no_grad():
        expected = trunk.eval()(unit(levels()))
        torch.testing.assert_close(found.features, expected)
        torch.testing.assert_close(found.probabilities, head(expected).softmax(dim=-1))


def test_features_do_not_depend_on_the_batch_in_training_mode_either():
    trunk, head = classifier()
    extractor = ClassifierFeatures(trunk, head, name="digits")
    nn.ModuleList([extractor]).train()
    x = unit(levels())
    together = extractor(x).features
    torch.testing.assert_close(extractor(x[3:4]).features, together[3:4])
    assert not any(p.requires_grad for p in extractor.parameters())


def test_many_images_go_through_in_batches_and_bytes_are_scaled():
    trunk, head = classifier()
    extractor = ClassifierFeatures(trunk, head, name="digits")
    whole = extractor(unit(levels(n=23)))
    for images in (levels(n=23), unit(levels(n=23))):
        found = extract_features(extractor, images, batch_size=7)
        torch.testing.assert_close(found.features, whole.features)
        torch.testing.assert_close(found.probabilities, whole.probabilities)


def test_random_features_are_the_same_each_time_and_tell_images_apart():
    torch.manual_seed(5)
    one = RandomConvolution(3, seed=1)
    torch.manual_seed(6)
    same, other = RandomConvolution(3, seed=1), RandomConvolution(3, seed=2)
    images = levels(n=300, channels=3)
    found = extract_features(one, images).features
    torch.testing.assert_close(extract_features(same, images).features, found)
    assert not torch.allclose(extract_features(other, images).features, found)
    # A blurred set is further away than another draw of the same.
    blurred = nn.functional.avg_pool2d(unit(levels(n=300, channels=3, seed=1)), 3, 1, 1)
    fresh = extract_features(one, levels(n=300, channels=3, seed=1)).features
    far = extract_features(one, blurred).features
    assert float(frechet_distance(found, far)) > 5 * float(frechet_distance(found, fresh))


def test_bad_images_and_modules_are_refused(plain_calls):
    trunk, head = classifier()
    extractor = ClassifierFeatures(trunk, head, name="digits")
    with pytest.raises(ValueError, match=r"images must lie in -1\.\.1"):
        extractor(levels().float())
    with pytest.raises(ValueError, match="floating-point"):
        extractor(levels())
    with pytest.raises(ValueError, match="images must be finite"):
        extractor(unit(levels()) * torch.nan)
    with pytest.raises(ValueError, match=r"module 'mine' must return shape .*\(10, 5\).*\(10, 6\)"):
        ModuleFeatures(trunk, name="mine", dimension=5)(unit(levels()))
    with pytest.raises(ValueError, match=r"module 'wrong' must return"):
        ClassifierFeatures(trunk, nn.Linear(7, 2), name="wrong")(unit(levels()))
    with pytest.raises(ValueError, match="at least one image"):
        extract_features(extractor, levels(n=0))
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1"):
        extract_features(extractor, levels(), batch_size=0)
