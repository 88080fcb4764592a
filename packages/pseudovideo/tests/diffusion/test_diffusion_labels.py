"""Classes of diffusion models, and guidance towards them."""

import math
from types import SimpleNamespace

import pytest
import torch
from improved_ddpm import randomised
from test_video_sampling import slow_sample
from tiny_video import SIZES, frames, seeded, video_model

from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.diffusion.sampling import conditioned, denoise
from pseudovideo.labels import Classes
from pseudovideo.sampling import draw_noise, draw_seed
from pseudovideo.spec import ImageDiffusionConfig

GUIDED = {"num_classes": 3, "label_dropout": 0.2}


def image_model(**changes):
    torch.manual_seed(0)
    config = ImageDiffusionConfig(**SIZES | {"num_steps": 6} | changes)
    return randomised(ImageDiffusion(config).double().eval(), 0)


def without_class(known, plain, unet):
    """Weights of a model of one class as those of a model of none: the vector joins a bias."""
    weights = known.state_dict()
    vector = weights.pop(f"{unet}.class_embedding.weight")[0]
    name = f"{unet}.time_embedding.linear_2.bias"
    weights[name] = weights[name] + vector
    plain.load_state_dict(weights)
    return plain


@torch.no_grad()
def test_an_image_model_of_one_class_is_a_model_of_none():
    known = image_model(num_classes=1)
    plain = without_class(known, image_model(), "unet")
    images, zeros = frames(3, 1, 8, 8).clamp(-1, 1), torch.zeros(3, dtype=torch.int64)
    t = torch.tensor([0, 2, 5])
    for own, other in zip(
        known.training_losses(images, t, zeros, generator=seeded(1)),
        plain.training_losses(images, t, generator=seeded(1)),
        strict=True,
    ):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-12)
    own, other = (
        known.bits_per_dim(images, zeros, generator=seeded(2)).total,
        plain.bits_per_dim(images, generator=seeded(2)).total,
    )
    torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-12)
    own, other = known.sample(3, generator=seeded(3)), plain.sample(3, generator=seeded(3))
    torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("one_way", [False, True])
@torch.no_grad()
def test_a_video_model_of_one_class_is_a_model_of_none(one_way):
    known = video_model(num_classes=1, one_way=one_way)
    # Not as above: attention between frames is told the time without the class.
    known.network.unet.class_embedding.weight.zero_()
    plain = without_class(known, video_model(one_way=one_way), "network.unet")
    videos, zeros = frames(2, 4, 1, 8, 8), torch.zeros(2, dtype=torch.int64)
    objectives = DiffusionObjective(known), DiffusionObjective(plain)
    own = objectives[0](videos, zeros, generator=seeded(1))
    other = objectives[1](videos, generator=seeded(1))
    for name, value in own.items():
        torch.testing.assert_close(value, other[name], rtol=1e-9, atol=1e-11)
    given = {"num_samples": 2, "num_steps": 3}
    own = known.predict_frames(videos, 3, labels=zeros, generator=seeded(2), **given)
    other = plain.predict_frames(videos, 3, generator=seeded(2), **given)
    torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-11)


@torch.no_grad()
def test_guidance_mixes_the_noise_alone_in_one_call():
    calls = []

    def network(x, times, tokens):
        calls.append(tokens)
        bias = torch.tensor([1.0, 10.0, 100.0])[tokens][:, None, None, None]
        return torch.cat([bias * x, bias * x.square()], dim=1) + times[:, None, None, None]

    x, times, labels = torch.tensor([2.0, 3]).view(2, 1, 1, 1), torch.tensor([0.5, 0.25]), [1, 0]

    def told(guidance):
        classes = Classes(torch.tensor(labels), guidance, none=2)
        return conditioned(network, classes)(x, times).flatten(1).tolist()

    # ε_u + g (ε_c − ε_u), and the variance with the class.
    expected = [[200.5 + 3 * (20.5 - 200.5), 40.5], [300.25 + 3 * (3.25 - 300.25), 9.25]]
    assert told(3.0) == [pytest.approx(row) for row in expected]
    assert told(1.0) == [[20.5, 40.5], [3.25, 9.25]]
    assert told(0.0) == [[200.5, 400.5], [300.25, 900.25]]
    assert [tokens.tolist() for tokens in calls] == [[1, 0, 2, 2], [1, 0], [2, 2]]


