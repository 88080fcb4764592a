import pytest

from probseq_apps.report.arm_results import Measure
from probseq_apps.report.arm_verdict import order_of
from probseq_apps.report.generate_results import FLOOR, groups_of
from probseq_apps.report.generate_verdict import (
    floor_notes,
    stem_notes,
    verdict_notes,
    verdicts,
)
from probseq_apps.report.summary import summarise

PSNR = Measure("PSNR", " dB", "higher", ("reconstruction", "psnr"))
FD = Measure("FID", "", "lower", ("reconstruction", "fd"))
BITS = {"1-frame": 640.0, "8-frame": 2560.0, "8-frame-repeat": 2560.0, "1-frame-patch2": 2560.0}
CLOSE = (-0.1, 0.0, 0.1)


def made_up(numbers, *, stem="plain", spread=CLOSE, bits=BITS, samples=None):
    """Results of each arm around its mean, one for each entry of `spread`."""
    found = []
    for arm, mean in numbers.items():
        for seed, offset in enumerate(spread):
            value = None if mean is None else mean + offset
            result = {
                "arm": arm,
                "stem": stem,
                "seed": seed,
                "frames": 1 if arm.startswith("1-") else int(arm.split("-")[0]),
                "patch": 2 if arm.endswith("patch2") else 4,
                "tokens": 64,
                "bits": bits[arm],
                "parameters": 1000,
                "steps": 100,
                "reconstruction": {
                    "psnr": value,
                    "psnr_all_frames": value,
                    "fd": None if value is None else 100 - value,
                    "fd_name": "FID",
                    "num_images": 50,
                    "usage": 0.5,
                    "perplexity": 20.0,
                },
            }
            if samples and arm in samples:
                result["generation"] = {"masked": {"fd": samples[arm] + offset}}
            found.append(result)
    return found


def verdict(numbers, measure=PSNR, **options):
    (found,) = verdicts(made_up(numbers, **options), measure)
    return found


@pytest.mark.parametrize("measure", [PSNR, FD])
def test_a_gain_over_one_frame_and_all_controls_survives(measure):
    found = verdict(
        {"1-frame": 20.0, "8-frame": 25.0, "8-frame-repeat": 21.0, "1-frame-patch2": 23.0},
        measure,
    )
    assert (found.arm, found.stem, found.state) == ("8-frame", "plain", "survives")
    assert "clearly better than 8-frame-repeat and 1-frame-patch2 too" in found.text


def test_the_numbers_are_told_with_their_errors():
    found = verdict({"1-frame": 20.0, "8-frame": 25.0, "8-frame-repeat": 21.0})
    # Standard deviation .1 over three seeds.
    assert "8-frame 25.00±0.06 dB is clearly better than 1-frame 20.00±0.06 dB" in found.text


@pytest.mark.parametrize("measure", [PSNR, FD])
@pytest.mark.parametrize("control", [24.95, 30.0])
def test_a_gain_that_a_control_has_too_does_not_survive(control, measure):
    found = verdict(
        {"1-frame": 20.0, "8-frame": 25.0, "8-frame-repeat": 21.0, "1-frame-patch2": control},
        measure,
    )
    assert found.state == "fails controls"
    assert "does not survive the controls: it is not clearly better than 1-frame-patch2." in (
        found.text
    )
    relation = "not clearly different from" if control < 25 else "clearly worse than"
    assert f"{relation} 1-frame-patch2" in found.text


def test_overlapping_errors_are_no_clear_difference():
    found = verdict({"1-frame": 20.0, "8-frame": 20.5, "8-frame-repeat": 15.0}, spread=(-1, 0, 1))
    assert found.state == "no gain"
    assert "these runs show no gain" in found.text


def test_a_loss_is_called_a_loss():
    found = verdict({"1-frame": 25.0, "8-frame": 20.0, "8-frame-repeat": 15.0})
    assert found.state == "worse"
    assert "8-frame is clearly worse than 1-frame." in found.text


def test_one_seed_decides_nothing_however_large_the_difference():
    found = verdict({"1-frame": 10.0, "8-frame": 40.0, "8-frame-repeat": 50.0}, spread=(0.0,))
    assert found.state == "undecided"
    assert "nothing is decided" in found.text
    assert "8-frame 40.00 dB is higher than 1-frame 10.00 dB" in found.text
    assert "lower than 8-frame-repeat 50.00 dB" in found.text


def test_numbers_of_one_seed_that_look_alike_are_called_the_same():
    found = verdict({"1-frame": 20.001, "8-frame": 20.002}, spread=(0.0,))
    assert "8-frame 20.00 dB is the same as 1-frame 20.00 dB" in found.text


def test_without_controls_bits_may_be_the_whole_gain():
    found = verdict({"1-frame": 20.0, "8-frame": 25.0})
    assert found.state == "no controls"
    assert "bits may be the whole of it" in found.text


def test_controls_of_fewer_bits_prove_no_gain_and_those_of_more_bits_no_loss():
    bits = {"1-frame": 640.0, "18-frame": 5760.0, "1-frame-patch2": 2560.0}
    found = verdict({"1-frame": 20.0, "18-frame": 25.0, "1-frame-patch2": 22.0}, bits=bits)
    assert found.state == "no controls"
    assert "1-frame-patch2 22.00±0.06 dB (2,560 bits, not 5,760)" in found.text
    found = verdict({"1-frame": 20.0, "18-frame": 25.0, "1-frame-patch2": 27.0}, bits=bits)
    assert found.state == "fails controls"
    bits = {"1-frame": 640.0, "4-frame": 1280.0, "4-frame-repeat": 1280.0, "1-frame-patch2": 2560.0}
    numbers = {"1-frame": 20.0, "4-frame": 25.0, "4-frame-repeat": 21.0, "1-frame-patch2": 30.0}
    assert verdict(numbers, bits=bits).state == "survives"


