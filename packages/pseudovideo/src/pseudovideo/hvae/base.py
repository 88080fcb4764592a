"""Parts that both HVAEs share: the decoder, the bound and the way samples are drawn.

NaN and infinity in a tensor reach the result.
"""

import math
from abc import abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.checks import check_counts, check_finite, check_floating, check_integers, check_sizes
from probseq.pretrained import Pretrained
from pseudovideo.diffusion.unet import apply_unet, build_unet
from pseudovideo.labels import check_labels, dropped_labels, sample_classes
from pseudovideo.pixels import check_batch
from pseudovideo.pretrained import eval_mode
from pseudovideo.sampling import at_least_float32, draw_noise, draw_seed, noise_like, sample_batches
from pseudovideo.spec import HVAEConfig


class VariationalBound(NamedTuple):
    """Negative evidence lower bound of images, in nats per dimension."""

    total: Tensor  # (b,), the sum of the others
    terms: Tensor  # (b, T), cost of the steps t = 1..T; the first is −log p(x|z_1)
    prior: Tensor  # (b,), KL at level T, as far as the variant counts it


class LevelTerms(NamedTuple):
    """Terms that one level of each image adds to the bound, in nats per dimension."""

    step: Tensor  # (b,), cost of the step from z_t to z_{t−1}
    prior: Tensor  # (b,), KL(q(z_T|x) ‖ p(z_T)) where t = T, 0 elsewhere
    mse: Tensor  # (b,), mean squared distance of m_{t−1}(x) to μ_θ(z_t, t)


