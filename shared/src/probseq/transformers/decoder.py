"""Decoder with a pluggable attention module, its cache and sampling of texts. Experimental."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from probseq.checks import check_counts, check_positive
from probseq.metrics import CalibrationBins, calibration_bins
from probseq.transformers.encoder import AttentionFactory, Encoder
from probseq.transformers.outputs import AttentionOutput, TransformerOutput
from probseq.transformers.padded import check_ids, checked_mask
from probseq.transformers.protocol import TokenMap, check_num_samples
from probseq.transformers.sampling import repeat_samples
from probseq.transformers.spec import TransformerConfig

# Probabilities at once: 128 MB in float64.
_PROBABILITIES = 2**24


class DecoderCache(NamedTuple):
    """What a decoder knows of the tokens so far."""

    layers: tuple[Any, ...]  # caches of the attention layers
    batch: int  # number of sequences
    length: int  # number of tokens


class CausalTransformer(nn.Module):
    """Transformer that predicts each token from those before it.

    Learned token and position embeddings, which start from N(0, 1/dim); the logits of a token
    depend on it and on earlier ones alone. With layers that draw, p(next token) is the mean over
    samples of the softmax, where a sample keeps its noise along the whole sequence.

    Args:
        config: settings of the backbone; pooling is not used.
        vocab_size: number V of token ids.
        max_length: longest sequence.
        attention: called with each block's index, returns its attention module, one of
            :mod:`probseq.transformers.causal` or of their kind.

    Raises:
        ValueError: a count is no whole number of at least 1, or an attention module has no cache.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        vocab_size: int,
        max_length: int,
        attention: AttentionFactory,
    ) -> None:
        super().__init__()
        check_counts(vocab_size=vocab_size, max_length=max_length)
        self.vocab_size, self.max_length = vocab_size, max_length
        self.embed = nn.Embedding(vocab_size, config.dim)
        self.position = nn.Embedding(max_length, config.dim)
        for embedding in (self.embed, self.position):
            nn.init.normal_(embedding.weight, std=config.dim**-0.5)
        self.encoder = Encoder(config, attention)
        for module in self.encoder.attention:
            if not hasattr(module, "init_cache"):
                kind = type(module).__name__
                raise ValueError(f"attention must be causal, with a cache, got {kind}")
        self.norm = nn.LayerNorm(config.dim) if config.final_norm else nn.Identity()
        self.to_logits = nn.Linear(config.dim, vocab_size)

    def forward(
        self,
        tokens: Int[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
        noise: Sequence[Any] | None = None,
    ) -> TransformerOutput:
        """Predict the token behind each token.

        Args:
            tokens: token ids.
            mask: true at real tokens, behind padding on the left; ``None`` without padding, or with
                padding on the right, which no real token sees.
            generator: source of the draws.
            num_samples: number of samples S, run as one batch.
            noise: of each layer, to draw again what :meth:`init_cache` was given; S samples are
                drawn by the first layer, and folded into the batch of all others.

        Returns:
            Logits ``(batch, tokens, V)`` or ``(S, batch, tokens, V)``, and the penalty.

        Raises:
            ValueError: ``tokens`` or ``mask`` has a wrong shape or type, or holds an id out of
                range, padding is not on the left, or ``noise`` is not of all layers.
        """
        check_num_samples(num_samples)
        self._check(tokens, 0)
        self._check_noise(noise)
        if mask is None:
            places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        else:
            mask = checked_mask(mask, torch.ones_like(tokens, dtype=torch.bool))
            if bool((mask[:, :-1] & ~mask[:, 1:]).any()):
                raise ValueError("mask must have its padding on the left of each sequence")
            places = (mask.cumsum(-1) - 1).clamp(min=0)
        x = self.embed(tokens) + self.position(places)
        if noise is None:
            hidden, penalty = self.encoder(x, mask, generator=generator, num_samples=num_samples)
        else:
            hidden, penalty = self._with_noise(x, mask, num_samples, noise)
        logits = self.to_logits(self.norm(hidden))
        if num_samples is not None:
            logits = logits.unflatten(0, (num_samples, -1))
        return TransformerOutput(logits, penalty)

    def init_cache(
        self,
        batch: int,
        max_tokens: int | None = None,
        *,
        generator: torch.Generator | None = None,
        noise: Sequence[Any] | None = None,
    ) -> DecoderCache:
        """Return the cache of sequences without tokens; samples count as sequences.

        Args:
            batch: number of sequences.
            max_tokens: room for so many tokens; ``None``: ``max_length``.
            generator: source of the draws, all of which are made here.
            noise: of each layer, see :meth:`forward`; ``None`` draws it.

        Raises:
            ValueError: a count is no whole number of at least 1, or ``noise`` is not of all layers.
        """
        self._check_noise(noise)
        room = self.max_length if max_tokens is None else max_tokens
        layers: list[Any] = []
        for index, module in enumerate(cast("Iterable[Any]", self.encoder.attention)):
            options = {} if noise is None or not module.stochastic else {"noise": noise[index]}
            layers.append(module.init_cache(batch, room, generator=generator, **options))
        return DecoderCache(tuple(layers), batch, 0)

    @torch.no_grad()
    def step(
        self, tokens: Int[Tensor, "batch new"], cache: DecoderCache
    ) -> tuple[TransformerOutput, DecoderCache]:
        """Predict behind the next tokens, without those before them and without gradients.

        Args:
            tokens: ids of the next tokens, one or more of each sequence.
            cache: of the tokens so far; it must not be used again.

        Returns:
            Logits ``(batch, new, V)`` and the penalty of these tokens; and the new cache.

        Raises:
            ValueError: the tokens have a wrong shape, an id out of range, or no room.
        """
        self._check(tokens, cache.length)
        if len(tokens) != cache.batch:
            raise ValueError(
                f"tokens must be of the cache's {cache.batch} sequences, got {len(tokens)}"
            )
        start, end = cache.length, cache.length + tokens.shape[1]
        layers: list[Any] = []

        def attend(index: int, x: Tensor, token_map: TokenMap | None) -> AttentionOutput:
            module: Any = self.encoder.attention[index]
            attended, layer = module.step(x, cache.layers[index], token_map=token_map)
            layers.append(layer)
            return attended

        x = self.embed(tokens) + self.position(torch.arange(start, end, device=tokens.device))
        hidden, penalty = self.encoder.blocks(self.encoder.dropout(x), attend)
        logits = self.to_logits(self.norm(hidden))
        return TransformerOutput(logits, penalty), DecoderCache(tuple(layers), cache.batch, end)

    @torch.no_grad()
    def generate(
        self,
        tokens: Int[Tensor, "batch tokens"],
        num_tokens: int,
        *,
        num_samples: int = 1,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch longer"]:
        """Continue sequences, each next token drawn from the mean over samples of the softmax.

        Args:
            tokens: ids to begin with, at least one.
            num_tokens: how many to add.
            num_samples: number of samples S, each with its noise and its cache.
            temperature: the logarithm of the mean is divided by it.
            generator: source of the draws.

        Raises:
            ValueError: an argument is out of range, or the sequences get too long.
        """
        check_counts(num_tokens=num_tokens, num_samples=num_samples)
        check_positive(temperature=temperature)
        self._check(tokens, num_tokens)
        room = tokens.shape[1] + num_tokens
        cache = self.init_cache(num_samples * len(tokens), room, generator=generator)
        new = tokens
        for _ in range(num_tokens):
            output, cache = self.step(repeat_samples(new, num_samples), cache)
            log_probs = output.logits[:, -1].log_softmax(-1).unflatten(0, (num_samples, -1))
            # p(next) = 1/S Σ_s softmax(logits_s)
            mean = log_probs.logsumexp(0)
            new = torch.multinomial((mean / temperature).softmax(-1), 1, generator=generator)
            tokens = torch.cat((tokens, new), 1)
        return tokens

    def _with_noise(
        self, x: Tensor, mask: Tensor | None, num_samples: int | None, noise: Sequence[Any]
    ) -> tuple[Tensor, Tensor]:
        folded = num_samples is None

        def attend(index: int, x: Tensor, token_map: TokenMap | None) -> AttentionOutput:
            nonlocal mask, folded
            attention = partial(self.encoder.attention[index], x, mask, token_map=token_map)
            if not self.encoder.attention[index].stochastic:
                return attention()
            output: AttentionOutput = attention(
                num_samples=None if folded else num_samples, noise=noise[index]
            )
            if not folded and mask is not None and num_samples is not None:
                mask = repeat_samples(mask, num_samples)
            folded = True
            return output

        x, penalty = self.encoder.blocks(self.encoder.dropout(x), attend)
        if not folded and num_samples is not None:  # nothing random: the samples are equal
            x = repeat_samples(x, num_samples)
        return x, penalty

    def _check_noise(self, noise: Sequence[Any] | None) -> None:
        if noise is not None and len(noise) != len(self.encoder.attention):
            raise ValueError(
                f"noise must have one entry for each of the {len(self.encoder.attention)} layers, "
                f"None where nothing is drawn, got {len(noise)}"
            )

    def _check(self, tokens: Tensor, others: int) -> None:
        if tokens.ndim != 2 or 0 in tokens.shape or tokens.shape[1] + others > self.max_length:
            raise ValueError(
                f"tokens must have shape (batch, tokens), with at most {self.max_length} tokens in "
                f"all, got {tuple(tokens.shape)} beside {others} others"
            )
        check_ids(tokens, self.vocab_size)


def bits_per_token(
    logits: Float[Tensor, "*samples batch tokens classes"], tokens: Int[Tensor, "batch tokens"]
) -> Float[Tensor, "batch tokens"]:
    """Return −log₂ of the mean probability of each next token.

    Args:
        logits: of a decoder, with samples in front or without.
        tokens: the tokens that came next.
    """
    log_probs = logits.log_softmax(-1)
    if logits.ndim == 4:
        log_probs = log_probs.logsumexp(0) - math.log(len(logits))
    return -log_probs.gather(-1, tokens[..., None])[..., 0] / math.log(2.0)


class TokenMetrics(NamedTuple):
    """What a decoder is worth on a text.

    Attributes:
        bits: mean of −log₂ p over the tokens.
        accuracy: share of tokens that were the most probable one.
        ece: expected calibration error of the most probable ones.
        kl: mean penalty a token, in nats.
        bins: accuracy and confidence by confidence.
    """

    bits: float
    accuracy: float
    ece: float
    kl: float
    bins: CalibrationBins


@torch.no_grad()
def evaluate_tokens(
    model: CausalTransformer,
    tokens: Int[Tensor, "windows length"],
    *,
    num_samples: int = 10,
    generator: torch.Generator | None = None,
) -> TokenMetrics:
    """Measure how well a decoder predicts each token of windows from those before it.

    Args:
        model: the decoder, in eval mode.
        tokens: windows of a text; nothing is asked of the first token of each.
        num_samples: Monte Carlo samples of a decoder that draws; another needs none.
        generator: source of the draws.

    Raises:
        ValueError: `tokens` are no windows of at least 2, or `num_samples` is below 1.
    """
    check_counts(num_samples=num_samples)
    if tokens.ndim != 2 or len(tokens) == 0 or tokens.shape[1] < 2:
        raise ValueError(
            f"tokens must be (windows, length) of at least 1 and 2, got {tuple(tokens.shape)}"
        )
    device = next(model.parameters()).device
    drawn = any(layer.stochastic for layer in model.encoder.attention)
    samples = num_samples if drawn else 1
    bins_of_batches: list[CalibrationBins] = []
    bits: list[Tensor] = []
    kl, rows = 0.0, _PROBABILITIES // (samples * tokens.shape[1] * model.vocab_size)
    for batch in tokens.to(device).split(min(64, max(1, rows))):
        output = model(batch[:, :-1], num_samples=samples, generator=generator)
        probs = output.logits.softmax(-1).mean(0).double().flatten(0, 1)
        bins_of_batches.append(calibration_bins(probs.cpu(), batch[:, 1:].flatten().cpu()))
        bits.append(bits_per_token(output.logits, batch[:, 1:]).double().cpu())
        kl += float(output.penalty) * len(batch) / len(tokens) / (batch.shape[1] - 1)
    bins = CalibrationBins.merged(bins_of_batches)
    return TokenMetrics(
        bits=float(torch.cat(bits).mean()),
        accuracy=float((bins.count * bins.accuracy).sum() / bins.count.sum()),
        ece=float(bins.expected_error()),
        kl=kl,
        bins=bins,
    )