def test_identical_frames_are_a_control_of_their_own_length_only():
    bits = BITS | {"18-frame": 5760.0, "18-frame-repeat": 5760.0}
    numbers = {"1-frame": 20.0, "8-frame": 25.0, "8-frame-repeat": 21.0}
    numbers |= {"18-frame": 26.0, "18-frame-repeat": 29.0}
    found = verdicts(made_up(numbers, bits=bits), PSNR)
    assert [(v.arm, v.state) for v in found] == [
        ("8-frame", "survives"),
        ("18-frame", "fails controls"),
    ]


@pytest.mark.parametrize(
    ("plain", "layernorm", "said"),
    [
        (20.0, 25.0, "does not survive a plain stem"),
        (25.0, 25.0, "clearly better than 1-frame with either stem"),
        (25.0, 20.0, "with the plain stem only"),
        (20.0, 20.0, "not clearly better than 1-frame with either stem"),
    ],
)
def test_both_stems_are_weighed_against_each_other(plain, layernorm, said):
    results = made_up({"1-frame": 20.0, "8-frame": plain})
    results += made_up({"1-frame": 20.0, "8-frame": layernorm}, stem="layernorm")
    (note,) = stem_notes(verdicts(results, PSNR))
    assert said in note


def test_stems_are_not_weighed_by_one_seed_nor_where_there_is_one():
    results = made_up({"1-frame": 20.0, "8-frame": 25.0}, spread=(0.0,))
    assert stem_notes(verdicts(results, PSNR)) == []
    results += made_up({"1-frame": 20.0, "8-frame": 20.0}, stem="layernorm", spread=(0.0,))
    (note,) = stem_notes(verdicts(results, PSNR))
    assert "one seed doesn't decide" in note


def test_tokenizers_stand_to_patch_k_means_as_the_seeds_tell():
    numbers = {"1-frame": 20.0, "8-frame": 25.0, "8-frame-repeat": 21.0, "1-frame-patch2": 23.0}
    floors = {"1-frame": 22.5, "8-frame": 24.0, "8-frame-repeat": 21.02, "1-frame-patch2": 23.0}
    (note,) = floor_notes(made_up(numbers), made_up(floors, stem=FLOOR))
    assert note == (
        "PSNR against patch-k-means at equal tokens. Clearly below: 1-frame, plain (-2.50 dB). "
        "Not clearly different: 8-frame-repeat, plain (-0.02 dB), 1-frame-patch2, plain. "
        "Clearly above: 8-frame, plain (+1.00 dB)."
    )
    assert floor_notes(made_up(numbers), []) == []


def test_one_seed_decides_nothing_against_patch_k_means():
    results = made_up({"1-frame": 20.0, "8-frame": 25.0, "8-frame-repeat": 21.0}, spread=(0.0,))
    floors = {"1-frame": 22.5, "8-frame": 24.0, "8-frame-repeat": 21.004}
    (note,) = floor_notes(results, made_up(floors, stem=FLOOR, spread=(0.0,)))
    assert note == (
        "PSNR against patch-k-means at equal tokens. Below: 1-frame, plain (-2.50 dB). "
        "Less than 0.005 dB away: 8-frame-repeat, plain. Above: 8-frame, plain (+1.00 dB). "
        "One seed has no error: nothing is decided."
    )


def test_a_difference_below_the_decimals_shown_is_none_even_without_any_spread():
    results = made_up({"1-frame": 20.0}, spread=(0.0, 0.0))
    floors = made_up({"1-frame": 20.004}, stem=FLOOR, spread=(0.0, 0.0))
    assert "Not clearly different: 1-frame, plain." in floor_notes(results, floors)[0]


def test_unequal_bits_are_told_of_one_frame_too():
    found = verdict({"1-frame": 20.0, "8-frame": 25.0, "8-frame-repeat": 21.0})
    assert "1-frame 20.00±0.06 dB (640 bits, not 2,560)" in found.text
    assert "8-frame-repeat 21.00±0.06 dB." in found.text


def test_notes_judge_reconstructions_and_samples_alike():
    numbers = {"1-frame": 20.0, "8-frame": 25.0, "8-frame-repeat": 26.0, "1-frame-patch2": 23.0}
    samples = {"1-frame": 30.0, "8-frame": 10.0, "1-frame-patch2": 20.0}
    notes = verdict_notes(made_up(numbers, samples=samples), [])
    assert [note.partition(",")[0] for note in notes] == [
        "PSNR",
        "FID of reconstructions",
        "FID of samples",
    ]
    assert "does not survive the controls" in notes[0]
    # Identical frames had no prior: only half patches were compared.
    assert "8-frame is clearly better than 1-frame-patch2 too" in notes[2]


def test_arms_without_a_number_are_left_out():
    assert verdicts(made_up({"1-frame": None, "8-frame": 25.0}), PSNR) == []
    assert verdicts(made_up({"8-frame": 25.0}), PSNR) == []
    assert verdicts(made_up({"1-frame": 25.0, "1-frame-patch2": 20.0}), PSNR) == []


def test_orders_follow_the_good_end_and_groups_the_seeds():
    low, high = summarise([1.0, 1.1, 0.9]), summarise([2.0, 2.1, 1.9])
    assert order_of(high, low, PSNR) == "better"
    assert order_of(high, low, FD) == "worse"
    assert order_of(low, low, FD) == "no clear difference"
    results = made_up({"8-frame": 1.0, "1-frame": 2.0})[::-1]
    assert [(g.arm, [r["seed"] for r in g.results]) for g in groups_of(results)] == [
        ("1-frame", [0, 1, 2]),
        ("8-frame", [0, 1, 2]),
    ]
