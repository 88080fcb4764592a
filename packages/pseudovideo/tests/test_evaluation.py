"""What is measured of reconstructions and of samples, against the same by hand."""

import math

import pytest
import torch

from probseq.metrics.image import RandomConvolution, frechet_distance
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.evaluation import frame_prediction, mean_bound, reconstruction
from pseudovideo.spec import CORRUPTIONS, ImageDiffusionConfig, TokenGrid, VideoDiffusionConfig
from pseudovideo.tokenizers import Tokenizer


def to_unit(images):
    return images.float() / 127.5 - 1


class Levels(Tokenizer):
    """A coder of whole frames: token k of a slot is the k-th level, spread over the frame."""

    grid = TokenGrid(codebook_size=16, shape=(4, 1, 1))

    def __init__(self):
        torch.nn.Module.__init__(self)

    def encode(self, videos):
        mean = videos.mean(dim=(2, 3, 4))
        return ((mean + 1) * 4).round().long().clamp(0, 15)[..., None, None]

    def decode(self, indices):
        return (indices[..., 0, 0] / 4.0 - 1)[..., None, None, None].expand(-1, -1, 1, 8, 8)


def pictures(n=30, seed=0, channels=1):
    generator = torch.Generator().manual_seed(seed)
    bright = torch.randint(0, 256, (n, 1, 1, 1), generator=generator)
    grain = torch.randint(-20, 20, (n, channels, 8, 8), generator=generator)
    return (bright + grain).clamp(0, 255).to(torch.uint8)


def test_reconstruction_is_measured_as_told():
    images, extractor = pictures(), RandomConvolution(1)
    config = PseudoVideoConfig(num_frames=4, kind="high-order-noise")
    found = reconstruction(Levels(), images, config, extractor, seed=3, batch_size=7)

    videos = pseudo_videos(to_unit(images), config, seed=3)
    tokens = Levels().encode(videos)
    frames = Levels().decode(tokens)
    decibels = [
        [
            10 * math.log10(4 / float((a - b).double().square().mean()))
            for a, b in zip(v, f, strict=True)
        ]
        for v, f in zip(videos, frames, strict=True)
    ]
    assert found["psnr"] == pytest.approx(sum(d[-1] for d in decibels) / 30, rel=1e-6)
    assert found["psnr_all_frames"] == pytest.approx(sum(map(sum, decibels)) / 120, rel=1e-6)
    distance = frechet_distance(
        extractor(to_unit(images)).features, extractor(frames[:, -1]).features
    )
    assert found["fd"] == pytest.approx(float(distance), rel=1e-4, abs=1e-6)
    counts = [int((tokens == k).sum()) for k in range(16)]
    assert found["usage"] == sum(count > 0 for count in counts) / 16
    entropy = -sum(c / 120 * math.log(c / 120) for c in counts if c)
    assert found["perplexity"] == pytest.approx(math.exp(entropy), rel=1e-9)
    assert (found["num_images"], found["fd_name"]) == (30, "FD(random convolution)")


def test_an_image_that_comes_back_exactly_leaves_the_mean_undefined():
    images = torch.full((2, 1, 8, 8), 255, dtype=torch.uint8)
    config = PseudoVideoConfig(num_frames=4, kind="repeat")
    found = reconstruction(Levels(), images, config, RandomConvolution(1))
    assert found["psnr"] is None
    assert found["fd"] == pytest.approx(0.0, abs=1e-9)


UNET = {
    **{"image_size": 8, "channels": 1, "base_channels": 8, "channel_multipliers": (1, 2)},
    **{"num_res_blocks": 1, "attention_sizes": (4,), "num_heads": 2, "num_groups": 4},
}


class Knowing(VideoDiffusion):
    """Predicts the true frame times a factor."""

    factor = 1.0

    def predict_frames(self, truth, frame, *, num_samples, **_):
        self.seen = truth
        return self.factor * truth[:, frame, None].expand(-1, num_samples, -1, -1, -1)


@pytest.fixture(scope="module")
def knowing():
    return Knowing(VideoDiffusionConfig(**UNET, num_steps=30, num_frames=4, context=2))


@pytest.mark.parametrize("kind", ["first-order-noise", "high-order-noise"])
def test_exact_errors_are_those_of_dense_gaussian_conditioning(knowing, kind, video_covariance):
    train, videos = pictures(300), PseudoVideoConfig(num_frames=4, kind=kind)
    found = frame_prediction(knowing, videos, train[:4], train, num_samples=2)
    rows = to_unit(train).flatten(1).double()
    mean = rows.mean(0)
    covariance = (rows - mean).T @ (rows - mean) / (len(rows) - 1)
    joint = video_covariance(covariance, videos)
    for place, frame in enumerate((2, 3)):
        given = joint[frame - 2 : frame, :, frame - 2 : frame].reshape(128, 128)
        across = joint[frame, :, frame - 2 : frame].reshape(64, 128)
        rest = joint[frame, :, frame] - across @ torch.linalg.pinv(given, hermitian=True) @ across.T
        assert found["exact"][place] == pytest.approx(float(rest.trace() / 64), rel=1e-6)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_all_kinds_of_videos_are_predicted_and_noise_alone_has_exact_errors(knowing, kind):
    videos, images = PseudoVideoConfig(num_frames=4, kind=kind), pictures(40)
    found = frame_prediction(knowing, videos, images[:2], images, num_samples=2)
    assert found["model"] == [0.0, 0.0]
    assert (found["exact"] is None) == (not kind.endswith("noise"))


def test_a_model_that_knows_the_frames_has_no_error_and_a_blind_one_has_their_square(
    knowing, monkeypatch
):
    videos, images = PseudoVideoConfig(num_frames=4, kind="high-order-blur"), pictures(4)
    found = frame_prediction(knowing, videos, images, images, num_samples=2)
    assert (found["model"], found["exact"], found["frames"]) == ([0.0, 0.0], None, [3, 4])
    monkeypatch.setattr(Knowing, "factor", 0.0)
    blind = frame_prediction(knowing, videos, images, images, num_samples=2)
    squares = knowing.seen.double().square().mean((0, 2, 3, 4))
    assert blind["model"] == pytest.approx(squares[2:].tolist(), rel=1e-6)
    assert torch.equal(knowing.seen[:, -1], to_unit(images))


def test_bits_per_dimension_are_a_mean_over_images_not_over_batches(monkeypatch):
    model = ImageDiffusion(ImageDiffusionConfig(**UNET, num_steps=30))

    class Found:
        def __init__(self, images):
            self.total = images.flatten(1).mean(1)

    monkeypatch.setattr(
        ImageDiffusion, "bits_per_dim", lambda self, images, *_, **__: Found(images)
    )
    found = mean_bound(model, pictures(7))
    assert found == pytest.approx(float(to_unit(pictures(7)).double().mean()), abs=1e-6)
