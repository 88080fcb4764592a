import pytest
import torch

from probseq_apps.baselines.ensemble import mean_log_probs


def test_an_ensemble_is_the_mean_of_the_members_softmax():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, 4, generator=generator, dtype=torch.float64)
    combined = mean_log_probs(list(logits.log_softmax(-1)))
    torch.testing.assert_close(combined.exp(), logits.softmax(-1).mean(0))


def test_a_member_that_excludes_a_class_does_not_exclude_it_for_all():
    sure = torch.tensor([[0.0, -1e4]], dtype=torch.float64)
    unsure = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    expected = torch.tensor([[0.75, 0.25]], dtype=torch.float64)
    torch.testing.assert_close(mean_log_probs([sure, unsure]).exp(), expected)


def test_an_ensemble_of_nobody_is_refused():
    with pytest.raises(ValueError, match="members"):
        mean_log_probs([])
