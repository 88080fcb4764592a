"""Names of data sets, splits, and the checks of every data set."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from probseq.corruptions import CORRUPTIONS
from probseq_apps.data.image_files import IMAGE_INFO
from probseq_apps.data.images import ImageData, load_images
from probseq_apps.data.names import (
    CORRUPTION_NAMES,
    DATA_NAMES,
    DataError,
    check_generation_name,
    data_kind,
    nearest_name,
    own_path,
    tokenizer_choice,
)
from probseq_apps.data.parts import (
    Part,
    hold_out_validation,
    labelled_images,
    permutation,
    stratified,
)


def test_each_known_name_has_a_kind_and_each_corruption_a_function():
    kinds = {name: data_kind(name) for name in DATA_NAMES}
    assert {name for name, kind in kinds.items() if kind == "image"} == {"digits", *IMAGE_INFO}
    assert {name for name, kind in kinds.items() if kind == "text"} == {"cola", "imdb"}
    assert (data_kind("folder:/a/b"), data_kind("csv:x.csv")) == ("image", "text")
    assert str(own_path("folder:/a:b")) == "/a:b"
    assert own_path("digits") is None
    assert tuple(CORRUPTIONS) == CORRUPTION_NAMES
    assert [tokenizer_choice(name) for name in ("words", "bpe:8000")] == [None, 8000]


@pytest.mark.parametrize(
    ("check", "name", "message"),
    [
        (data_kind, "cifar_10", "did you mean 'cifar10'"),
        (data_kind, "CoLA", "did you mean 'cola'"),
        (data_kind, "xyzzy", "'xyzzy'; known: digits, mnist"),
        (data_kind, "csv:", "needs a path after the colon"),
        (check_generation_name, "svhn", "unknown data set for generation"),
        (check_generation_name, "folder:", "needs a path"),
        (tokenizer_choice, "word", "unknown tokenizer 'word'; did you mean 'words'"),
        (tokenizer_choice, "bpe:257", "whole number of at least 258"),
        (tokenizer_choice, "bpe:²", "whole number of at least 258"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(check, name, message):
    with pytest.raises(DataError, match=message):
        check(name)
    assert nearest_name("xyzzy", DATA_NAMES) is None


def test_the_fixed_permutation_never_changes():
    # Another permutation would move images between training and validation of old checkpoints.
    assert permutation(10).tolist() == [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]


@pytest.mark.parametrize(("size", "held"), [(50_000, 5_000), (73_257, 5_000), (25, 2), (3, 0)])
def test_a_tenth_but_at_most_5000_rows_are_held_out(size, held):
    train, validation = hold_out_validation(size)
    assert len(validation) == held
    assert torch.equal(torch.cat((train, validation)).sort().values, torch.arange(size))


def test_a_stratified_split_keeps_the_shares_of_the_classes():
    labels = torch.tensor([0] * 50 + [1] * 20 + [2] * 3)
    parts = stratified(labels, 0.2, ("a", "b", "c"))
    counts = [labels[part].bincount(minlength=3).tolist() for part in parts]
    assert counts == [[30, 12, 1], [10, 4, 1], [10, 4, 1]]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(73))
    with pytest.raises(DataError, match="'rare' has 2 rows"):
        stratified(torch.tensor([0, 0, 0, 1, 1]), 0.2, ("common", "rare"))


def test_digits_are_split_60_20_20_and_scaled_to_bytes():
    data = load_images("digits")
    parts = (data.train, data.validation, data.test)
    assert tuple(map(len, parts)) == (1079, 359, 359)
    # Every digit is there once: the multisets of total brightness agree (16 levels to 0..255).
    theirs = (torch.tensor(load_digits().images) * 255 / 16).round().sum((1, 2))
    ours = torch.cat([part.inputs for part in parts]).double().sum((1, 2, 3))
    assert torch.equal(ours.sort().values, theirs.sort().values)


def test_labels_out_of_range_and_data_without_training_rows_are_refused():
    def part(*labels):
        return Part(torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8), torch.tensor(labels))

    for train, message in (
        (part(0, 1, -1), r"mine: .*0\.\.1.*row 2 has -1 "),
        (part(0, 1, 2), r"mine: .*0\.\.1.*row 2 has 2 "),
        (part(0, 1).rows(slice(0)), "'mine' has no train rows"),
    ):
        with pytest.raises(DataError, match=message):
            ImageData("mine", train, part(0), part(1), (0.0,), (1.0,), class_names=("a", "b"))


def test_float_images_in_0_to_1_become_bytes_in_memory_of_their_own(tmp_path):
    levels = np.array([[[0.0, 1.0], [0.5, 51 / 255]]])
    found = labelled_images(levels, np.array([[3]], np.uint8), tmp_path)
    assert found.inputs.flatten().tolist() == [0, 255, 128, 51]
    assert found.targets.tolist() == [3]
    found = labelled_images(bytes_ := np.ones((1, 8, 8), np.uint8), np.array([1]), tmp_path)
    found.inputs.zero_()
    assert bytes_.all()


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.full((1, 8, 8), np.nan), [0], r"got float64 in nan\.\.nan"),
        (np.full((1, 8, 8), 1.5), [0], r"in 0\.\.1, got float64 in 1\.5"),
        (np.full((1, 8, 8), 256), [0], r"in 0\.\.255 .*got int64 in 256"),
        (np.zeros((2, 8, 8, 4), np.uint8), [0, 0], "must have shape"),
        (np.zeros((0, 8, 8), np.uint8), [], "at least one row"),
        (np.zeros((1, 8, 8), bool), [0], "got bool"),
        (np.zeros((2, 8, 8), np.uint8), [0.0, np.nan], r"integers of shape \(2,\).*float64"),
        (np.zeros((2, 8, 8), np.uint8), [0, 0, 0], r"integers of shape \(2,\).*\(3,\)"),
    ],
)
def test_images_and_labels_of_another_form_are_refused(tmp_path, images, labels, message):
    with pytest.raises(DataError, match=message):
        labelled_images(images, np.array(labels), tmp_path)
