"""Settings of diffusion models in `probseq generate`; importable without torch.

Their docstrings are the command line's help. The numbers of the thesis are those of section 5.4.2
and of table D.4.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from probseq_apps.engine.config import Schedule, TrainConfig
from probseq_apps.experiments.checks import at_least
from probseq_apps.experiments.generate_groups import (
    CHECKPOINT_EVERY,
    FeatureSettings,
    MachineSettings,
)

ScheduleName = Literal["linear", "cosine"]
MaskName = Literal["stages", "random"]
SamplerName = Literal["ancestral", "ddim"]
# Fewest of the linear schedule, whose last variance is 20 over their number.
_LINEAR_STEPS = 21


@dataclass(frozen=True, kw_only=True)
class UNetSettings:
    """UNet."""

    base_channels: int = 128
    """Channels at full size."""
    channel_multipliers: tuple[int, ...] | None = None
    """Channels at each size as multiples of the base, from full size down, halving each time; None:
    1 2 2 2, for 64 pixels 1 2 3 4, for 16 and fewer 1 2 2."""
    num_res_blocks: int = 2
    """Residual blocks at each size on the way down; one more on the way up."""
    attention_sizes: tuple[int, ...] = (16, 8)
    """Sizes in pixels at which there is attention."""
    num_heads: int = 4
    """Attention heads; must divide the channels where there is attention."""
    num_groups: int = 32
    """Groups of the normalisation; must divide all channels."""
    dropout: float = 0.0
    """Share of features that are zeroed in training."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        for name in ("base_channels", "num_res_blocks", "num_heads", "num_groups"):
            at_least(name, getattr(self, name), 1)
        if self.channel_multipliers is not None:
            if not self.channel_multipliers:
                raise ValueError("channel_multipliers must name at least one, got none")
            for multiplier in self.channel_multipliers:
                at_least("channel_multipliers", multiplier, 1)
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """Diffusion."""

    diffusion_steps: int = 1000
    """Steps from an image, or a frame, to noise; an arm such as 1-frame-4000 has its own."""
    schedule: ScheduleName = "linear"
    """How noise grows: linear (1e-4 to 0.02 at 1,000 steps, rescaled for others), or cosine."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("diffusion_steps", self.diffusion_steps, 2)
        if self.schedule == "linear" and self.diffusion_steps < _LINEAR_STEPS:
            raise ValueError(
                f"diffusion_steps must be at least {_LINEAR_STEPS} with schedule=linear, whose "
                f"noise would fill the last step with fewer, got {self.diffusion_steps}: take "
                "more, or schedule=cosine"
            )


@dataclass(frozen=True, kw_only=True)
class FrameSettings:
    """Pseudo videos."""

    context: int | None = None
    """Frames that a frame is generated from, the first so many jointly; None: half of them."""
    masks: MaskName = "stages"
    """Which frames are given in training: stages (those that sampling meets), or random ones, which
    are hardly ever those."""
    one_way: bool = False
    """Given frames see each other only and are computed once for a frame, not at each step."""
    blur_rate: float | None = None
    """Step i of the blur has standard deviation exp(rate·i) pixels; None: 0.05, above 8 frames
    0.01."""
    beta_min: float = 1e-4
    """Variance of the frames' noise step next to the image."""
    beta_max: float = 0.05
    """Variance of the frames' last noise step."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        if self.context is not None:
            at_least("context", self.context, 1)
        if self.blur_rate is not None and not math.isfinite(self.blur_rate):
            raise ValueError(f"blur_rate must be a finite number, got {self.blur_rate}")
        if not 0.0 <= self.beta_min <= self.beta_max < 1.0:
            raise ValueError(
                "beta_min and beta_max must be 0 <= beta_min <= beta_max < 1, "
                f"got {self.beta_min} and {self.beta_max}"
            )


@dataclass(frozen=True, kw_only=True)
class ModelTraining:
    """Training: Adam, the same number of steps for all arms."""

    steps: int = 500_000
    """Optimizer steps of each model."""
    batch_size: int = 32
    """Images or videos per step."""
    learning_rate: float = 1e-4
    """Step size after the warm-up."""
    final_learning_rate: float = 0.0
    """Step size at the last step, where it decays."""
    decay: Schedule = "constant"
    """Shape of the step size's way there: constant (it stays), linear or cosine."""
    warmup_steps: int = 0
    """Steps in which the step size rises from zero."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    grad_clip: float | None = None
    """Largest norm of the gradient; None leaves it alone."""
    ema_decay: float | None = 0.9999
    """Decay of the moving average of the weights, which is what is stored; it is smaller in the
    first steps. None for the weights themselves."""

    def __post_init__(self) -> None:
        """Refuse what `TrainConfig` refuses.

        Raises:
            ValueError: names the setting.
        """
        self.train_config(MachineSettings(), seed=0)

    def train_config(self, machine: MachineSettings, *, seed: int) -> TrainConfig:
        """Settings of the training loop for one model."""
        return TrainConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            final_learning_rate=self.final_learning_rate,
            warmup_steps=self.warmup_steps,
            weight_decay=self.weight_decay,
            grad_clip=self.grad_clip,
            schedule=self.decay,
            select="last",
            checkpoint_every=CHECKPOINT_EVERY,
            ema_decay=self.ema_decay,
            seed=seed,
            device=machine.device,
            precision=machine.precision,
            tensorboard=machine.tensorboard,
        )


@dataclass(frozen=True, kw_only=True)
class DiffusionTraining(ModelTraining):
    """Training: Adam, the same number of steps for all arms."""

    steps: int = 500_000
    """Optimizer steps of each model; 0 with --init-weights to measure these as they are."""
    importance: bool = False
    """Draw diffusion steps by their past losses, instead of all alike."""

    def __post_init__(self) -> None:
        """Refuse what `TrainConfig` refuses.

        Raises:
            ValueError: names the setting.
        """
        if self.steps:
            super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class DiffusionSampling:
    """Sampling of diffusion models."""

    sampling_steps: int | None = None
    """Diffusion steps that are taken, evenly spread; None: all."""
    sampler: SamplerName = "ancestral"
    """ancestral (each step draws noise as in training), or ddim (few steps, less or no noise)."""
    eta: float = 0.0
    """ddim: noise of its steps, from 0 for none to 1 for that of ancestral ones."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        if self.sampling_steps is not None:
            at_least("sampling_steps", self.sampling_steps, 2)
        if not 0.0 <= self.eta <= 1.0:
            raise ValueError(f"eta must be in [0, 1], got {self.eta}")
        if self.eta and self.sampler != "ddim":
            raise ValueError(f"eta is for sampler=ddim, got eta={self.eta} and {self.sampler}")

    @property
    def noise(self) -> float | None:
        """What the models' samplers take as eta; None for ancestral."""
        return self.eta if self.sampler == "ddim" else None

    def check_steps(self, diffusion_steps: int) -> None:
        """Refuse more steps than there are.

        Raises:
            ValueError: names the setting.
        """
        if self.sampling_steps is not None and self.sampling_steps > diffusion_steps:
            raise ValueError(
                f"sampling_steps must be at most the {diffusion_steps} diffusion steps of each "
                f"arm, got {self.sampling_steps}"
            )


@dataclass(frozen=True, kw_only=True)
class DiffusionEvaluationSettings:
    """Evaluation."""

    num_samples: int = 10_000
    """Images drawn from each model."""
    likelihood_images: int = 0
    """Test images whose likelihood 1-frame arms bound, in bits per dimension; 0 for none. Each
    takes all diffusion steps."""
    frame_error_images: int = 256
    """Test videos whose frames video arms predict from the true frames before; 0 for none."""
    frame_error_samples: int = 4
    """Draws of each of these frames."""
    features: FeatureSettings = field(default_factory=FeatureSettings)

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("num_samples", self.num_samples, 2)
        at_least("likelihood_images", self.likelihood_images, 0)
        at_least("frame_error_images", self.frame_error_images, 0)
        at_least("frame_error_samples", self.frame_error_samples, 2)
