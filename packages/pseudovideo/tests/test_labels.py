"""Labels of models with classes: what is refused, what is hidden, and folders."""

import math

import pytest
import torch

from probseq.pretrained import fingerprint
from pseudovideo.diffusion import ImageDiffusion
from pseudovideo.labels import (
    check_labels,
    class_numbers,
    draw_labels,
    dropped_labels,
    sample_classes,
)
from pseudovideo.pretrained import load_pretrained
from pseudovideo.spec import ClassSpec, ImageDiffusionConfig

NONE, PLAIN = ClassSpec(), ClassSpec(num_classes=3)
HIDDEN = ClassSpec(num_classes=3, label_dropout=0.25)
SIZES = {"image_size": 4, "channels": 1, "base_channels": 8, "channel_multipliers": (1, 2)}
SIZES |= {"num_res_blocks": 1, "attention_sizes": (), "num_heads": 2, "num_groups": 4}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def model(**changes):
    torch.manual_seed(0)
    return ImageDiffusion(
        ImageDiffusionConfig(**SIZES, num_steps=6, schedule="cosine", **changes)
    ).eval()


@pytest.mark.parametrize(
    ("spec", "labels", "message"),
    [
        (NONE, torch.zeros(2, dtype=torch.int64), "labels must be None .* got some of shape"),
        (PLAIN, None, r"int64 of shape \(2,\) in 0..2 for a model of num_classes=3, got None"),
        (PLAIN, [0, 1], r"in 0..2 for a model of num_classes=3, got \[0, 1\]"),
        (PLAIN, torch.zeros(3, dtype=torch.int64), r"shape \(2,\) .* got torch.int64 of shape"),
        (PLAIN, torch.zeros(2, 1, dtype=torch.int64), r"got torch.int64 of shape \(2, 1\)"),
        (PLAIN, torch.zeros(2, dtype=torch.int32), "got torch.int32"),
        (PLAIN, torch.zeros(2), "got torch.float32"),
        (PLAIN, torch.tensor([0, 3]), "labels must be from 0 to 2, got 0 to 3"),
        (PLAIN, torch.tensor([-1, 0]), "labels must be from 0 to 2, got -1 to 0"),
        (HIDDEN, torch.tensor([0, 3]), "labels must be from 0 to 2, got 0 to 3"),
    ],
)
@pytest.mark.usefixtures("plain_calls")
def test_labels_that_are_not_the_models_are_refused(spec, labels, message):
    with pytest.raises(ValueError, match=message):
        check_labels(labels, spec, 2)
    if labels is not None:
        with pytest.raises(ValueError, match=message):
            sample_classes(spec, 2, labels, 1.0, generator=None, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("spec", "guidance", "message"),
    [
        (PLAIN, 2.0, "guidance must be 1 for a model .* without|not trained with label_dropout"),
        (PLAIN, 0.0, "not trained with label_dropout"),
        (NONE, 2.0, "not trained with label_dropout"),
        (HIDDEN, -1.0, "guidance must be finite and not negative, got -1.0"),
        (HIDDEN, math.nan, "guidance must be finite and not negative, got nan"),
    ],
)
def test_guidance_that_a_model_was_not_trained_for_is_refused(spec, guidance, message):
    labels = None if spec is NONE else torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        sample_classes(spec, 2, labels, guidance, generator=None, device=torch.device("cpu"))


def test_labels_that_are_not_given_are_drawn_evenly():
    found = sample_classes(
        PLAIN, 30_000, None, 1.0, generator=seeded(0), device=torch.device("cpu")
    ).labels
    share = found.bincount(minlength=3) / len(found)
    # Five standard deviations of a share of a third.
    assert (share - 1 / 3).abs().max() < 5 * math.sqrt(2 / 9 / len(found))


def test_labels_are_drawn_with_the_shares_of_the_training_images_each_from_its_place_alone():
    spec = ClassSpec(num_classes=3, class_counts=(1, 5, 2))
    found = draw_labels(spec, 30_000, seed=4)
    share, wanted = found.bincount(minlength=3) / len(found), torch.tensor([1, 5, 2]) / 8
    # Five standard deviations of a share.
    assert ((share - wanted).abs() < 5 * (wanted * (1 - wanted) / len(found)).sqrt()).all()
    assert torch.equal(draw_labels(spec, 7, seed=4), found[:7])
    assert not torch.equal(draw_labels(spec, 30_000, seed=5), found)


def test_classes_are_found_by_name_else_by_number():
    spec = ClassSpec(num_classes=3, class_names=("cat", "dog", "owl"))
    assert class_numbers(spec, ["2", "cat", "1"]).tolist() == [2, 0, 1]
    assert class_numbers(PLAIN, ["2", "0"]).tolist() == [2, 0]
    with pytest.raises(ValueError, match=r"\(cat, dog, owl\) or by number \(0..2\), got '3'"):
        class_numbers(spec, ["1", "3"])
    # A number is no other class where one is named by a number.
    spec = ClassSpec(num_classes=3, class_names=("cat", "10", "2"))
    assert class_numbers(spec, ["2", "cat"]).tolist() == [2, 0]
    with pytest.raises(ValueError, match=r"by name \(cat, 10, 2\), got '1'"):
        class_numbers(spec, ["2", "1"])
    with pytest.raises(ValueError, match=r"by name \(0, .*, 9, ...\), got '-1'"):
        class_numbers(ClassSpec(num_classes=12), ["-1"])
    with pytest.raises(ValueError, match="labels must be left out for a model without classes"):
        class_numbers(NONE, ["0"])


def test_training_hides_its_share_of_labels_and_nothing_else_does():
    labels = torch.arange(30_000) % 3
    generator = seeded(0)
    learner = model(num_classes=3, label_dropout=0.25).train()
    tokens = dropped_labels(labels, learner, len(labels), generator)
    hidden = tokens == 3
    assert (hidden.double().mean() - 0.25).abs() < 5 * math.sqrt(0.25 * 0.75 / len(labels))
    assert torch.equal(tokens[~hidden], labels[~hidden])
    kept = dropped_labels(labels, learner.eval(), len(labels), None)
    assert torch.equal(kept, labels)
    # Without it no random number is drawn: training without classes stays what it was.
    state = generator.get_state()
    dropped_labels(labels, model(num_classes=3).train(), len(labels), generator)
    assert torch.equal(generator.get_state(), state)


def test_models_with_and_without_classes_come_back(tmp_path):
    named = {"class_names": ("a", "b", "c"), "class_counts": (4, 1, 9)}
    known = model(num_classes=3, label_dropout=0.2, **named)
    for name, one in (("without", model()), ("with", known)):
        one.save_pretrained(tmp_path / name)
        back = load_pretrained(tmp_path / name)
        assert back.config == one.config
        assert fingerprint(back) == fingerprint(one)
    labels = torch.tensor([2, 0])
    drawn = [
        one.sample(2, labels=labels, guidance=1.5, generator=seeded(1))
        for one in (known, load_pretrained(tmp_path / "with"))
    ]
    assert torch.equal(*drawn)
