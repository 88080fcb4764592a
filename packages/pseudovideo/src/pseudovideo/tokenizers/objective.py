"""The loss that a tokenizer and its discriminator are trained by (thesis section 5.3.2).

NaN and infinity in a tensor reach the result.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pseudovideo.pixels import check_pixels
from pseudovideo.spec import ObjectiveConfig
from pseudovideo.tokenizers.adversarial import (
    adaptive_weight,
    hinge_discriminator_loss,
    hinge_generator_loss,
    r1_penalty,
)
from pseudovideo.tokenizers.discriminator import Discriminator
from pseudovideo.tokenizers.perceptual import PerceptualLoss
from pseudovideo.tokenizers.tokenizer import Tokenizer

_ADVERSARIAL_TERMS = (
    *("generator", "discriminator", "r1", "adaptive_weight", "real_logits", "fake_logits"),
)


class TokenizerObjective(nn.Module):
    r"""Tokenizer and discriminator with the one loss that trains both.

    $$ \mathrm{mse} + \text{commitment} + λ_p d(\hat x_s, x_s)
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
    """

    def __init__(
        self, tokenizer: Tokenizer, config: ObjectiveConfig, perceptual: nn.Module | None = None
    ) -> None:
        super().__init__()
        sizes = tokenizer.config
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

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """Return the networks whose gradients are clipped separately.

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
        """Return the loss and what to log: the same keys at every step, 0 while a term is off.

        Without gradients (validation) there is no adaptive weight, hence no generator's term in the
        loss, and no gradient penalty. Videos are frames in −1..1, the blurriest first, `step`
        counts optimizer steps done, and the generator draws the frames that perceptual and
        adversarial terms look at.

        Returns:
            Scalars: `loss`, the only one with a gradient; its terms without their weights
            `reconstruction`, `commitment` (with β), and where its weight is not 0
            `perceptual`; with a discriminator `generator`, `discriminator`, `r1`,
            `adaptive_weight`, `real_logits`, `fake_logits` (means); and `usage`, `perplexity`,
            `psnr` (last frame, mean over images of decibels).
        """
        check_pixels(videos=videos)
        output = self.tokenizer(videos)
        # Autocast decodes in bfloat16; losses are sums of many small squares.
        decoded = output.reconstruction.to(videos.dtype)
        faithful = F.mse_loss(decoded, videos)
        terms: dict[str, Tensor] = {"reconstruction": faithful, "commitment": output.commitment}
        real, fake = self._frames(videos, decoded, generator)
        if self.perceptual is not None:
            terms["perceptual"] = self.perceptual(fake, real)
            faithful = faithful + self.config.perceptual_weight * terms["perceptual"]
        loss = faithful + output.commitment
        if self.discriminator is not None:
            terms |= {name: faithful.new_zeros(()) for name in _ADVERSARIAL_TERMS}
            if step >= self.config.adversarial_start:
                terms |= self._play(self.discriminator, real, fake, faithful, step)
                loss = loss + self._weighted(terms)
        with torch.no_grad():
            squares = (decoded[:, -1].clamp(-1, 1) - videos[:, -1]).square().mean(dim=(1, 2, 3))
            psnr = 10 * torch.log10(4 / squares.clamp(min=1e-10)).mean()
        logs = {name: value.detach() for name, value in terms.items()}
        state = {"usage": output.usage, "perplexity": output.perplexity, "psnr": psnr}
        return {"loss": loss, **logs, **state}

    def _frames(
        self,
        videos: Float[Tensor, "b f c y x"],
        decoded: Float[Tensor, "b f c y x"],
        generator: torch.Generator | None,
    ) -> tuple[Float[Tensor, "b c y x"], Float[Tensor, "b c y x"]]:
        """Return the frame of each video that is looked at, real and decoded."""
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
        """Return the adversarial terms."""
        config = self.config
        logits = discriminator(torch.cat((real, fake.detach()))).to(real.dtype)
        real_logits, fake_logits = logits.chunk(2)
        terms = {
            "generator": hinge_generator_loss(discriminator, fake).to(real.dtype),
            "discriminator": hinge_discriminator_loss(real_logits, fake_logits),
            "real_logits": real_logits.mean(),
            "fake_logits": fake_logits.mean(),
        }
        if torch.is_grad_enabled():
            terms["adaptive_weight"] = adaptive_weight(
                faithful, terms["generator"], self.tokenizer.last_layer, largest=config.adaptive_max
            )
            if config.r1_weight and (step - config.adversarial_start) % config.r1_every == 0:
                terms["r1"] = r1_penalty(discriminator, real)
        return terms

    def _weighted(self, terms: dict[str, Tensor]) -> Float[Tensor, ""]:
        """Return the adversarial terms' contribution to the loss."""
        config = self.config
        # λ_a α L_G, and γ/2 · k R₁
        generator = config.adversarial_weight * terms["adaptive_weight"] * terms["generator"]
        penalty = 0.5 * config.r1_weight * config.r1_every * terms["r1"]
        return generator + terms["discriminator"] + penalty
