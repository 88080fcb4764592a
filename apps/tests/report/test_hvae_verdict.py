"""What is said of made-up scores, and what is not."""

import pytest

from probseq_apps.report.arm_results import REAL
from probseq_apps.report.hvae_tables import hvae_table, score_measure
from probseq_apps.report.hvae_verdict import encoder_notes, hvae_notes

REAL_IMAGES = {"fd": 1.0, "is": 9.5, "is_std": 0.0, "is_splits": 1, "num_samples": 359}


@pytest.fixture
def scored(hvae_result):
    def make(heat, learned, *, seeds=3):
        return [
            hvae_result(arm, seed, mean + 0.1 * (seed - 1))
            for seed in range(seeds)
            for arm, mean in (("heat", heat), ("learned", learned))
        ]

    return make


@pytest.mark.parametrize(
    ("heat", "learned", "said"),
    [
        (9.3, 7.3, "is clearly better than learned 7.300±0.058"),
        (7.3, 9.3, "is clearly worse than learned 9.300±0.058"),
        (7.35, 7.3, "is not clearly different from learned"),
    ],
)
def test_the_encoders_are_compared_by_their_scores(scored, heat, learned, said):
    results = scored(heat, learned)
    (note,) = encoder_notes(results, score_measure(results))
    assert note.startswith(f"IS(classifier): heat {heat:.3f}±0.058 {said}")


def test_one_seed_decides_nothing(scored):
    results = scored(9.3, 7.3, seeds=1)
    (note,) = encoder_notes(results, score_measure(results))
    assert "clearly" not in note
    assert note.endswith("One seed has no error: nothing is decided.")


def test_scores_come_with_samples_splits_and_a_warning(scored):
    notes = hvae_notes(scored(9.3, 7.3), REAL_IMAGES)
    (bias,) = [note for note in notes if "biased" in note]
    assert "is of 1,000 samples as a mean over 10 splits" in bias
    assert "biased downwards" in bias
    (real,) = [note for note in notes if note.startswith("Real images")]
    assert "9.500 (359 of them, another number than of the samples)" in real


def test_without_classes_there_is_no_score_and_a_reason(hvae_result):
    results = [hvae_result(arm, 0, None) for arm in ("heat", "learned")]
    notes = hvae_notes(results, {**REAL_IMAGES, "is": None})
    assert [note for note in notes if "IS(" in note] == []
    assert any(note.startswith("No inception score") for note in notes)


def test_one_arm_alone_is_compared_with_nothing(hvae_result):
    results = [hvae_result("heat", seed, 9.0) for seed in (0, 1)]
    assert encoder_notes(results, score_measure(results)) == []


def test_the_table_has_both_arms_and_real_images(scored):
    table = hvae_table(scored(9.3, 7.3), REAL_IMAGES)
    assert [row[0] for row in table.rows] == ["heat", "learned", REAL]
    heat, _, real = (dict(zip(table.heads, row, strict=True)) for row in table.rows)
    assert (heat["n"], heat["IS(classifier) ↑"]) == ("3", "9.300±0.058")
    assert (heat["samples"], heat["splits"], heat["levels"]) == ("1,000", "10", "18")
    assert (heat["parameters"], heat["steps"], heat["training s"]) == ("123,456", "1,500", "60")
    assert (real["samples"], real["splits"], real["IS(classifier) ↑"]) == ("359", "1", "9.500")
    assert real["bound (nats/dim) ↓"] == "—"
