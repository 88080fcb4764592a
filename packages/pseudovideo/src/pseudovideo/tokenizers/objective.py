"""What a tokenizer and its discriminator are trained by (thesis section 5.3.2).

NaN and infinity in a tensor reach the result.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

import torch
import torch.distributed
from jaxtyping import Float
from torch import Tensor, nn

from pseudovideo.tokenizers.adversarial import (
    adaptive_weight,
    hinge_discriminator_loss,
    hinge_generator_loss,
    r1_penalty,
)
from pseudovideo.tokenizers.discriminator import Discriminator
from pseudovideo.tokenizers.perceptual import PerceptualLoss
from pseudovideo.tokenizers.tokenizer import Tokenizer

FrameChoice = Literal["random", "last"]
_ADVERSARIAL_PARTS = [
    *("generator", "discriminator", "r1", "adaptive_weight", "real_logits", "fake_logits"),
]


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """The terms beside squared error and commitment, and their weights.

    Attributes:
        frame_weights: of the frames' squared errors, the blurriest first; only their ratios
            matter. None: all alike.
        frame: which frame of each video perceptual and adversarial terms look at: one at
            `random`, or the `last`, the image itself.
        perceptual_weight: of the perceptual distance; 0 needs no network for it.
        adversarial_weight: of the generator's term, beside the adaptive weight; 0 builds no
            discriminator.
        adversarial_start: first step of the game between tokenizer and discriminator.
        adaptive_max: largest adaptive weight. VQGAN's 10⁴ lifts whatever an untrained
            discriminator says to the strength of the reconstruction's gradient, and the worse
            the reconstruction gets by it, the stronger: on digits 24 dB fell to 14.
        r1_weight: γ of the gradient penalty γ/2·‖∇D‖² on real images; 0 leaves it out.
            StyleGAN2's 10 is for large images: where real and decoded ones are as close as here,
            it leaves the discriminator no slope to tell them apart.
        r1_every: steps between two gradient penalties, each of which counts that many times.
        discriminator_width: channels of its first layer.
    """

    frame_weights: tuple[float, ...] | None = None
    frame: FrameChoice = "random"
    perceptual_weight: float = 0.1
    adversarial_weight: float = 0.1
    adversarial_start: int = 10_000
    adaptive_max: float = 1.0
    r1_weight: float = 0.1
    r1_every: int = 16
    discriminator_width: int = 64

    def __post_init__(self) -> None:
        """Refuse what is no objective.

        Raises:
            ValueError: names the setting.
        """
        weights = self.frame_weights
        if weights is not None and not (
            all(isfinite(weight) and weight >= 0 for weight in weights) and sum(weights) > 0
        ):
            raise ValueError(f"frame_weights must be at least 0 and not all 0, got {weights}")
        if self.frame not in get_args(FrameChoice):
            raise ValueError(
                f"frame must be one of {', '.join(get_args(FrameChoice))}, got {self.frame!r}"
            )
        for name in ("perceptual_weight", "adversarial_weight", "r1_weight", "adaptive_max"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
        for name, least in (("adversarial_start", 0), ("r1_every", 1), ("discriminator_width", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


class TokenizerObjective(nn.Module):
    r"""Tokenizer and discriminator with the one loss that trains both.

    $$ \sum_t w_t \mathrm{mse}_t + \text{commitment} + λ_p d(\hat x_s, x_s)
       + λ_a α L_G(\hat x_s) + L_D(x_s, \operatorname{sg} \hat x_s) + \tfrac{γ}{2} k R_1 $$

    The frame s is drawn for each video; α is the adaptive weight, a constant; the adversarial
    terms are 0 before `adversarial_start`, and R₁ but at every k-th step. One backward pass gives
    each network its own gradient, see `adversarial`. Two notes on one optimizer for both: they
    share its step size, and the gradient penalty of every k-th step comes without StyleGAN2's
    correction of Adam's constants by k/(k+1). Adversarial terms take gradients in the middle of
    a step, which `torch.compile` does not support.

    Args:
        tokenizer: what is trained.
        config: weights and schedule.
        perceptual: takes images and references (b, 3, y, x) to a distance per image; frozen.

    Raises:
        ValueError: `frame_weights` has another number of frames, the perceptual network is
            missing, or the images are too small for the discriminator.
    """

    def __init__(
        self, tokenizer: Tokenizer, config: ObjectiveConfig, perceptual: nn.Module | None = None
    ) -> None:
        super().__init__()
        sizes = tokenizer.config
        weights = config.frame_weights or (1.0,) * sizes.num_frames
        if len(weights) != sizes.num_frames:
            raise ValueError(
                f"frame_weights must have a weight for each of {sizes.num_frames} frames, "
                f"got {len(weights)}"
            )
        if config.perceptual_weight and perceptual is None:
            raise ValueError(
                f"perceptual must be a network where perceptual_weight="
                f"{config.perceptual_weight}, got None: give one, or set the weight to 0"
            )
        self.tokenizer, self.config = tokenizer, config
        self.discriminator = (
            Discriminator(sizes.channels, sizes.image_size, config.discriminator_width)
            if config.adversarial_weight
            else None
        )
        self.perceptual = (
            PerceptualLoss(perceptual) if config.perceptual_weight and perceptual else None
        )
        shares = torch.tensor(weights)
        self.register_buffer("frame_shares", shares / shares.sum(), persistent=False)

    frame_shares: Float[Tensor, " f"]

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """What has a gradient of its own, to be clipped by itself.

        The discriminator's is a thousand times the tokenizer's: clipped as one vector, nearly
        nothing would be left of the latter.
        """
        players = (self.tokenizer, self.discriminator)
        return tuple(network for network in players if network is not None)

    def forward(
        self,
        videos: Float[Tensor, "b f c y x"],
        *,
        step: int,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """The loss and what to log of it: the same keys at every step, 0 while a term is off.

        Without gradients (validation) there is no adaptive weight, hence no generator's term in
        the loss, and no gradient penalty.

        Args:
            videos: frames in −1..1, the blurriest first.
            step: optimizer steps done.
            generator: draws the frames that perceptual and adversarial terms look at.

        Returns:
            Scalars: `loss`, the only one with a gradient; its terms without their weights
            `reconstruction` (frame-weighted), `commitment` (with β), and where its weight is not 0
            `perceptual`; with a discriminator `generator`, `discriminator`, `r1`,
            `adaptive_weight`, `real_logits`, `fake_logits` (means); and `usage`, `perplexity`,
            `psnr` (last frame, mean over images of decibels).

        Raises:
            ValueError: the videos are not the tokenizer's.
        """
        output = self.tokenizer(videos)
        # Autocast decodes in bfloat16; losses are sums of many small squares.
        decoded = output.reconstruction.to(videos.dtype)
        errors = (decoded - videos).square().mean(dim=(0, 2, 3, 4))
        # Not a matrix product, which autocast would do in bfloat16.
        faithful = (errors * self.frame_shares).sum()
        parts: dict[str, Tensor] = {"reconstruction": faithful, "commitment": output.commitment}
        real, fake = self._frames(videos, decoded, generator)
        if self.perceptual is not None:
            parts["perceptual"] = self.perceptual(fake, real)
            faithful = faithful + self.config.perceptual_weight * parts["perceptual"]
        loss = faithful + output.commitment
        if self.discriminator is not None:
            parts |= {name: errors.new_zeros(()) for name in _ADVERSARIAL_PARTS}
            if step >= self.config.adversarial_start:
                parts |= self._play(self.discriminator, real, fake, faithful, step)
                loss = loss + self._weighted(parts)
            elif torch.distributed.is_available() and torch.distributed.is_initialized():
                # Parameters without gradients are an error to DistributedDataParallel.
                loss = loss + 0 * sum(p.sum() for p in self.discriminator.parameters())
        with torch.no_grad():
            squares = (decoded[:, -1].clamp(-1, 1) - videos[:, -1]).square().mean(dim=(1, 2, 3))
            psnr = 10 * torch.log10(4 / squares.clamp(min=1e-10)).mean()
        logs = {name: value.detach() for name, value in parts.items()}
        state = {"usage": output.usage, "perplexity": output.perplexity, "psnr": psnr}
        return {"loss": loss, **logs, **state}

    def _frames(
        self,
        videos: Float[Tensor, "b f c y x"],
        decoded: Float[Tensor, "b f c y x"],
        generator: torch.Generator | None,
    ) -> tuple[Float[Tensor, "b c y x"], Float[Tensor, "b c y x"]]:
        """The frame of each video that is looked at, real and decoded."""
        count, frames = videos.shape[:2]
        if self.config.frame == "last":
            return videos[:, -1], decoded[:, -1]
        device = videos.device if generator is None else generator.device
        chosen = torch.randint(frames, (count,), generator=generator, device=device)
        rows, chosen = torch.arange(count, device=videos.device), chosen.to(videos.device)
        return videos[rows, chosen], decoded[rows, chosen]

    def _play(
        self,
        discriminator: Discriminator,
        real: Float[Tensor, "b c y x"],
        fake: Float[Tensor, "b c y x"],
        faithful: Float[Tensor, ""],
        step: int,
    ) -> dict[str, Tensor]:
        """The adversarial terms."""
        config = self.config
        logits = discriminator(torch.cat((real, fake.detach()))).to(real.dtype)
        real_logits, fake_logits = logits.chunk(2)
        parts = {
            "generator": hinge_generator_loss(discriminator, fake).to(real.dtype),
            "discriminator": hinge_discriminator_loss(real_logits, fake_logits),
            "real_logits": real_logits.mean(),
            "fake_logits": fake_logits.mean(),
        }
        if torch.is_grad_enabled():
            parts["adaptive_weight"] = adaptive_weight(
                faithful,
                parts["generator"],
                self.tokenizer.last_layer,
                largest=config.adaptive_max,
            )
            if config.r1_weight and (step - config.adversarial_start) % config.r1_every == 0:
                parts["r1"] = r1_penalty(discriminator, real)
        return parts

    def _weighted(self, parts: dict[str, Tensor]) -> Float[Tensor, ""]:
        """The adversarial terms' contribution to the loss."""
        config = self.config
        generator = config.adversarial_weight * parts["adaptive_weight"] * parts["generator"]
        penalty = 0.5 * config.r1_weight * config.r1_every * parts["r1"]
        return generator + parts["discriminator"] + penalty
