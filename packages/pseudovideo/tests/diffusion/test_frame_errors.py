import pytest
import torch

from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.corruptions.gaussian import prediction_errors
from pseudovideo.diffusion.errors import frame_errors

COVARIANCE = torch.tensor(
    [[0.06, 0.03, 0.0, 0.01], [0.03, 0.05, 0.02, 0.0], [0.0, 0.02, 0.04, 0.0], [0.01, 0, 0, 0.01]],
    dtype=torch.float64,
)


def test_a_case_by_hand():
    frame = torch.tensor([[[[1.0, 2.0]]]])
    samples = torch.tensor([[[[[0.0, 2.0]]], [[[1.0, 4.0]]], [[[2.0, 0.0]]]]])
    # Means 1 and 2, variances 1 and 4 over K = 3 samples.
    assert frame_errors(frame, samples).tolist() == pytest.approx([-(1 / 3 + 4 / 3) / 2])


@pytest.mark.parametrize("num_samples", [2, 5])
def test_the_mean_of_the_estimator_is_that_of_the_best_predictor(num_samples, video_covariance):
    # Videos of 2×2 Gaussian images; frame 3 is drawn exactly from its conditional.
    kind = PseudoVideoConfig(num_frames=4, kind="high-order-noise", beta_max=0.3)
    generator = torch.Generator().manual_seed(0)
    count = 20_000
    root = torch.linalg.cholesky(COVARIANCE)
    images = torch.randn(count, 4, generator=generator).double() @ root.T
    images = images.clamp(-1, 1).reshape(count, 1, 2, 2)
    videos = pseudo_videos(images, kind, seed=1)
    K = video_covariance(COVARIANCE, kind)
    exact = prediction_errors(torch.linalg.eigvalsh(COVARIANCE), kind, context=2)
    for frame in (2, 3):
        given = [frame - 2, frame - 1]
        inner = K[given][:, :, given].flatten(2).flatten(0, 1)
        across = K[frame][:, given].flatten(1)
        gain = torch.linalg.solve(inner, across.T).T
        spread = torch.linalg.cholesky(K[frame, :, frame] - gain @ across.T)
        mean = videos[:, given].flatten(1) @ gain.T
        noise = torch.randn(count, num_samples, 4, generator=generator).double()
        samples = (mean[:, None] + noise @ spread.T).reshape(count, num_samples, 1, 2, 2)
        errors = frame_errors(videos[:, frame], samples)
        deviation = float(errors.std() / count**0.5)
        assert float(errors.mean()) == pytest.approx(
            float(exact.next_frame[frame - 1]), abs=4 * deviation
        )
        # What the correction takes off is far more than chance.
        naive = (videos[:, frame] - samples.mean(1)).square().mean()
        assert naive - errors.mean() > 20 * deviation


def test_a_wrong_mean_counts_in_full():
    generator = torch.Generator().manual_seed(0)
    frame = torch.zeros(2_000, 1, 2, 2)
    samples = 0.7 + torch.randn(2_000, 2, 1, 2, 2, generator=generator)
    assert float(frame_errors(frame, samples).mean()) == pytest.approx(0.49, abs=0.05)


def test_what_has_no_variance_is_refused(plain_calls):
    frame = torch.zeros(2, 1, 4, 4)
    with pytest.raises(ValueError, match="samples must be at least 2 of each frame, got 1"):
        frame_errors(frame, torch.zeros(2, 1, 1, 4, 4))
    with pytest.raises(ValueError, match=r"samples must have shape \(b, k, c, h, w\)"):
        frame_errors(frame, torch.zeros(2, 3, 1, 4, 5))
