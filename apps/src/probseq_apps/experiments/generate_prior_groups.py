"""Settings of priors, sampling and evaluation in `probseq generate`; importable without torch.

Their docstrings are the command line's help. The numbers of the thesis are those of section 5.3
and of tables D.1-D.3.
"""

from dataclasses import dataclass, field
from typing import Literal

from probseq_apps.engine.config import TrainConfig
from probseq_apps.experiments.checks import at_least, not_negative, positive, unique
from probseq_apps.experiments.generate_groups import (
    CHECKPOINT_EVERY,
    FeatureSettings,
    MachineSettings,
    StemName,
)

PriorName = Literal["autoregressive", "masked"]
ArmKind = Literal["frames", "patch", "repeat"]


@dataclass(frozen=True, kw_only=True)
class AutoregressiveSettings:
    """Autoregressive prior: ImageGPT and VideoGPT."""

    ar_dim: int = 144
    """Width."""
    ar_depth: int = 8
    """Blocks."""
    ar_num_heads: int = 4
    """Attention heads; must divide the width."""
    ar_steps: int = 100_000
    """Optimizer steps."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        _check_prior("ar", self.ar_dim, self.ar_depth, self.ar_num_heads, self.ar_steps)


@dataclass(frozen=True, kw_only=True)
class MaskedSettings:
    """Masked prior: MaskGIT and Phenaki."""

    masked_dim: int = 512
    """Width."""
    masked_depth: int = 6
    """Blocks."""
    masked_num_heads: int = 8
    """Attention heads; must divide the width."""
    masked_steps: int = 200_000
    """Optimizer steps."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        _check_prior(
            "masked",
            self.masked_dim,
            self.masked_depth,
            self.masked_num_heads,
            self.masked_steps,
        )


@dataclass(frozen=True, kw_only=True)
class PriorTraining:
    """Training of priors: AdamW with cosine decay."""

    prior_batch_size: int = 64
    """Token grids per step."""
    prior_learning_rate: float = 1e-4
    """Step size after the warm-up."""
    prior_warmup_steps: int = 1000
    """Steps in which the step size rises from zero."""
    prior_weight_decay: float = 0.01
    """Decoupled weight decay."""
    prior_ema_decay: float | None = None
    """Decay of a moving average of the weights, which then is what is stored."""

    def __post_init__(self) -> None:
        """Refuse what `TrainConfig` refuses.

        Raises:
            ValueError: names the setting.
        """
        at_least("prior_batch_size", self.prior_batch_size, 1)
        at_least("prior_warmup_steps", self.prior_warmup_steps, 0)
        positive("prior_learning_rate", self.prior_learning_rate)
        not_negative("prior_weight_decay", self.prior_weight_decay)
        if self.prior_ema_decay is not None and not 0.0 < self.prior_ema_decay < 1.0:
            raise ValueError(f"prior_ema_decay must be in (0, 1), got {self.prior_ema_decay}")

    def train_config(self, machine: MachineSettings, steps: int, *, seed: int) -> TrainConfig:
        """Settings of the training loop for one prior.

        Raises:
            ValueError: the warm-up is longer than the training.
        """
        if self.prior_warmup_steps >= steps:
            raise ValueError(
                f"prior_warmup_steps must be less than the {steps} steps of a prior, "
                f"got {self.prior_warmup_steps}"
            )
        return TrainConfig(
            steps=steps,
            batch_size=self.prior_batch_size,
            learning_rate=self.prior_learning_rate,
            final_learning_rate=0.0,
            warmup_steps=self.prior_warmup_steps,
            weight_decay=self.prior_weight_decay,
            grad_clip=1.0,
            schedule="cosine",
            select="last",
            checkpoint_every=CHECKPOINT_EVERY,
            ema_decay=self.prior_ema_decay,
            seed=seed,
            device=machine.device,
            precision=machine.precision,
            tensorboard=machine.tensorboard,
        )


@dataclass(frozen=True, kw_only=True)
class PriorChoice:
    """Priors of `generate run`."""

    prior: tuple[PriorName, ...] = ("autoregressive", "masked")
    """Priors to train; none for reconstruction only."""
    prior_arms: tuple[ArmKind, ...] = ("frames", "patch")
    """Tokenizers to train them on, where the run has them: frames (those of --frames), patch (the
    control with half patches), repeat (the control with identical frames)."""
    prior_stem: tuple[StemName, ...] = ("plain",)
    """Stems of those tokenizers, among --stem."""

    def __post_init__(self) -> None:
        """Refuse repetitions.

        Raises:
            ValueError: names the setting.
        """
        for name in ("prior", "prior_arms", "prior_stem"):
            unique(name, getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """Sampling."""

    temperature: float = 1.0
    """Of the draws of tokens: below 1 likelier tokens become likelier."""
    top_k: int | None = None
    """autoregressive: draw from the k likeliest tokens only."""
    top_p: float | None = None
    """autoregressive: draw from the likeliest tokens that together have probability p."""
    num_steps: int = 18
    """masked: steps of the decoding."""
    choice_temperature: float = 4.5
    """masked: how random it is which tokens are kept."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        not_negative("temperature", self.temperature)
        not_negative("choice_temperature", self.choice_temperature)
        at_least("num_steps", self.num_steps, 1)
        if self.top_k is not None:
            at_least("top_k", self.top_k, 1)
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")


@dataclass(frozen=True, kw_only=True)
class GenerateEvaluationSettings:
    """Evaluation."""

    num_samples: int = 10_000
    """Images drawn from each prior."""
    num_images: int | None = None
    """Test images to reconstruct; None: all."""
    features: FeatureSettings = field(default_factory=FeatureSettings)

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("num_samples", self.num_samples, 2)
        if self.num_images is not None:
            at_least("num_images", self.num_images, 2)


def _check_prior(prefix: str, dim: int, depth: int, num_heads: int, steps: int) -> None:
    for name, value in (("dim", dim), ("depth", depth), ("num_heads", num_heads), ("steps", steps)):
        at_least(f"{prefix}_{name}", value, 1)
    if dim % num_heads:
        raise ValueError(f"{prefix}_num_heads must divide {prefix}_dim={dim}, got {num_heads}")
