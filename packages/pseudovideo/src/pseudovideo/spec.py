"""Settings of videos, tokenizers, priors and models; importing this module loads no torch.

What a `...Spec` holds is for the user to choose, whatever the images; a `...Config` has beside it
what the images decide, and is what a model is built of.
"""

import math
from typing import Annotated, Any, Literal, get_args

from probseq.settings import Bound, Count, Index, NotNegative, Positive, Rate, Settings
from pseudovideo.unet_spec import ClassSpec as ClassSpec
from pseudovideo.unet_spec import UNetConfig as UNetConfig
from pseudovideo.unet_spec import UNetSpec as UNetSpec
from pseudovideo.unet_spec import channel_multipliers_for as channel_multipliers_for
from pseudovideo.unet_spec import unet_values as unet_values

# How the frames before an image are made from it.
CorruptionKind = Literal[
    "blur", "high-order-blur", "first-order-noise", "high-order-noise", "matched-noise", "repeat"
]
# All kinds of corruption.
CORRUPTIONS: tuple[CorruptionKind, ...] = get_args(CorruptionKind)
# How a tokenizer embeds patches.
Stem = Literal["plain", "layernorm"]
PriorName = Literal["autoregressive", "masked"]
# How the noise of a diffusion grows.
ScheduleName = Literal["linear", "cosine"]
Prediction = Literal["epsilon", "x0", "v"]

AtLeastTwo = Annotated[int, Bound("a whole number of at least 2", lambda value: value >= 2)]

# Section 5.3.2 of the thesis has two lengths of blurred videos: 8 frames and 18.
_SHORT, _SHORT_RATE, _LONG_RATE = 8, 0.05, 0.01
# Of exp(rate·i), beyond which a blur is 0/0.
_LARGEST_EXPONENT = 100.0
# Fewest of the linear schedule, whose last variance is 20 over their number.
LEAST_LINEAR_STEPS = 21


class CorruptionSpec(Settings):
    """Strength of the corruption of the frames before the image."""

    blur_rate: float | None = None
    """Step i of the blur has standard deviation exp(blur_rate·i) pixels, i = 0..T-2; None: as in
    the thesis (section 5.3.2) 0.05, above 8 frames 0.01."""
    beta_min: Rate = 1e-4
    """Variance of the noise step next to the image."""
    beta_max: Rate = 0.05
    """Variance of the last noise step; linear between."""

    def check(self) -> None:
        """Refuse noise that falls."""
        if self.beta_min > self.beta_max:
            raise ValueError(
                f"beta_min must be at most beta_max={self.beta_max}, got {self.beta_min}"
            )

    def for_frames(self, num_frames: int, kind: CorruptionKind) -> "PseudoVideoConfig":
        """Return the settings of videos of so many frames."""
        values = {name: getattr(self, name) for name in CorruptionSpec.__dataclass_fields__}
        return PseudoVideoConfig(**values, num_frames=num_frames, kind=kind)


class PseudoVideoConfig(CorruptionSpec):
    """A kind of pseudo video: frame T, the last, is the image, frame 1 the most corrupted."""

    num_frames: Count = 8
    """T; 1 for the image alone."""
    kind: CorruptionKind = "blur"
    """`blur` (recursive), `high-order-blur` (blur of the mean of all cleaner frames),
    `first-order-noise` and `high-order-noise` (section 5.4.2), `matched-noise` (first-order noise
    with the signal-to-noise ratios of the high-order one, an ablation), `repeat` (T identical
    frames, a control of equal bits)."""

    def check(self) -> None:
        """Refuse what makes no video."""
        if self.blur_rate is None:
            rate = _SHORT_RATE if self.num_frames <= _SHORT else _LONG_RATE
            object.__setattr__(self, "blur_rate", rate)
        else:
            check_blur_rate("blur_rate", self.blur_rate, self.num_frames)

    @property
    def is_noise(self) -> bool:
        """True where frames are the image with noise, whose least errors are closed forms."""
        return self.num_frames > 1 and self.kind.endswith("noise")


