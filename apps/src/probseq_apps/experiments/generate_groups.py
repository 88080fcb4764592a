"""Settings of tokenizers in `probseq generate`; importable without torch, for the command line.

Their docstrings are the command line's help. The numbers of the thesis are those of section 5.3
and of tables D.1-D.3.
"""

from dataclasses import dataclass
from typing import Literal

from probseq_apps.engine.config import Precision, TrainConfig
from probseq_apps.experiments.checks import at_least, not_negative

CorruptionName = Literal[
    "blur",
    "high-order-blur",
    "first-order-noise",
    "high-order-noise",
    "matched-noise",
    "repeat",
]
StemName = Literal["plain", "layernorm"]
FrameChoice = Literal["random", "last"]

# Epochs between two checkpoints; the trainer never lets five minutes pass without one.
CHECKPOINT_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """Data."""

    image_size: int | None = None
    """Side in pixels to bring the images to; None: 16 for digits, 32 for mnist and cifar10, 64 for
    celeba, the files' own for a folder. The thesis has 32 for cifar10, 64 for celeba."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        if self.image_size is not None:
            at_least("image_size", self.image_size, 1)


@dataclass(frozen=True, kw_only=True)
class CorruptionSettings:
    """Pseudo videos."""

    corruption: CorruptionName = "blur"
    """What makes the frames before the image: blur (recursive), high-order-blur (of the mean of all
    cleaner frames), first-order-noise, high-order-noise, matched-noise (first-order noise at the
    levels of high-order-noise), or repeat (identical frames)."""
    blur_rate: float | None = None
    """Step i of the blur has standard deviation exp(rate·i) pixels; None: as in the thesis 0.05,
    above 8 frames 0.01."""
    beta_min: float = 1e-4
    """Variance of the noise step next to the image."""
    beta_max: float = 0.05
    """Variance of the last noise step."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        if not 0.0 <= self.beta_min <= self.beta_max < 1.0:
            raise ValueError(
                "beta_min and beta_max must be 0 <= beta_min <= beta_max < 1, "
                f"got {self.beta_min} and {self.beta_max}"
            )


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """Tokenizer."""

    patch_size: int = 4
    """Side of a patch in pixels; must divide the images' side. Videos have two frames a patch."""
    dim: int = 512
    """Width of the transformers."""
    num_heads: int = 8
    """Attention heads; must divide the width."""
    depth: int = 4
    """Spatial blocks and as many temporal ones, in the encoder and again in the decoder; for one
    frame twice as many spatial ones."""
    codebook_size: int = 1024
    """Codes K."""
    code_dim: int = 32
    """Width of a code; patches are projected to it and back."""
    causal: bool = True
    """Let tokens see their own frames and blurrier ones only."""
    commitment: float = 0.25
    """Weight of the commitment term."""
    codebook_decay: float = 0.99
    """Decay of the moving averages that are the codebook."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        for name in ("patch_size", "dim", "num_heads", "depth", "code_dim"):
            at_least(name, getattr(self, name), 1)
        at_least("codebook_size", self.codebook_size, 2)
        if self.codebook_size > 2**15:
            raise ValueError(
                f"codebook_size must be at most {2**15}, since tokens are kept in 16 bits, "
                f"got {self.codebook_size}"
            )
        if self.dim % self.num_heads:
            raise ValueError(f"num_heads must divide dim={self.dim}, got {self.num_heads}")
        not_negative("commitment", self.commitment)
        if not 0.0 <= self.codebook_decay < 1.0:
            raise ValueError(f"codebook_decay must be in [0, 1), got {self.codebook_decay}")


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """Tokenizer loss, beside the squared error of all frames."""

    perceptual_weight: float = 0.0
    """Weight of LPIPS on one frame; above 0 it needs --lpips-weights."""
    lpips_weights: str | None = None
    """File of torchvision's VGG-16 weights (vgg16-397923af.pth), the trunk of LPIPS."""
    adversarial_weight: float = 0.0
    """Weight of the hinge GAN on one frame, beside its adaptive weight; 0 for none."""
    adversarial_start: int = 10_000
    """First step of the GAN."""
    loss_frame: FrameChoice = "random"
    """Frame of each video that LPIPS and GAN look at: one at random, or the last, the image."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        not_negative("perceptual_weight", self.perceptual_weight)
        not_negative("adversarial_weight", self.adversarial_weight)
        at_least("adversarial_start", self.adversarial_start, 0)


@dataclass(frozen=True, kw_only=True)
class MachineSettings:
    """Machine."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Precision = "float32"
    """bf16 trains under autocast; evaluation and sampling are always in float32."""
    tensorboard: bool = False
    """Also write TensorBoard events."""


@dataclass(frozen=True, kw_only=True)
class TokenizerTraining:
    """Tokenizer training: AdamW with cosine decay, the same for all arms."""

    steps: int = 100_000
    """Optimizer steps of each tokenizer."""
    batch_size: int = 64
    """Images per step."""
    learning_rate: float = 1e-4
    """Step size after the warm-up."""
    final_learning_rate: float = 0.0
    """Step size at the last step."""
    warmup_steps: int = 1000
    """Steps in which the step size rises from zero."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    grad_clip: float | None = 1.0
    """Largest norm of a network's gradient; None leaves it alone."""

    def __post_init__(self) -> None:
        """Refuse what `TrainConfig` refuses.

        Raises:
            ValueError: names the setting.
        """
        self.train_config(MachineSettings(), seed=0)

    def train_config(self, machine: MachineSettings, *, seed: int) -> TrainConfig:
        """Settings of the training loop for one tokenizer."""
        return TrainConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            final_learning_rate=self.final_learning_rate,
            warmup_steps=self.warmup_steps,
            weight_decay=self.weight_decay,
            grad_clip=self.grad_clip,
            schedule="cosine",
            select="last",
            checkpoint_every=CHECKPOINT_EVERY,
            seed=seed,
            device=machine.device,
            precision=machine.precision,
            tensorboard=machine.tensorboard,
        )


@dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """Features that distances between sets of images are measured in."""

    inception_weights: str | None = None
    """File of Inception's weights (pt_inception-2015-12-05-6726825d.pth) for FID and IS. None: a
    classifier trained on the data's labels, or without labels a random convolution, and the
    distance is called FD."""
    classifier_steps: int = 300
    """Optimizer steps of that classifier."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("classifier_steps", self.classifier_steps, 1)
