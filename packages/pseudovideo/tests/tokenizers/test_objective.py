import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pseudovideo.spec import TokenizerConfig
from pseudovideo.tokenizers.objective import ObjectiveConfig, TokenizerObjective
from pseudovideo.tokenizers.tokenizer import VQVAE, TokenizerOutput, build_tokenizer

SIZES = {"channels": 1, "image_size": 8, "dim": 8, "num_heads": 2, "spatial_depth": 1}
SIZES |= {"codebook_size": 8, "code_dim": 4}


class _Distance(nn.Module):
    """Absolute difference; remembers what it was given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, images, references):
        self.seen.append((images.detach(), references.detach()))
        return (images - references).abs().mean(dim=(1, 2, 3))


class _Shift(VQVAE):
    """Reconstructs all values larger by a constant."""

    def forward(self, videos):
        shift = self.decoder.head.weight.sum() * 0 + self.shift
        zero = videos.new_zeros(())
        indices = torch.zeros(len(videos), 1, 2, 2, dtype=torch.int64)
        return TokenizerOutput(videos + shift, indices, zero, zero, zero)


def _objective(distance=None, *, frames=4, **settings):
    torch.manual_seed(0)
    video = {"num_frames": frames, "temporal_patch": 2, "temporal_depth": 1}
    image = {"num_frames": 1, "temporal_patch": 1, "temporal_depth": 0}
    tokenizer = build_tokenizer(TokenizerConfig(**SIZES, **(image if frames == 1 else video)))
    settings = {"perceptual_weight": 0.0, "discriminator_width": 2} | settings
    return TokenizerObjective(tokenizer, ObjectiveConfig(**settings), distance)


def _shifted(shift, **settings):
    image = {"num_frames": 1, "temporal_patch": 1, "temporal_depth": 0}
    tokenizer = _Shift(TokenizerConfig(**SIZES, **image))
    tokenizer.shift = shift
    settings = {"perceptual_weight": 0.0, "discriminator_width": 2} | settings
    return TokenizerObjective(tokenizer, ObjectiveConfig(**settings))


def _videos(frames=4, *, count=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, frames, 1, 8, 8, generator=generator) * 1.6 - 0.8


def _seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("step", [5, 6])
def test_one_backward_gives_both_networks_the_gradients_of_alternating_steps(step):
    settings = {"adversarial_start": 5, "adversarial_weight": 0.6, "r1_weight": 3.0, "r1_every": 4}
    objective = _objective(_Distance(), frame="last", perceptual_weight=0.5, **settings).double()
    # Large enough, so that the adaptive weight is not at its bound.
    objective.discriminator.logits.weight.data.mul_(30.0)
    reference = copy.deepcopy(objective)
    videos = _videos().double()
    torch.manual_seed(1)  # of the codebook
    parts = objective(videos, step=step, generator=_seeded())
    parts["loss"].backward()

    tokenizer, discriminator = reference.tokenizer, reference.discriminator
    torch.manual_seed(1)
    output = tokenizer(videos)
    decoded, image = output.reconstruction[:, -1], videos[:, -1]
    # LPIPS sees 32×32 pixels and three channels.
    larger = [F.interpolate(x.clamp(-1, 1), (32, 32), mode="bilinear") for x in (decoded, image)]
    faithful = F.mse_loss(output.reconstruction, videos) + 0.5 * F.l1_loss(*larger)
    fooled = -discriminator(decoded).mean()
    last = tokenizer.decoder.head.weight
    slopes = [torch.autograd.grad(x, last, retain_graph=True)[0] for x in (faithful, fooled)]
    adaptive = (slopes[0].norm() / (slopes[1].norm() + 1e-6)).item()
    assert adaptive < 1
    tokenizer_loss = faithful + output.commitment + 0.6 * adaptive * fooled
    expected = torch.autograd.grad(tokenizer_loss, list(tokenizer.parameters()))
    for parameter, slope in zip(objective.tokenizer.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, slope, rtol=1e-6, atol=1e-12)

    real = image.clone().requires_grad_()
    discriminator_loss = (
        F.relu(1 - discriminator(real)).mean() + F.relu(1 + discriminator(decoded.detach())).mean()
    )
    if step == 5:  # every fourth step, from the first one on
        logits = discriminator(real).mean(dim=(1, 2))
        (slope,) = torch.autograd.grad(logits.sum(), real, create_graph=True)
        discriminator_loss = discriminator_loss + 4 * 3.0 / 2 * slope.square().sum() / len(real)
    expected = torch.autograd.grad(discriminator_loss, list(discriminator.parameters()))
    for parameter, slope in zip(objective.discriminator.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, slope, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(
        parts["loss"].detach(), (tokenizer_loss + discriminator_loss).detach(), rtol=1e-6, atol=0
    )
    assert parts["adaptive_weight"].item() == pytest.approx(adaptive, rel=1e-6)


def test_the_game_starts_at_its_step_and_the_log_has_the_same_names_throughout():
    objective = _objective(adversarial_start=2, r1_every=2)
    names, penalties = [], []
    for step in range(6):
        objective.zero_grad()
        parts = objective(_videos(), step=step, generator=_seeded(step))
        parts["loss"].backward()
        names.append(list(parts))
        penalties.append(parts["r1"].item())
        assert all(value.shape == () and value.isfinite() for value in parts.values())
        assert [name for name, value in parts.items() if value.requires_grad] == ["loss"]
        trained = [p.grad is not None for p in objective.discriminator.parameters()]
        assert set(trained) == {step >= 2}
        if step < 2:
            expected = parts["reconstruction"] + parts["commitment"]
            assert torch.equal(parts["loss"], expected)
            assert parts["generator"] == parts["discriminator"] == parts["adaptive_weight"] == 0
    assert names == 6 * [names[0]]
    assert [penalty > 0 for penalty in penalties] == [False, False, True, False, True, False]


def test_all_frames_count_alike():
    objective, videos = _objective(adversarial_weight=0.0).eval(), _videos()
    decoded = objective.tokenizer(videos).reconstruction
    errors = [(decoded[:, t] - videos[:, t]).square().mean().item() for t in range(4)]
    assert objective(videos, step=0)["reconstruction"].item() == pytest.approx(sum(errors) / 4)


def test_each_video_shows_one_random_frame_the_same_of_both_and_by_the_generator():
    distance = _Distance()
    objective = _objective(distance, perceptual_weight=1.0, adversarial_weight=0.0).eval()
    videos = _videos(count=64)
    decoded = objective.tokenizer(videos).reconstruction
    for seed in (0, 0, 1):
        objective(videos, step=0, generator=_seeded(seed))
    chosen = []
    for fakes, reals in distance.seen:
        small = [F.interpolate(x, (32, 32), mode="bilinear") for x in videos.unbind(dim=1)]
        match = torch.stack([(frame - reals[:, :1]).abs().amax(dim=(1, 2, 3)) for frame in small])
        frames = match.argmin(dim=0)
        assert match.amin(dim=0).max() < 1e-5  # frames of other strides may be resized otherwise
        picked = decoded[torch.arange(64), frames]
        expected = F.interpolate(picked.clamp(-1, 1), (32, 32), mode="bilinear")
        torch.testing.assert_close(fakes[:, :1], expected)
        chosen.append(frames)
    assert torch.equal(chosen[0], chosen[1])
    assert not torch.equal(chosen[0], chosen[2])
    assert torch.bincount(chosen[0], minlength=4).min() >= 5


def test_a_generator_alone_decides_and_the_last_frame_needs_none():
    objective, videos = _objective(adversarial_start=0), _videos()
    before = torch.get_rng_state()
    objective.eval()(videos, step=1, generator=_seeded())
    assert torch.equal(torch.get_rng_state(), before)
    objective = _objective(adversarial_start=0, frame="last").eval()
    before = torch.get_rng_state()
    one, other = (objective(videos, step=1)["fake_logits"] for _ in range(2))
    assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_shift_by_a_fifth_is_twenty_decibels_and_a_perfect_copy_is_finite():
    videos = _videos(1)
    parts = _shifted(0.2)(videos, step=0)
    assert parts["psnr"].item() == pytest.approx(20, abs=1e-4)
    assert parts["reconstruction"].item() == pytest.approx(0.04)
    assert _shifted(3.0)(torch.ones_like(videos), step=0)["psnr"].item() > 90  # decoding clamps
    perfect = _shifted(0.0, adversarial_start=0)
    parts = perfect(videos, step=0)
    parts["loss"].backward()
    assert all(value.isfinite() for value in parts.values())
    assert parts["psnr"].item() == pytest.approx(106.02, abs=0.01)
    gradients = [p.grad for p in perfect.parameters() if p.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_the_adaptive_weight_stays_below_the_bound_of_the_settings():
    objective = _objective(adversarial_start=0, adaptive_max=0.001)
    parts = objective(_videos(), step=0, generator=_seeded())
    assert parts["adaptive_weight"].item() == pytest.approx(0.001)


def test_validation_without_gradients_has_no_adaptive_terms():
    objective = _objective(adversarial_start=0).eval()
    with torch.no_grad():
        parts = objective(_videos(), step=0, generator=_seeded())
    expected = parts["reconstruction"] + parts["commitment"] + parts["discriminator"]
    torch.testing.assert_close(parts["loss"], expected)
    assert parts["adaptive_weight"] == parts["r1"] == 0
    assert parts["generator"] != 0


def test_the_perceptual_network_is_no_part_of_the_trained_state():
    network = nn.Sequential(nn.Flatten(), nn.Linear(3, 3))
    objective = _objective(network, perceptual_weight=0.1)
    prefixes = {name.split(".")[0] for name in objective.state_dict()}
    assert prefixes == {"tokenizer", "discriminator"}
    assert {name.split(".")[0] for name, _ in objective.named_parameters()} == prefixes
    without = _objective(network, perceptual_weight=0.0, adversarial_weight=0.0)
    assert without.perceptual is without.discriminator is None
