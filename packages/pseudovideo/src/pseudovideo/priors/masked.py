"""MaskGIT for images and Phenaki for videos: tokens are filled in, the surest first.

Differences from the papers' code: numbers of masks are rounded up in training, so that a single
token and the fully masked start of sampling are both met; confidence is the network's own log p
whatever the temperature of the draw; positions of the axes are summed; no dropout.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor, nn

from probseq.checks import check_counts, check_integers, check_not_negative, check_sizes
from pseudovideo.labels import check_labels, dropped_labels, sample_classes
from pseudovideo.layers import Block
from pseudovideo.pretrained import check_weights
from pseudovideo.priors.base import AxisPositions, TokenPrior
from pseudovideo.priors.sampling import check_options, draw
from pseudovideo.spec import MaskedConfig

_ROUNDING = 1e-9


class MaskedPrior(TokenPrior):
    """p(tokens at masked places | the other tokens), a bidirectional transformer.

    Chang et al. 2022 (MaskGIT), Villegas et al. 2022 (Phenaki). Every masked place has the same
    learned vector in the place of its token, so that a network pass tells of all of them at once.
    Of a prior with classes each has a learned vector that is added to every token.
    """

    config_class = MaskedConfig
    config: MaskedConfig

    def __init__(self, config: MaskedConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.codebook_size, config.dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.mask = nn.Parameter(0.02 * torch.randn(config.dim))
        self.positions = AxisPositions(config.grid, config.dim)
        self.blocks = nn.ModuleList(
            Block(config.dim, config.num_heads, normalize=True) for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.codebook_size)
        self.classes = None
        if config.num_tokens is not None:
            self.classes = nn.Embedding(config.num_tokens, config.dim)
            nn.init.normal_(self.classes.weight, std=0.02)

    def forward(
        self,
        tokens: Int64[Tensor, "b n"],
        masked: Bool[Tensor, "b n"],
        indices: Int64[Tensor, "b m"] | None = None,
        labels: Int64[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b m k"]:
        """Return logits of the tokens given those that aren't masked.

        Tokens are in raster order, the blurriest slot first, and any token where masked. `indices`
        are where logits are wanted, everywhere if not given. The label `num_classes` says nothing
        of the class, where the prior was trained with `label_dropout`.
        """
        check_sizes("tokens", tokens, "b", self.grid.num_tokens)
        check_integers(0, self.grid.codebook_size - 1, tokens=tokens)
        if masked.shape != tokens.shape or masked.dtype != torch.bool:
            raise ValueError(
                f"masked must be boolean of shape (b, n)={tuple(tokens.shape)}, got "
                f"{masked.dtype} of shape {tuple(masked.shape)}"
            )
        check_labels(labels, self.config, len(tokens), none=True)
        x = torch.where(masked[..., None], self.mask, self.embedding(tokens)) + self.positions()
        if self.classes is not None:
            x = x + self.classes(labels)[:, None]
        for block in self.blocks:
            x = block(x)
        if indices is not None:
            x = x.gather(1, indices[..., None].expand(-1, -1, x.shape[-1]))
        return self.head(self.norm(x))

    def loss(
        self,
        tokens: Integer[Tensor, "b t h w"],
        labels: Int64[Tensor, " b"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """Return the mean of −log p over the masked tokens of a batch; see `TokenPrior.loss`."""
        sequences = self._sequences(tokens)
        masked = draw_masks(sequences, generator)
        tokens_of_classes = dropped_labels(labels, self, len(tokens), generator)
        logits = self(sequences, masked, labels=tokens_of_classes)
        # -100 is what the loss passes over.
        targets = sequences.masked_fill(~masked, -100)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def sample_tokens(
        self,
        n: int,
        *,
        labels: Int64[Tensor, " n"] | None = None,
        guidance: float = 1.0,
        num_steps: int = 18,
        temperature: float = 1.0,
        choice_temperature: float = 4.5,
        generator: torch.Generator | None = None,
    ) -> Int64[Tensor, "n t h w"]:
        """Draw token grids.

        Each step draws a token for every masked place, and keeps those of the largest confidence
        log p(token) + τ(1 − s/S)·Gumbel, as many as `unmasking_schedule` says. A kept token never
        changes. p is the network's own, whatever the temperature of the draw, and the guided one
        where there is guidance.

        With the options of `TokenPrior.sample_tokens`: `num_steps` is S, the network passes; a grid
        of fewer tokens takes as many as it has, since every step keeps at least one.
        `choice_temperature` is τ, how far chance says which tokens are kept, least at the end.
        """
        check_counts(n=n)
        check_options(temperature=temperature, top_k=None, top_p=None)
        check_not_negative(choice_temperature=choice_temperature)
        check_weights(self)
        left = unmasking_schedule(self.grid.num_tokens, num_steps)
        classes = sample_classes(
            self.config, n, labels, guidance, generator=generator, device=self.mask.device
        )
        tokens = torch.zeros(n, self.grid.num_tokens, dtype=torch.int64, device=self.mask.device)
        masked = torch.ones_like(tokens, dtype=torch.bool)
        # The masked places of each sequence: all have equally many, so that the head and the draw
        # work on these alone.
        indices = torch.arange(self.grid.num_tokens, device=self.mask.device).repeat(n, 1)
        for step, still_masked in enumerate(left, start=1):
            state = (classes.duplicate_for_guidance(tensor) for tensor in (tokens, masked, indices))
            logits = classes.apply_guidance(self(*state, labels=classes.tokens))
            candidates = draw(logits, temperature=temperature, generator=generator)
            # log p(token) + τ(1 − s/S)·Gumbel
            confidence = logits.log_softmax(-1).gather(-1, candidates[..., None])[..., 0]
            noise = choice_temperature * (1.0 - step / len(left))
            confidence = confidence + noise * _gumbel(confidence, generator=generator)
            order = confidence.argsort(dim=1, descending=True)
            surest, left_indices = order.split(
                [indices.shape[1] - still_masked, still_masked], dim=1
            )
            now = indices.gather(1, surest)
            tokens.scatter_(1, now, candidates.gather(1, surest))
            masked.scatter_(1, now, False)
            indices = indices.gather(1, left_indices)
        return tokens.unflatten(1, self.grid.shape)


def draw_masks(
    tokens: Int64[Tensor, "b n"], generator: torch.Generator | None
) -> Bool[Tensor, "b n"]:
    """Return masks for training: ⌈n cos(πu/2)⌉ places of each sequence, u uniform, chosen evenly.

    At least one place, since u < 1, and
    all of them for the smallest u: the first step of sampling is trained too.
    """
    count, length = tokens.shape
    ratio = torch.rand(count, 1, generator=generator, device=tokens.device)
    masked = (length * torch.cos(0.5 * math.pi * ratio)).ceil().clamp(1, length)
    # The rank of noise at a place is uniform, and no two places have the same.
    noise = torch.rand(count, length, generator=generator, device=tokens.device)
    return noise.argsort(dim=1).argsort(dim=1) < masked


def unmasking_schedule(num_tokens: int, num_steps: int) -> list[int]:
    """Return how many of n tokens are masked after each step s of S: ⌊n cos(πs/2S)⌋."""
    check_counts(num_steps=num_steps)
    steps = min(num_steps, num_tokens)
    left: list[int] = []
    for step in range(1, steps + 1):
        # Rounding must not put a whole number below itself: cos 60° is .49999…, and cos 90° may be
        # negative.
        wanted = math.floor(num_tokens * math.cos(0.5 * math.pi * step / steps) + _ROUNDING)
        left.append(min(wanted, (left[-1] if left else num_tokens) - 1))
    return left


def _gumbel(like: Tensor, *, generator: torch.Generator | None) -> Tensor:
    exponential = torch.empty_like(like).exponential_(generator=generator)
    # An exact 0 would make an infinity, and 0 · ∞ at the last step a NaN.
    return -exponential.clamp_min(torch.finfo(like.dtype).tiny).log()