class Mixture(torch.nn.Module):
    """E[noise | x_t], with the class or without, of an equal mixture of N(m_k, s_k²)."""

    def __init__(self, means, spreads, alpha_bars):
        super().__init__()
        self.means, self.spreads, self.alpha_bars = means, spreads, alpha_bars
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x, times, class_labels=None, return_dict=False):
        kept = self.alpha_bars[(times * len(self.alpha_bars) / 1000).round().long()][:, None]
        gap = x.flatten(1) - kept.sqrt() * self.means  # (n, K)
        variance = kept * self.spreads**2 + 1 - kept
        log_density = -0.5 * (gap.square() / variance + variance.log())
        each = (1 - kept).sqrt() * gap / variance  # of one class alone
        free = (log_density.softmax(1) * each).sum(1)
        classes = torch.cat([each, free[:, None]], dim=1)
        noise = classes[torch.arange(len(x)), class_labels].view(-1, 1, 1, 1)
        return (torch.cat([noise, torch.zeros_like(noise)], dim=1),)


@pytest.mark.parametrize("guidance", [0.0, 1.0, 2.5])
def test_guided_samples_of_a_mixture_follow_the_guided_score(guidance):
    """DDIM against its formula with scores ∇ log p(x)^{1−g} p(x|k)^g by automatic derivatives."""
    steps, labels = 12, torch.tensor([0, 1, 2, 1, 0])
    means, spreads = torch.tensor([-0.3, 0.05, 0.25]).double(), torch.tensor([0.05, 0.1, 0.08])
    sizes = SIZES | {"image_size": 1, "channel_multipliers": (1,), "attention_sizes": ()}
    config = ImageDiffusionConfig(**sizes | {"num_steps": steps} | GUIDED)
    known = ImageDiffusion(config).double()
    ab = known.diffusion.alpha_bars
    known.unet = Mixture(means, spreads.double(), ab)
    drawn = known.sample(
        5, labels=labels, guidance=guidance, eta=0.0, generator=seeded(0)
    ).flatten()

    start = draw_noise(torch.arange(5), (1, 1, 1), seed=draw_seed(seeded(0)), step=steps)
    x = start.double().flatten()
    for t in reversed(range(steps)):
        at = x.detach().requires_grad_()
        classes = torch.distributions.Normal(
            ab[t].sqrt() * means, (ab[t] * spreads.double() ** 2 + 1 - ab[t]).sqrt()
        ).log_prob(at[:, None])
        free = classes.logsumexp(1) - math.log(3)
        guided = (1 - guidance) * free + guidance * classes[torch.arange(5), labels]
        (score,) = torch.autograd.grad(guided.sum(), at)
        # Tweedie, with the image kept in −1..1, and DDIM's step towards it.
        image = ((x + (1 - ab[t]) * score) / ab[t].sqrt()).clamp(-1, 1)
        eps = (x - ab[t].sqrt() * image) / (1 - ab[t]).sqrt()
        before = ab[t - 1] if t else torch.tensor(1.0).double()
        x = before.sqrt() * image + (1 - before).sqrt() * eps
    torch.testing.assert_close(drawn, x.detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("one_way", [False, True])
@torch.no_grad()
def test_guided_videos_are_those_of_two_passes_without_cache(one_way):
    known = video_model(one_way=one_way, **GUIDED)
    labels, seed = torch.tensor([2, 0]), 11

    drawn = known.sample(2, labels=labels, guidance=1.5, num_steps=3, generator=seeded(seed))
    number = int(torch.randint(2**63 - 1, (), generator=seeded(seed)))
    for sample, label in enumerate(labels):

        def guided(pixels, times, window, label=label):
            told, free = (
                known.network(pixels, times, window, labels=token[None])
                for token in (label, torch.tensor(3))
            )
            noise = free[:, :, :1] + 1.5 * (told[:, :, :1] - free[:, :, :1])
            return torch.cat([noise, told[:, :, 1:]], dim=2)

        slow = SimpleNamespace(config=known.config, diffusion=known.diffusion, network=guided)
        expected = slow_sample(slow, sample, number, num_steps=3, eta=None)
        torch.testing.assert_close(drawn[sample], expected, rtol=1e-9, atol=1e-9)


def test_training_hides_labels_in_train_mode_alone():
    """The losses with hidden labels are those of the tokens that were drawn."""
    known = image_model(num_classes=3, label_dropout=0.5)
    images, t = frames(8, 1, 8, 8).clamp(-1, 1), torch.arange(8) % 6
    labels = torch.arange(8) % 3

    def losses(tokens, *, training=False):
        known.train(training)
        return known.training_losses(images, t, tokens, generator=seeded(5)).mse

    shown, hidden = losses(labels), losses(labels, training=True)
    generator = seeded(5)
    torch.randint(2**63 - 1, (), generator=generator)  # the noise's
    gone = torch.rand(8, generator=generator) < 0.5
    assert 0 < gone.sum() < 8
    torch.testing.assert_close(hidden[~gone], shown[~gone])
    assert (hidden[gone] - shown[gone]).abs().min() > 1e-9


@pytest.mark.usefixtures("plain_calls")
def test_labels_are_refused_by_all_that_takes_them():
    known, plain = image_model(num_classes=3), image_model()
    videos = video_model(num_classes=3)
    images, t = frames(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64)
    clip, wrong = frames(2, 4, 1, 8, 8), torch.tensor([0, 3])
    for refused in (
        lambda: known(images, t.double()),
        lambda: known(images, t.double(), wrong),
        lambda: known.training_losses(images, t),
        lambda: known.sample(2, labels=wrong),
        lambda: known.sample(3, labels=t),
        lambda: known.bits_per_dim(images),
        lambda: plain(images, t.double(), t),
        lambda: plain.training_losses(images, t, t),
        lambda: plain.sample(2, labels=t),
        lambda: videos.training_losses(clip, t),
        lambda: videos.sample(2, labels=wrong),
        lambda: videos.predict_frames(clip, 3, num_samples=1),
        lambda: DiffusionObjective(plain)(clip, t),
    ):
        with pytest.raises(ValueError, match="labels must be"):
            refused()
    for refused in (
        lambda: known.sample(2, labels=t, guidance=2.0),
        lambda: plain.sample(2, guidance=0.0),
        lambda: videos.sample(2, guidance=2.0),
    ):
        with pytest.raises(ValueError, match="guidance must be 1"):
            refused()


@torch.no_grad()
def test_guidance_one_and_zero_are_the_models_with_and_without_the_class():
    known, labels = image_model(**GUIDED), torch.tensor([2, 0, 1])
    start = known.sample(3, labels=labels, generator=seeded(4))
    assert torch.equal(known.sample(3, labels=labels, guidance=1.0, generator=seeded(4)), start)
    noise = draw_noise(torch.arange(3), (1, 8, 8), seed=draw_seed(seeded(4)), step=6).double()
    for guidance, tokens in ((1.0, labels), (0.0, torch.full_like(labels, 3))):
        given = {"labels": labels, "guidance": guidance, "eta": 0.0, "generator": seeded(4)}
        drawn = known.sample(3, **given)

        def told(x, times, tokens=tokens):
            return known(x, times, tokens)

        expected = denoise(told, noise, known.diffusion, step_noise=torch.zeros, eta=0.0)
        assert torch.equal(drawn, expected)
