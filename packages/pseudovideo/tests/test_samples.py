import pytest
import torch

from probseq.draws import RowGenerator
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.evaluation import mean_bound
from pseudovideo.hvae import HeatHVAE, LearnedEncoderHVAE
from pseudovideo.pixels import to_bytes, to_unit
from pseudovideo.priors import AutoregressivePrior, MaskedPrior
from pseudovideo.samples import draw_samples, film
from pseudovideo.spec import (
    AutoregressiveConfig,
    HVAEConfig,
    ImageDiffusionConfig,
    MaskedConfig,
    VideoDiffusionConfig,
)

UNET = {
    **{"image_size": 8, "channels": 1, "base_channels": 8, "channel_multipliers": (1, 2)},
    **{"num_res_blocks": 1, "attention_sizes": (4,), "num_heads": 2, "num_groups": 4},
}


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    steps = {"num_steps": 40}
    made = (
        ImageDiffusion(ImageDiffusionConfig(**UNET, **steps)),
        VideoDiffusion(VideoDiffusionConfig(**UNET, **steps, num_frames=4, context=2)),
        LearnedEncoderHVAE(HVAEConfig(**UNET, num_levels=4, sigma_max=5.0)),
    )
    return [model.eval() for model in made]


def generator(seed=5):
    return torch.Generator().manual_seed(seed)


def test_pixels_are_rounded_to_the_nearest_byte_and_noise_beyond_is_clipped():
    pixels = torch.tensor([-2.0, -1.0, 0.6 / 127.5 - 1, 0.0, 1.0, 1.5]).view(1, 1, 1, 6)
    assert to_bytes(pixels).flatten().tolist() == [0, 0, 1, 128, 255, 255]
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert to_unit(every).aminmax() == (-1, 1)
    assert torch.equal(to_bytes(to_unit(every)), every)


def test_images_of_all_batches_and_the_first_videos_are_kept():
    counts, told, own = [], [], torch.Generator()

    class Counter(VideoDiffusion):
        def __init__(self):
            pass

        def sample(self, n, *, batch_size, generator):
            assert (batch_size, generator) == (n, own)
            numbers = torch.arange(sum(counts), sum(counts) + n).view(n, 1, 1, 1, 1)
            counts.append(n)
            # 2.6 levels above the number in the first frame, 0.6 in the last.
            levels = numbers + torch.tensor([2.6, 0.6]).view(1, 2, 1, 1, 1)
            return (levels / 127.5 - 1).expand(n, 2, 1, 4, 4)

    options = {"keep": 10, "batch_size": 7, "progress": told.append, "generator": own}
    images, videos = draw_samples(Counter(), 17, **options)
    assert counts == told == [7, 7, 3]
    assert images[:, 0, 0, 0].tolist() == [number + 1 for number in range(17)]
    assert videos[:, 0, 0, 0, 0].tolist() == [number + 3 for number in range(10)]


def test_images_are_videos_of_one_frame(models):
    images, videos = draw_samples(models[0], 2, generator=generator(), num_steps=3)
    assert torch.equal(videos[:, 0], images)
    drawn = models[0].sample(2, generator=generator(), num_steps=3)
    assert torch.equal(images, to_bytes(drawn))


@pytest.fixture(scope="module")
def priors():
    torch.manual_seed(1)
    sizes = {"codebook_size": 5, "grid": (1, 2, 3), "dim": 8, "depth": 1, "num_heads": 2}
    classes = {"num_classes": 2, "label_dropout": 0.1}
    made = (AutoregressivePrior, AutoregressiveConfig), (MaskedPrior, MaskedConfig)
    return [kind(config(**sizes, **classes)).double().eval() for kind, config in made]


def rows_of(rows, total, seed=5):
    source = RowGenerator()
    source.rows, source.total = rows, total
    source.manual_seed(seed)
    return source


