"""What is said of made-up numbers, and what is not."""

import pytest

from probseq.summary import summarise
from probseq_apps.report.results import Claim, compare
from probseq_apps.report.tables import Measure

PSNR, FD = Measure("PSNR", "higher", (), " dB"), Measure("FID", "lower")
NAMES = ("1-frame", "8-frame", "8-frame-repeat", "1-frame-patch2")
CLAIM = Claim("8-frame", NAMES[:1], NAMES[2:3], NAMES[3:])
CLOSE = (-0.1, 0.0, 0.1)


def said(*means, measure=PSNR, spread=CLOSE):
    """What is said of rows around their means, one seed for each entry of `spread`."""
    sign = 1.0 if measure.direction == "higher" else -1.0
    rows = {
        name: summarise([None if mean is None else sign * mean + offset for offset in spread])
        for name, mean in zip(NAMES, means, strict=False)
    }
    return compare(CLAIM, rows, measure)


@pytest.mark.parametrize("measure", [PSNR, FD])
@pytest.mark.parametrize(
    ("means", "outcome"),
    [
        ((20.0, 25.0, 21.0, 23.0), "survives"),
        ((20.0, 25.0, 24.95, 23.0), "matched"),
        ((20.0, 25.0, 30.0, 23.0), "matched"),
        ((20.0, 25.0, 21.0, 24.95), "matched"),
        ((20.0, 25.0, None, 30.0), "matched"),
        # Controls that have less prove no gain.
        ((20.0, 25.0, None, 23.0), "better"),
        ((20.0, 25.0), "better"),
        ((24.95, 25.0, 15.0, 15.0), "equal"),
        ((25.0, 20.0, 15.0, 15.0), "worse"),
        # Without the base the controls take its place.
        ((None, 25.0, 21.0), "better"),
        ((None, 25.0, 30.0), "worse"),
    ],
)
def test_a_gain_over_the_base_must_survive_the_controls(measure, means, outcome):
    assert said(*means, measure=measure).endswith(f"({outcome}).")


def test_the_numbers_are_told_with_their_errors():
    # Standard deviation .1 over three seeds.
    assert said(20.0, 25.0, 24.95, 30.0) == (
        "PSNR: 8-frame 25.00±0.06 dB is clearly higher than 1-frame 20.00±0.06 dB, not clearly "
        "different from 8-frame-repeat 24.95±0.06 dB, clearly lower than 1-frame-patch2 "
        "30.00±0.06 dB (matched)."
    )
    assert "not clearly different from 1-frame" in said(20.0, 20.5, spread=(-1, 0, 1))


def test_one_seed_decides_nothing_however_large_the_difference():
    text = said(10.0, 40.0, 50.0, spread=(0.0,))
    assert "8-frame 40.00 dB is higher than 1-frame 10.00 dB, lower than 8-frame-repeat" in text
    assert text.endswith("(undecided).")
    # Numbers that look alike are called the same.
    assert "8-frame 20.00 dB is the same as 1-frame" in said(20.001, 20.002, spread=(0.0,))


def test_rows_without_a_number_are_left_out_and_a_claim_needs_a_good_end():
    assert said(None, 25.0) is said(25.0) is said(25.0, None, 20.0) is None
    assert compare(CLAIM, {"1-frame": summarise([25.0])}, PSNR) is None
    with pytest.raises(ValueError, match="good end, got 'seconds'"):
        said(1.0, 2.0, measure=Measure("seconds"))
