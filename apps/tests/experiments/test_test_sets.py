from dataclasses import replace

import numpy as np
import pytest

from probseq_apps.data.images import load_images
from probseq_apps.data.names import DataError
from probseq_apps.data.parts import Part
from probseq_apps.experiments.classify import make_test_sets
from probseq_apps.options import Options
from probseq_apps.settings.classify import EvaluationSettings


def make(data, folder=None, **settings):
    return make_test_sets(
        data, EvaluationSettings(shift=True, **settings), Options(data_dir=folder)
    )


def test_images_too_small_to_corrupt_are_refused_before_anything_is_trained():
    data = load_images("digits")
    small = replace(data, test=Part(data.test.inputs[..., :4, :4], data.test.targets))
    with pytest.raises(DataError, match="8x8"):
        make(small)


@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ({}, {"fog", "frost", "snow"}),
        ({"corruptions": ("fog", "contrast")}, {"fog"}),
    ],
)
def test_published_corruptions_are_those_asked_for(tmp_path, asked, listed):
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for name in ("fog", "frost", "snow", "labels"):
        np.save(folder / f"{name}.npy", np.zeros(5, dtype=np.uint8))
    found = make(
        replace(load_images("digits"), name="cifar10"), tmp_path, severities=(1, 5), **asked
    )
    shifted = [name.split("/")[1:] for name in found if name.startswith("cifar-c/")]
    assert {name for name, _ in shifted} == listed
    assert {severity for _, severity in shifted} == {"1", "5"}
    with pytest.raises(DataError, match="none of the corruptions contrast"):
        make(replace(load_images("digits"), name="cifar10"), tmp_path, corruptions=("contrast",))
