"""Small tokenizers and priors on real digits, for tests in this process and in others."""

import os
import time
from functools import partial

import torch

from probseq_apps.data.images import load_generation_data
from probseq_apps.engine.config import TrainConfig
from probseq_apps.engine.fit import fit
from probseq_apps.experiments.reference import numbered
from probseq_apps.experiments.token_models import prior_loss, tokenizer_loss
from pseudovideo.corruptions import PseudoVideoConfig
from pseudovideo.priors.autoregressive import AutoregressiveConfig, AutoregressivePrior
from pseudovideo.priors.masked import MaskedConfig, MaskedPrior
from pseudovideo.tokenizers import TokenizerConfig, build_tokenizer
from pseudovideo.tokenizers.objective import ObjectiveConfig, TokenizerObjective

KINDS = ("tokenizer", "autoregressive", "masked")
LEVELS = 8  # tokens of the priors: the mean grey of each patch, as one of so many levels
NUM_TRAIN = 70
VIDEOS = PseudoVideoConfig(num_frames=4, kind="high-order-noise")


def settings(**changes):
    """Epochs of five steps, the last one of six images; the run ends in the middle of one."""
    values = {
        "steps": 18,
        "batch_size": 16,
        "learning_rate": 3e-3,
        "warmup_steps": 2,
        "weight_decay": 0.01,
        "grad_clip": 1.0,
        "ema_decay": 0.9,
        "select": "last",
        "device": "cpu",
    }
    return TrainConfig.from_dict(values | changes)


def images():
    data = load_generation_data("digits", num_train=NUM_TRAIN)
    return data.train, data.validation[:50]


def tokens(pictures):
    means = torch.nn.functional.avg_pool2d(pictures.float(), 4)
    return (means / 256 * LEVELS).floor().to(torch.int16)


def make_objective(*, frames=4, revive_below=0.5, **changes):
    """Everything that has a state is on: GAN after six steps, R1, noise, revived codes."""
    torch.manual_seed(3)
    sizes = TokenizerConfig(
        num_frames=frames,
        image_size=16,
        channels=1,
        temporal_patch=1 if frames == 1 else 2,
        dim=16,
        num_heads=2,
        spatial_depth=1,
        temporal_depth=int(frames > 1),
        codebook_size=48,
        code_dim=8,
        revive_below=revive_below,
    )
    values = {
        "perceptual_weight": 0.0,
        "adversarial_start": 6,
        "r1_every": 2,
        "discriminator_width": 4,
    }
    return TokenizerObjective(build_tokenizer(sizes), ObjectiveConfig(**(values | changes)))


def make_prior(kind):
    torch.manual_seed(3)
    sizes = {"codebook_size": LEVELS, "grid": (1, 4, 4), "dim": 16, "depth": 1, "num_heads": 2}
    if kind == "masked":
        return MaskedPrior(MaskedConfig(**sizes))
    return AutoregressivePrior(AutoregressiveConfig(**sizes))


def make(kind, seed=0):
    """A model with its loss and its training data."""
    pictures, _ = images()
    if kind == "tokenizer":
        return make_objective(), partial(tokenizer_loss, VIDEOS, seed), numbered(pictures)
    return make_prior(kind), prior_loss, (tokens(pictures),)


def train(kind, folder, *, before_step=None, model=None, **changes):
    made, inner, data = make(kind)
    model, calls = model or made, []

    def loss(*arguments):
        calls.append(None)
        if before_step is not None:
            before_step(len(calls))
        return inner(*arguments)

    fit(model, data, settings(**changes), folder, loss=loss)
    return model


def train_elsewhere(kind, run_dir, delay, environment):
    """Body of another process: train slowly, with the environment that torchrun would give it."""
    os.environ.update({name: str(value) for name, value in environment.items()})
    torch.set_num_threads(1)
    train(kind, run_dir, before_step=lambda step: time.sleep(delay))
