"""What is said of made-up numbers, and what is not."""

import pytest

from probseq.summary import summarise
from probseq_apps.report.findings import Claim, compare, compare_all
from probseq_apps.report.tables import Measure

PSNR, FD = Measure("PSNR", "higher", (), " dB"), Measure("FID", "lower")
CLAIM = Claim("8-frame", ("1-frame",), ("8-frame-repeat",), ("1-frame-patch2",))
CLOSE = (-0.1, 0.0, 0.1)


def found(numbers, *, claim=CLAIM, measure=PSNR, spread=CLOSE):
    """What is said of rows around their means, one seed for each entry of `spread`."""
    sign = 1.0 if measure is PSNR else -1.0
    rows = {
        name: summarise([None if mean is None else sign * mean + offset for offset in spread])
        for name, mean in numbers.items()
    }
    return compare(claim, rows, measure)


@pytest.mark.parametrize("measure", [PSNR, FD])
@pytest.mark.parametrize(
    ("numbers", "outcome"),
    [
        ((20.0, 25.0, 21.0, 23.0), "survives"),
        ((20.0, 25.0, 24.95, 23.0), "matched"),
        ((20.0, 25.0, 30.0, 23.0), "matched"),
        ((20.0, 25.0, 21.0, 24.95), "matched"),
        ((20.0, 25.0, None, 30.0), "matched"),
        # Controls that have less prove no gain.
        ((20.0, 25.0, None, 23.0), "better"),
        ((20.0, 25.0, None, None), "better"),
        ((24.95, 25.0, 15.0, 15.0), "equal"),
        ((25.0, 20.0, 15.0, 15.0), "worse"),
    ],
)
def test_a_gain_over_the_base_must_survive_the_controls(measure, numbers, outcome):
    names = ("1-frame", "8-frame", "8-frame-repeat", "1-frame-patch2")
    finding = found(dict(zip(names, numbers, strict=True)), measure=measure)
    assert finding.outcome == outcome
    assert finding.text.endswith(f"({outcome}).")


def test_the_numbers_are_told_with_their_errors():
    numbers = {"1-frame": 20.0, "8-frame": 25.0, "8-frame-repeat": 24.95, "1-frame-patch2": 30.0}
    # Standard deviation .1 over three seeds.
    assert found(numbers).text == (
        "PSNR: 8-frame 25.00±0.06 dB is clearly higher than 1-frame 20.00±0.06 dB, not clearly "
        "different from 8-frame-repeat 24.95±0.06 dB, clearly lower than 1-frame-patch2 "
        "30.00±0.06 dB (matched)."
    )


def test_overlapping_errors_are_no_clear_difference():
    finding = found({"1-frame": 20.0, "8-frame": 20.5}, spread=(-1, 0, 1))
    assert finding.outcome == "equal"
    assert "not clearly different from 1-frame" in finding.text


def test_one_seed_decides_nothing_however_large_the_difference():
    finding = found({"1-frame": 10.0, "8-frame": 40.0, "8-frame-repeat": 50.0}, spread=(0.0,))
    assert finding.outcome == "undecided"
    assert "8-frame 40.00 dB is higher than 1-frame 10.00 dB" in finding.text
    assert "lower than 8-frame-repeat 50.00 dB" in finding.text
    assert "clearly" not in finding.text


def test_numbers_of_one_seed_that_look_alike_are_called_the_same():
    finding = found({"1-frame": 20.001, "8-frame": 20.002}, spread=(0.0,))
    assert "8-frame 20.00 dB is the same as 1-frame 20.00 dB" in finding.text


def test_without_the_base_the_controls_take_its_place():
    assert found({"8-frame": 25.0, "8-frame-repeat": 21.0}).outcome == "better"
    assert found({"8-frame": 25.0, "8-frame-repeat": 30.0}).outcome == "worse"


def test_rows_without_a_number_are_left_out():
    assert found({"1-frame": None, "8-frame": 25.0}) is None
    assert found({"8-frame": 25.0}) is None
    assert found({"1-frame": 25.0, "8-frame-repeat": 20.0}) is None
    rows = {"1-frame": summarise([25.0])}
    assert compare_all([CLAIM], rows, PSNR) == []


def test_a_number_without_a_good_end_has_no_claims():
    with pytest.raises(ValueError, match="good end, got 'seconds'"):
        found({"1-frame": 1.0, "8-frame": 2.0}, measure=Measure("seconds"))