def check_blur_rate(name: str, rate: float, num_frames: int) -> None:
    """Refuse a rate `name` of which the last of the steps exp(rate·i), i = 0..T−2, is 0/0."""
    if not abs(rate) * max(num_frames - 2, 1) <= _LARGEST_EXPONENT:
        raise ValueError(
            f"{name} must be at most {_LARGEST_EXPONENT:g} in absolute value, times "
            f"num_frames - 2={num_frames - 2} too, got {rate}"
        )


def check_context(context: int, num_frames: int) -> None:
    """Refuse a context C that leaves no frame to be generated from others."""
    if not 1 <= context < num_frames:
        raise ValueError(
            f"context must be from 1 to num_frames - 1={num_frames - 1}, got {context}"
        )


class TokenGrid(Settings):
    """Shape and codes of the token grid that a tokenizer makes of a video."""

    codebook_size: AtLeastTwo
    """K; tokens are 0..K-1."""
    shape: tuple[Count, Count, Count]
    """(t, h, w): slots in time, the blurriest first, rows and columns."""

    def check(self) -> None:
        """Refuse other numbers of axes."""
        if len(self.shape) != 3:
            raise ValueError(f"shape of the grid must be (time, height, width), got {self.shape}")

    @property
    def num_tokens(self) -> int:
        """Tokens of one video, t·h·w."""
        return math.prod(self.shape)

    @property
    def bits(self) -> float:
        """Bits of one video, t·h·w·log₂K: what tables must compare at equal values."""
        return self.num_tokens * math.log2(self.codebook_size)


class TransformerSizes(Settings):
    """Sizes of a transformer."""

    dim: Count
    """Width."""
    depth: Count
    """Number of blocks."""
    num_heads: Count
    """Heads of every attention; must divide the width."""

    def check(self) -> None:
        """Refuse heads that don't divide the width."""
        _check_heads(self.dim, self.num_heads)


class _TokenizerSettings(Settings):
    patch_size: Count = 4
    """Side of a patch in pixels; must divide the images' side."""
    dim: Count = 512
    """Width of the transformers."""
    num_heads: Count = 8
    """Heads of every attention; must divide the width."""
    codebook_size: AtLeastTwo = 1024
    """Codes K."""
    code_dim: Count = 32
    """Width of a code; patches are projected to it and back."""
    causal: bool = True
    """Let tokens see their own frames and blurrier ones only."""
    commitment: NotNegative = 0.25
    """Weight β of the commitment term (eq. 5.6)."""
    decay: Rate = 0.99
    """Decay of the moving averages that are the codebook."""
    revive_below: Rate = 0.01
    """A code that is chosen less often than this share of an even use is dead and takes the place
    of a random input."""

    def check(self) -> None:
        """Refuse heads that don't divide the width."""
        _check_heads(self.dim, self.num_heads)


class TokenizerSpec(_TokenizerSettings):
    """Sizes of tokenizers, whatever the images and the length of the videos.

    The defaults are those of thesis Table D.1, whose columns are `for_images` of 32 pixels
    (CIFAR-10) or 64 (CelebA) and 1, 8 or 18 frames; the code width of 32 and the plain stem are
    this package's.
    """

    depth: Count = 4
    """Spatial blocks and as many temporal ones, in the encoder and again in the decoder; for one
    frame twice as many spatial ones."""

    def for_images(
        self, image_size: int, channels: int, *, num_frames: int, stem: Stem = "plain"
    ) -> "TokenizerConfig":
        """Return the settings of a tokenizer of such images, in patches of two frames of videos."""
        image, sizes = num_frames == 1, self.to_dict()
        depth = sizes.pop("depth")
        return TokenizerConfig(
            **sizes,
            num_frames=num_frames,
            image_size=image_size,
            channels=channels,
            temporal_patch=1 if image else 2,
            spatial_depth=2 * depth if image else depth,
            temporal_depth=0 if image else depth,
            stem=stem,
        )


