import pytest
import torch

from probseq_apps.data.images import ImageData
from probseq_apps.data.names import DataError
from probseq_apps.data.parts import Part, check_labels, hold_out_validation, permutation, stratified
from probseq_apps.data.sets import load_data


def test_the_fixed_permutation_never_changes():
    # Another permutation would move images between training and validation of old checkpoints.
    assert permutation(10, 0).tolist() == [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]


@pytest.mark.parametrize(("size", "held"), [(50_000, 5_000), (73_257, 5_000), (25, 2), (3, 0)])
def test_a_tenth_but_at_most_5000_rows_are_held_out(size, held):
    train, validation = hold_out_validation(size)
    assert len(validation) == held
    assert torch.equal(torch.cat((train, validation)).sort().values, torch.arange(size))


def test_a_stratified_split_keeps_the_shares_of_the_classes():
    labels = torch.tensor([0] * 50 + [1] * 20 + [2] * 3)
    parts = stratified(labels, (0.2, 0.2), ("a", "b", "c"))
    counts = [labels[part].bincount(minlength=3).tolist() for part in parts]
    assert counts == [[30, 12, 1], [10, 4, 1], [10, 4, 1]]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(73))


def test_a_class_too_small_for_three_parts_is_named():
    with pytest.raises(DataError, match="'rare' has 2 rows"):
        stratified(torch.tensor([0, 0, 0, 1, 1]), (0.2, 0.2), ("common", "rare"))


def test_digits_are_split_60_20_20_and_scaled_to_bytes():
    from sklearn.datasets import load_digits

    data = load_data("digits")
    assert (len(data.train), len(data.validation), len(data.test)) == (1079, 359, 359)
    assert (data.channels, data.image_size, data.num_classes) == (1, 8, 10)
    ours = torch.cat([part.inputs for part in (data.train, data.validation, data.test)])
    theirs = torch.tensor(load_digits().images)
    assert int(ours.max()) == 255
    # Every digit is there once: the multisets of total brightness agree (16 levels to 0..255).
    expected = (theirs * 255 / 16).round().sum((1, 2)).sort().values
    torch.testing.assert_close(ours.double().sum((1, 2, 3)).sort().values, expected)
    again = load_data("digits", seed=7)
    assert torch.equal(data.test.inputs, again.test.inputs)


@pytest.mark.parametrize("label", [-1, 10])
def test_labels_out_of_range_are_refused_with_row_and_source(label):
    labels = torch.zeros(5, dtype=torch.int64)
    labels[3] = label
    with pytest.raises(DataError, match=rf"somewhere: .*0\.\.9.*row 3 has {label} "):
        check_labels(labels, 10, "somewhere")


def test_data_without_training_images_are_refused():
    def part(rows):
        return Part(torch.zeros(rows, 1, 8, 8, dtype=torch.uint8), torch.zeros(rows).long())

    with pytest.raises(DataError, match="no train rows"):
        ImageData("mine", part(0), part(1), part(1), (0.0,), (1.0,), class_names=("a", "b"))
