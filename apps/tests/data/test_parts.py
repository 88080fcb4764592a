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
    SERIES_NAMES,
    DataError,
    check_generation_name,
    data_kind,
    tokenizer_choice,
    user_path,
)
from probseq_apps.data.parts import (
    Part,
    few_rows,
    hold_out_validation,
    labelled_images,
    permutation,
    stratified,
)
from probseq_apps.data.series import READERS
from probseq_apps.data.sets import load_data, with_labels, without_classes


def test_each_known_name_has_a_kind_and_each_corruption_a_function():
    kinds = {name: data_kind(name) for name in DATA_NAMES}
    assert {name for name, kind in kinds.items() if kind == "image"} == {
        "digits",
        "digit-sets",
        *IMAGE_INFO,
    }
    assert {name for name, kind in kinds.items() if kind == "text"} == {"cola", "imdb"}
    assert set(READERS) == set(SERIES_NAMES)
    assert (data_kind("folder:/a/b"), data_kind("csv:x.csv")) == ("image", "text")
    assert str(user_path("folder:/a:b")) == "/a:b"
    assert user_path("digits") is None
    assert tuple(CORRUPTIONS) == CORRUPTION_NAMES
    assert [tokenizer_choice(name) for name in ("words", "bpe:8000")] == [None, 8000]


@pytest.mark.parametrize(
    ("check", "name", "message"),
    [
        (data_kind, "cifar_10", "did you mean 'cifar10'"),
        (data_kind, "csv:", "needs a path after the colon"),
        (check_generation_name, "svhn", "unknown data set for generation"),
        (tokenizer_choice, "bpe:257", "whole number of at least 258"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(check, name, message):
    with pytest.raises(DataError, match=message):
        check(name)


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


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.full((1, 8, 8), 0.5), [0], r"must be bytes .* got float64 of shape \(1, 1, 8, 8\)"),
        (np.zeros((2, 8, 8, 4), np.uint8), [0, 0], "of shape"),
        (np.zeros((2, 8, 8), np.uint8), [0.0, np.nan], r"integers of shape \(2,\).*float64"),
        (np.zeros((2, 8, 8), np.uint8), [0, 0, 0], r"integers of shape \(2,\).*\(3,\)"),
    ],
)
def test_images_and_labels_of_another_form_are_refused(tmp_path, images, labels, message):
    with pytest.raises(DataError, match=message):
        labelled_images(images, np.array(labels), tmp_path)


def test_few_rows_have_the_shares_of_the_classes_and_are_among_more():
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    before = set()
    for size in (10, 20, 50, 100):
        rows = few_rows(labels, size, "these rows")
        assert (labels[rows].bincount(minlength=3) * 100 // size).tolist() == [60, 30, 10]
        assert before <= set(rows.tolist())
        before = set(rows.tolist())
    with pytest.raises(
        DataError, match="train_size must be at most the 100 of these rows, got 101"
    ):
        few_rows(labels, 101, "these rows")


def test_of_few_labels_the_rest_of_a_set_stays_as_it_is():
    whole = load_data("digits")
    few = with_labels(whole, 50)
    assert (len(few.train), few.mean, few.std) == (50, whole.mean, whole.std)
    assert torch.equal(few.validation.inputs, whole.validation.inputs)
    assert torch.equal(few.test.targets, whole.test.targets)
    assert few.notes[-1] == "trained on 50 of 1,079 examples"


def test_images_of_unknown_classes_are_in_no_normalisation():
    whole = load_data("digits")
    found = without_classes(whole, [0, 3])
    known = (whole.train.targets != 0) & (whole.train.targets != 3)
    pixels = whole.train.inputs[known].double() / 255
    assert found.mean == pytest.approx([float(pixels.mean())])
    assert found.std == pytest.approx([float(pixels.std(correction=0))])