class HVAE(Pretrained):
    """Images as the end of a chain z_T, …, z_1, x of latent frames of the image's size.

    The decoder is p(z_{t−1}|z_t) = N(z_t + r_θ(z_t, t), δ²I): a UNet predicts the residual to the
    less blurred frame and starts at 0, so that an untrained decoder repeats its frame. The
    encoder q(z_t|x) = N(m_t(x), σ_h²I) is the subclass', and the prior N(0, I) unless that has
    another. Differences from Rissanen et al. (2023): the UNet is improved DDPM's, whose times run
    to 1,000, so level t is told as 1000·t/T; and the loss is the bound itself, theirs its squared
    distances alone, which is the same but for constants that no parameter moves.

    Of a model of classes the decoder is told the class, as improved DDPM's UNet is, and the encoder
    is not: loss and bound are those of p(x | class) with q(z_t|x).
    """

    config_class = HVAEConfig
    config: HVAEConfig

    def __init__(self, config: HVAEConfig) -> None:
        super().__init__()
        self.config = config
        channels = config.channels
        self.decoder = build_unet(config, in_channels=channels, out_channels=channels)

    @abstractmethod
    def encode(
        self, images: Float[Tensor, "b c h w"], t: Int64[Tensor, " b"]
    ) -> Float[Tensor, "b c h w"]:
        """Return m_t(x), the mean of q(z_t|x); the image itself, bit for bit, where t = 0."""

    def prior_kl(self, last: Float[Tensor, "b c h w"]) -> Float[Tensor, " b"]:
        """Return KL(q(z_T|x) ‖ p(z_T)) in nats per dimension, given m_T(x)."""
        return standard_normal_kl(last, self.config.noise_std)

    def draw_prior(
        self,
        numbers: Int64[Tensor, " b"],
        images: Float[Tensor, "n c h w"] | None,
        *,
        seed: int,
        labels: Int64[Tensor, " b"] | None = None,
        image_labels: Int64[Tensor, " n"] | None = None,
    ) -> Float[Tensor, "b c h w"]:
        """Return z_T of samples by their numbers, all draws of one seed: standard normal frames.

        Where the prior consists of the training images, they and their classes are given, in −1..1;
        labels are the classes of the samples, None for any.
        """
        return self._noise(numbers, seed, level=self.config.num_levels)

    def decode(
        self,
        z: Float[Tensor, "b c h w"],
        t: Int64[Tensor, " b"],
        labels: Int64[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b c h w"]:
        """Return μ_θ(z_t, t), the mean of p(z_{t−1}|z_t), t = 1..T, or of p(z_{t−1}|z_t, class).

        The label `num_classes` says nothing of the class, where the model was trained with
        `label_dropout`.
        """
        self._check_levels("z", z, t, 1)
        check_labels(labels, self.config, len(z), none=True)
        return z + apply_unet(self.decoder, z, t * (1000 / self.config.num_levels), labels)

    def training_losses(
        self,
        images: Float[Tensor, "b c h w"],
        labels: Int64[Tensor, " b"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Estimate the bound, unbiased: T times the cost of one step, drawn for each image.

        Images are in −1..1; in train mode labels are hidden with probability `label_dropout`. The
        generator draws t from 1..T, the noise of z_t, and which labels are hidden.

        Returns:
            Scalars: `loss`, the bound in nats per dimension, the only one with a gradient; its
            parts `steps` and `prior`; and `mse`, the mean squared error of the less blurred frame.
        """
        check_batch("images", images, self.config.image_shape)
        levels = self.config.num_levels
        device = images.device if generator is None else generator.device
        t = torch.randint(1, levels + 1, (len(images),), generator=generator, device=device)
        noise = noise_like(images, generator)
        tokens = dropped_labels(labels, self, len(images), generator)
        terms = self.level_terms(images, t.to(images.device), noise, tokens)
        steps, prior = levels * terms.step.mean(), levels * terms.prior.mean()
        scalars = {"steps": steps, "prior": prior, "mse": terms.mse.mean()}
        return {
            "loss": steps + prior,
            **{name: scalar.detach() for name, scalar in scalars.items()},
        }

    @torch.no_grad()
    def bound(
        self,
        images: Float[Tensor, "b c h w"],
        labels: Int64[Tensor, " b"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> VariationalBound:
        """Return the negative evidence lower bound of all T steps, one z_t each, in eval mode.

        Images are in −1..1. Of a model of classes the bound is that on −log p(image | class).
        `HeatHVAE` says what its own leaves out.
        """
        check_batch("images", images, self.config.image_shape)
        check_labels(labels, self.config, len(images))
        check_finite(images=images)
        seed = draw_seed(generator)
        numbers = torch.arange(len(images), device=images.device)
        levels: list[LevelTerms] = []
        with eval_mode(self):
            # Level by level: T times the batch at once would need T times the memory.
            for level in range(1, self.config.num_levels + 1):
                noise = self._noise(numbers, seed, level=level)
                t = torch.full_like(numbers, level)
                levels.append(self.level_terms(images, t, noise, labels))
        steps = torch.stack([terms.step for terms in levels], dim=1)
        prior = levels[-1].prior
        return VariationalBound(steps.sum(1) + prior, steps, prior)

    def level_terms(
        self,
        images: Float[Tensor, "b c h w"],
        t: Int64[Tensor, " b"],
        noise: Float[Tensor, "b c h w"],
        labels: Int64[Tensor, " b"] | None = None,
    ) -> LevelTerms:
        """Return what level t = 1..T adds to the bound; its sum over the levels is the bound.

        Gradients reach the encoder through z_t as well as through the target m_{t−1}(x). Images are
        in −1..1, the noise is standard normal, labels are those of `decode`.
        """
        config = self.config
        images = images.to(at_least_float32(images))
        # One pass of the encoder for both of the levels that a step connects.
        frames = self.encode(torch.cat([images, images]), torch.cat([t, t - 1]))
        frame, target = frames.chunk(2)
        mean = self.decode(frame + config.noise_std * noise, t, labels)  # μ_θ(z_t, t)
        mse = (target - mean).square().flatten(1).mean(1)
        step = step_costs(mse, t, noise_std=config.noise_std, delta=config.delta)
        prior = self.prior_kl(frame)
        return LevelTerms(step, torch.where(t == config.num_levels, prior, 0 * prior), mse)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        *,
        images: Float[Tensor, "m c h w"] | None = None,
        image_labels: Int64[Tensor, " m"] | None = None,
        labels: Int64[Tensor, " n"] | None = None,
        guidance: float = 1.0,
        generator: torch.Generator | None = None,
        batch_size: int = 256,
    ) -> Float[Tensor, "n c h w"]:
        """Draw images in eval mode: z_T from the prior, then T steps of the decoder.

        As in the code of Rissanen et al. the last step adds no noise: a sample is the mean of
        p(x|z_1), cut to −1..1.

        Args:
            n: number of images.
            images: what the prior of `HeatHVAE` consists of, the training images.
            image_labels: their classes, where the model has classes: the prior of a class is the
                images of that class.
            labels: class of each sample, where the model has classes; None draws them.
            guidance: g of μ = μ_u + g (μ_c − μ_u) in each step of the decoder, as of
                `FrameDiffusion.sample`; 0 leaves the class out of the prior too.
            generator: draws the one seed that all noise follows from, as there.
            batch_size: images drawn at once.

        Returns:
            In −1..1, on the model's device and in its precision, at least float32.
        """
        check_counts(n=n, batch_size=batch_size)
        seed, device = draw_seed(generator), self._weight.device
        every = sample_classes(self.config, n, labels, guidance, generator=generator, device=device)

        def draw(numbers: Tensor) -> Tensor:
            classes = every.select(numbers)
            prior_labels = classes.labels if guidance else None
            z = self.draw_prior(
                numbers, images, seed=seed, labels=prior_labels, image_labels=image_labels
            )
            for level in range(self.config.num_levels, 0, -1):
                # 1. μ_θ(z_t, t), guided to the class
                frames = classes.duplicate_for_guidance(z)
                t = torch.full((len(frames),), level, device=device)
                z = classes.apply_guidance(self.decode(frames, t, classes.tokens))
                # 2. z_{t−1} = μ_θ(z_t, t) + δ ε
                if level > 1:
                    z = z + self.config.delta * self._noise(numbers, seed, level=level - 1)
            return z.clamp(-1, 1)

        with eval_mode(self):
            return sample_batches(draw, n, batch_size, device)

    def _noise(self, numbers: Int64[Tensor, " b"], seed: int, *, level: int) -> Tensor:
        """Return standard normal frames of a level, in the decoder's precision or float32."""
        noise = draw_noise(numbers, self.config.image_shape, seed=seed, step=level)
        return noise.to(at_least_float32(self._weight))

    def _check_levels(self, name: str, frames: Tensor, t: Tensor, least: int) -> None:
        check_sizes(name, frames, "b", *self.config.image_shape)
        check_floating(**{name: frames})
        check_sizes("t", t, len(frames))
        check_integers(least, self.config.num_levels, t=t)

    @property
    def _weight(self) -> Tensor:
        """Any weight: it tells the device and the precision."""
        return next(self.decoder.parameters())


def step_costs(
    mse: Float[Tensor, " b"], t: Int64[Tensor, " b"], *, noise_std: float, delta: float
) -> Float[Tensor, " b"]:
    """Return the bound's term of step t: what it costs to tell the less blurred frame given z_t.

    KL(N(m_{t−1}, σ_h²I) ‖ N(μ_θ, δ²I)) where t > 1, −log N(x; μ_θ, δ²I) where t = 1, in nats per
    dimension. `mse` is the mean squared distance of m_{t−1}(x), or of x where t = 1, to μ_θ(z_t,
    t); σ_h is `noise_std`.
    """
    # KL of the variances, ½(σ_h²/δ² − 1 − log σ_h²/δ²), and the normal density's constant
    ratio = (noise_std / delta) ** 2
    between = 0.5 * (ratio - 1 - math.log(ratio))
    density = math.log(delta) + 0.5 * math.log(2 * math.pi)
    # Each is the distance and a constant: a batch may mix both.
    return mse / (2 * delta**2) + torch.where(t > 1, between, density).to(mse)


def standard_normal_kl(mean: Float[Tensor, "b c h w"], std: float) -> Float[Tensor, " b"]:
    """Return KL(N(mean, std²I) ‖ N(0, I)) in nats per dimension, of m_T(x) and σ_h."""
    # ½(σ_h² − 1 − log σ_h²) of the variance, and ½ m² of the mean
    spread = 0.5 * (std**2 - 1) - math.log(std)
    return 0.5 * mean.square().flatten(1).mean(1) + spread
