"""The way of a user: digits, videos, tokenizer, tokens, priors, and new videos."""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from probseq.pretrained import fingerprint
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.pretrained import load_pretrained
from pseudovideo.priors.autoregressive import AutoregressiveConfig, AutoregressivePrior
from pseudovideo.priors.masked import MaskedConfig, MaskedPrior
from pseudovideo.spec import TokenizerConfig
from pseudovideo.token_cache import TokenCache, cached_tokens
from pseudovideo.tokenizers.objective import ObjectiveConfig, TokenizerObjective
from pseudovideo.tokenizers.tokenizer import Tokenizer, build_tokenizer

pytestmark = pytest.mark.slow

BLUR = PseudoVideoConfig(num_frames=4)
TRAIN = 1500


@dataclass
class Trained:
    tokenizer: Tokenizer
    cache: TokenCache
    priors: dict[str, AutoregressivePrior | MaskedPrior]


def optimizer_of(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def train_tokenizer(images: Tensor, *, steps: int) -> Tokenizer:
    torch.manual_seed(0)
    tokenizer = build_tokenizer(
        TokenizerConfig(
            num_frames=4,
            image_size=16,
            channels=1,
            dim=32,
            num_heads=4,
            spatial_depth=1,
            temporal_depth=1,
            codebook_size=64,
            code_dim=8,
        )
    )
    objective = TokenizerObjective(
        tokenizer, ObjectiveConfig(perceptual_weight=0.0, adversarial_weight=0.0)
    )
    optimizer = optimizer_of(objective, 3e-3)
    generator = seeded(1)
    for step in range(steps):
        rows = torch.randint(len(images), (32,), generator=generator)
        videos = pseudo_videos(images[rows], BLUR)
        optimizer.zero_grad()
        objective(videos, step=step, generator=generator)["loss"].backward()
        optimizer.step()
    return tokenizer.eval()


def train_prior(prior: AutoregressivePrior | MaskedPrior, tokens: Tensor, *, steps: int) -> None:
    optimizer = optimizer_of(prior, 5e-3)
    generator = seeded(2)
    for _ in range(steps):
        rows = torch.randint(len(tokens), (64,), generator=generator)
        optimizer.zero_grad()
        prior.loss(tokens[rows]).backward()
        optimizer.step()


@pytest.fixture(scope="module")
def trained(digits: Tensor, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    tokenizer = train_tokenizer(digits[:TRAIN], steps=50)
    cache = cached_tokens(tmp_path_factory.mktemp("tokens"), tokenizer, digits[:TRAIN], BLUR)
    torch.manual_seed(3)
    settings = {
        "codebook_size": cache.grid.codebook_size,
        "grid": cache.grid.shape,
        "tokenizer_fingerprint": cache.tokenizer_fingerprint,
        "dim": 32,
        "depth": 1,
        "num_heads": 4,
    }
    priors = {
        "autoregressive": AutoregressivePrior(AutoregressiveConfig(**settings)),
        "masked": MaskedPrior(MaskedConfig(**settings)),
    }
    for prior in priors.values():
        prior.check_cache(cache)
        train_prior(prior, cache.tokens, steps=50)
    return Trained(tokenizer, cache, priors)


KINDS = pytest.mark.parametrize("kind", ["autoregressive", "masked"])


def test_the_tokenizer_keeps_most_of_unseen_images(trained: Trained, digits: Tensor) -> None:
    unseen = digits[TRAIN:]
    videos = pseudo_videos(unseen, BLUR)
    frames = trained.tokenizer.reconstruct(videos)
    assert frames.shape == videos.shape
    error = (frames[:, -1] - unseen).square().mean()
    mean_image = digits[:TRAIN].mean(0)
    assert error < 0.5 * (unseen - mean_image).square().mean()


@KINDS
def test_priors_know_more_than_the_frequencies_of_tokens(trained: Trained, kind: str) -> None:
    tokens = trained.cache.tokens
    shares = torch.bincount(tokens.flatten().long(), minlength=64).double() / tokens.numel()
    entropy = -(shares * shares.clamp_min(1e-12).log()).sum().item()
    assert 1.0 < entropy < math.log(64)
    torch.manual_seed(0)
    with torch.no_grad():
        loss = trained.priors[kind].loss(tokens).item()
    assert loss < 0.9 * entropy


@KINDS
def test_samples_are_videos_that_sharpen_towards_digits(
    trained: Trained, digits: Tensor, kind: str
) -> None:
    videos = trained.priors[kind].sample(150, trained.tokenizer, generator=seeded(0), batch_size=64)
    assert videos.shape == (150, 4, 1, 16, 16)
    assert videos.abs().max() <= 1.0
    images = videos[:, -1]
    means = torch.stack([images.mean(0).flatten(), digits.mean(0).flatten()])
    assert torch.corrcoef(means)[0, 1] > 0.85
    assert images.std(0).mean() > 0.4 * digits.std(0).mean()
    roughness = videos.diff(dim=-1).abs().mean(dim=(0, 2, 3, 4))
    assert roughness[0] < 0.9 * roughness[-1]


@KINDS
def test_samples_are_those_of_the_seed_and_survive_storage(
    trained: Trained, tmp_path: Path, kind: str
) -> None:
    prior = trained.priors[kind]
    first = prior.sample(5, trained.tokenizer, generator=seeded(7))
    assert torch.equal(prior.sample(5, trained.tokenizer, generator=seeded(7)), first)
    assert not torch.equal(prior.sample(5, trained.tokenizer, generator=seeded(8)), first)
    trained.tokenizer.save_pretrained(tmp_path / "tokenizer")
    prior.save_pretrained(tmp_path / "prior")
    stored = type(prior).from_pretrained(tmp_path / "prior")
    tokenizer = load_pretrained(tmp_path / "tokenizer", Tokenizer)
    assert torch.equal(stored.sample(5, tokenizer, generator=seeded(7)), first)


@KINDS
def test_the_tokenizer_of_another_training_is_refused(
    trained: Trained, digits: Tensor, tmp_path: Path, kind: str
) -> None:
    other = train_tokenizer(digits[:64], steps=1)
    prior = trained.priors[kind]
    assert fingerprint(other) != prior.tokenizer_fingerprint
    with pytest.raises(ValueError, match="tokenizer must be of the tokenizer whose tokens"):
        prior.sample(1, other)
    with pytest.raises(ValueError, match="cache must be of the tokenizer whose tokens"):
        prior.check_cache(cached_tokens(tmp_path, other, digits[:4], BLUR))