class TokenizerConfig(_TokenizerSettings):
    """A VQ-VAE (one frame) or a C-ViViT (several).

    The defaults are those of thesis appendix D.2 for 8 frames of CIFAR-10.
    """

    num_frames: Count = 8
    """T; must be a multiple of `temporal_patch`."""
    image_size: Count = 32
    """Height and width in pixels; must be a multiple of `patch_size`."""
    channels: Count = 3
    """1 for grey images, 3 for colour."""
    temporal_patch: Count = 2
    """Frames of a patch: 2 for videos, 1 for images."""
    spatial_depth: Count = 4
    """Blocks within a slot of time, in the encoder and again in the decoder."""
    temporal_depth: Index = 4
    """Blocks across time, likewise; 0 for images."""
    stem: Stem = "plain"
    """`plain` projects the raw patch linearly; `layernorm` normalises it before and after, as usual
    code does, which erases each patch's brightness and contrast."""

    def check(self) -> None:
        """Refuse what makes no tokenizer."""
        if self.num_frames % self.temporal_patch:
            raise ValueError(
                f"num_frames must be a multiple of temporal_patch={self.temporal_patch}, "
                f"got {self.num_frames}"
                + (": an image takes temporal_patch=1" if self.num_frames == 1 else "")
            )
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size must be a multiple of patch_size={self.patch_size}, "
                f"got {self.image_size}"
            )

    @property
    def grid(self) -> TokenGrid:
        """The tokens of a video."""
        side = self.image_size // self.patch_size
        shape = (self.num_frames // self.temporal_patch, side, side)
        return TokenGrid(codebook_size=self.codebook_size, shape=shape)


class ObjectiveConfig(Settings):
    """The terms of a tokenizer's loss beside squared error and commitment, and their weights."""

    frame: Literal["random", "last"] = "random"
    """Frame of each video that perceptual and adversarial terms look at: one at random, or the
    last, the image."""
    perceptual_weight: NotNegative = 0.1
    """Weight of the perceptual distance; 0 needs no network for it."""
    adversarial_weight: NotNegative = 0.1
    """Weight of the generator's term, beside the adaptive weight; 0 builds no discriminator."""
    adversarial_start: Index = 10_000
    """First step of the game between tokenizer and discriminator."""
    adaptive_max: NotNegative = 1.0
    """Largest adaptive weight. VQGAN's 10⁴ lifts whatever an untrained discriminator says to the
    strength of the reconstruction's gradient: on digits 24 dB fell to 14."""
    r1_weight: NotNegative = 0.1
    """Weight of the gradient penalty ½·‖∇D‖² on real images; 0 leaves it out. StyleGAN2's 10 is for
    large images: where real and decoded ones are as close as here, it leaves the discriminator no
    slope to tell them apart."""
    r1_every: Count = 16
    """Steps between two gradient penalties, each of which counts that many times."""
    discriminator_width: Count = 64
    """Channels of the discriminator's first layer."""


class PriorConfig(TransformerSizes, ClassSpec):
    """Settings of a prior over tokens."""

    codebook_size: AtLeastTwo
    """K."""
    grid: tuple[Count, Count, Count]
    """(t, h, w): slots in time, the blurriest first, rows and columns."""
    tokenizer_fingerprint: str | None = None
    """Of the tokenizer whose tokens are learned; None leaves it to K and the grid whether one
    fits."""

    def check(self) -> None:
        """Refuse what makes no grid."""
        _ = self.token_grid  # refuses what is no grid

    @property
    def token_grid(self) -> TokenGrid:
        """The tokens of a video."""
        return TokenGrid(codebook_size=self.codebook_size, shape=self.grid)


class AutoregressiveConfig(PriorConfig):
    """Settings of `AutoregressivePrior`; the defaults are those of thesis Table D.2."""

    dim: Count = 144
    depth: Count = 8
    num_heads: Count = 4


class MaskedConfig(PriorConfig):
    """Settings of `MaskedPrior`; the defaults are those of thesis Table D.3."""

    dim: Count = 512
    depth: Count = 6
    num_heads: Count = 8


class TokenSampling(Settings):
    """Sampling."""

    temperature: NotNegative = 1.0
    """Of the draws of tokens: below 1 likelier tokens become likelier."""
    top_k: Count | None = None
    """autoregressive: draw from the k likeliest tokens only."""
    top_p: Annotated[float, Bound("in (0, 1]", lambda value: 0 < value <= 1)] | None = None
    """autoregressive: draw from the likeliest tokens that together have probability p."""
    num_steps: Count = 18
    """masked: steps of the decoding; with more of them draws lean to common tokens."""
    choice_temperature: NotNegative = 4.5
    """masked: how random it is which tokens are kept."""

    def options(self, prior: PriorName) -> dict[str, Any]:
        """Return those of a kind of prior, for its `sample`."""
        names = {
            "autoregressive": ("top_k", "top_p"),
            "masked": ("num_steps", "choice_temperature"),
        }
        return {name: getattr(self, name) for name in ("temperature", *names[prior])}


class DiffusionSpec(Settings):
    """The process of a diffusion model."""

    num_steps: AtLeastTwo = 1000
    """Steps S from an image, or a frame, to noise."""
    schedule: ScheduleName = "linear"
    """How noise grows: linear (1e-4 to 0.02 at 1,000 steps, rescaled for others), or cosine."""
    prediction: Prediction = "epsilon"
    """What the network predicts: epsilon (the noise), x0 (the image), or v (a mixture of both with
    the variance of images, from which the image follows without a division)."""

    def check(self) -> None:
        """Refuse a linear schedule that would fill a step with noise."""
        if self.schedule == "linear" and self.num_steps < LEAST_LINEAR_STEPS:
            raise ValueError(
                f"num_steps must be at least {LEAST_LINEAR_STEPS} with schedule=linear, whose "
                f"noise would fill the last step with fewer, got {self.num_steps}: take more, or "
                "schedule=cosine"
            )


class ImageDiffusionConfig(UNetConfig, DiffusionSpec):
    """A diffusion model of images; the defaults are those of thesis Table D.4 for CIFAR-10."""


class VideoSpec(Settings):
    """Settings of frames that are generated from others."""

    context: Count | None = None
    """Frames that a frame is generated from, the first so many jointly; None: half of them."""
    one_way: bool = False
    """Given frames see each other only and are computed once for a frame, not at each step."""


class VideoDiffusionConfig(ImageDiffusionConfig, VideoSpec):
    """A diffusion model of pseudo videos; the defaults are thesis Table D.4's for 4 frames."""

    num_frames: Count = 4
    """T."""
    context: Count = 2
    """C: the first C frames are generated together, each further one given the C before."""

    def check(self) -> None:
        """Refuse what leaves no frame to be generated from others."""
        check_context(self.context, self.num_frames)


class HVAESpec(Settings):
    """Latent frames of an HVAE (thesis section 5.2).

    Noise levels are those of Rissanen et al. (2023), who have pixels in 0..1 and σ_h = 0.01: ours
    are in −1..1, twice as wide, so theirs is 0.02 here. Blurs are lengths in pixels and don't
    change; 20 pixels are theirs for 28 by 28 images.
    """

    num_levels: AtLeastTwo = 18
    """Latent frames T between the image and the prior."""
    sigma_min: Positive = 0.5
    """heat: blur of the first latent frame, in pixels."""
    sigma_max: Positive = 20.0
    """heat: blur of the last latent frame, in pixels."""
    noise_std: Positive = 0.02
    """Standard deviation of the encoder's noise, for images in -1..1."""
    delta_factor: Positive = 1.25
    """Standard deviation of the noise in sampling, as a multiple of the encoder's."""

    @property
    def delta(self) -> float:
        """δ, the standard deviation of every p(z_{t−1}|z_t)."""
        return self.delta_factor * self.noise_std

    def check(self) -> None:
        """Refuse blurs that don't rise."""
        if self.sigma_min >= self.sigma_max:
            raise ValueError(
                f"sigma_max must be above sigma_min={self.sigma_min}, got {self.sigma_max}"
            )


class HVAEConfig(UNetConfig, HVAESpec):
    """Settings of an HVAE of T latent frames as large as the image."""


def _check_heads(dim: int, num_heads: int) -> None:
    if dim % num_heads:
        raise ValueError(f"num_heads must divide dim={dim}, got {num_heads}")