@pytest.mark.slow
@pytest.mark.parametrize("rows", [slice(0, 2), slice(2, 7), slice(7, 7)])
def test_some_rows_of_samples_are_those_of_the_whole_batch(models, priors, rows):
    count = max(1, rows.stop - rows.start)  # the first stands in where there are none
    expected = rows if rows.stop > rows.start else slice(0, 1)
    for model, options in zip(models, ({"num_steps": 3}, {"num_steps": 3}, {}), strict=True):
        whole = model.sample(7, generator=generator(), **options)
        some = model.sample(count, generator=rows_of(rows, 7), batch_size=2, **options)
        torch.testing.assert_close(some, whole[expected], rtol=0, atol=1e-5)
    for prior in priors:
        whole = prior.sample_tokens(7, generator=generator(), guidance=2.0)
        some = prior.sample_tokens(count, generator=rows_of(rows, 7), guidance=2.0)
        assert torch.equal(some, whole[expected])


def test_what_is_measured_of_some_rows_is_that_of_the_whole_batch(models):
    torch.manual_seed(3)
    images, videos = 2 * torch.rand(7, 1, 8, 8) - 1, 2 * torch.rand(7, 4, 1, 8, 8) - 1
    rows = slice(3, 6)

    def measured(values, source):
        image, video, hvae = models
        frames = {"num_samples": 2, "num_steps": 3, "batch_size": 4}
        yield image.bits_per_dim(values(images), generator=source()).total
        yield hvae.bound(values(images), generator=source()).total
        yield video.predict_frames(values(videos), 3, generator=source(), **frames)

    whole = measured(lambda values: values, generator)
    some = measured(lambda values: values[rows], lambda: rows_of(rows, 7))
    for one, other in zip(whole, some, strict=True):
        torch.testing.assert_close(other, one[rows], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_films_end_with_the_samples_of_the_same_draws(models):
    for model, options, done in zip(
        models, ({"num_steps": 3}, {"num_steps": 3}, {}), (3, 9, 4), strict=True
    ):
        found = film(model, 2, generator=generator(), **options)
        drawn = model.sample(2, generator=generator(), batch_size=2, **options)
        assert found.done.tolist() == [*range(done + 1)]
        last = to_bytes(drawn if drawn.ndim == 5 else drawn[:, None])
        assert torch.equal(found.frames[:, -1], last)
    assert len(film(models[1], 1, snapshots=4, generator=generator()).done) == 5


def test_a_films_frames_are_grey_until_their_stage_begins(models):
    frames = film(models[1], 2, generator=generator(), num_steps=3).frames
    grey = [(frames[:, step] == 128).flatten(2).all(2).all(0).tolist() for step in range(10)]
    assert grey[0] == [True] * 4
    for step in range(1, 10):
        begun = 2 if step <= 3 else 3 if step <= 6 else 4
        assert grey[step] == [False] * begun + [True] * (4 - begun)
    # What is finished stays.
    assert torch.equal(frames[:, 3, :2], frames[:, 9, :2])


def test_an_image_models_film_shows_where_each_step_heads_for(models):
    model, states = models[0], {}
    watch = {"watch": lambda left, state: states.setdefault(left, state.double())}
    model.sample(2, num_steps=3, generator=generator(), **watch)
    found, process = film(model, 2, generator=generator(), num_steps=3), model.diffusion.respaced(3)
    for number, left in enumerate((3, 2, 1)):
        times = torch.full((2,), process.timesteps[left - 1] * 1000 / 40)
        with torch.no_grad():
            noise = model.unet(states[left].float(), times).sample[:, :1].double()
        kept = process.alpha_bars[left - 1]
        image = ((states[left] - (1 - kept).sqrt() * noise) / kept.sqrt()).clamp(-1, 1)
        shown = found.frames[:, number, 0].double() / 127.5 - 1
        assert (shown - image).abs().max() < 1.01 / 127.5


def test_the_bound_is_a_mean_over_images_not_over_batches(models, monkeypatch):
    class Found:
        def __init__(self, images):
            self.total = images.flatten(1).mean(1)

    model = HeatHVAE(HVAEConfig(**UNET, num_levels=4, sigma_max=5.0))
    monkeypatch.setattr(type(model), "bound", lambda self, images, *_, **__: Found(images))
    images = torch.randint(0, 256, (7, 1, 8, 8), generator=generator()).to(torch.uint8)
    expected = float((images.double() / 127.5 - 1).mean())
    assert mean_bound(model, images, batch_size=5) == pytest.approx(expected, abs=1e-6)
