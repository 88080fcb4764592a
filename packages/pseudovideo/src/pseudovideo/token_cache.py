"""Tokens of a set of images in a file: encoded once, then read as often as a prior is trained.

The file, `tokens.safetensors` in a folder, holds tokens, int16 of shape (n, t, h, w), where there
are classes also labels, int64 of shape (n,), and says whose tokens they are (see `probseq.files`).
A writer that is killed leaves the folder as it was, and the next starts anew.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int16, Int64, Shaped
from torch import Tensor

from probseq.checks import check_counts, check_whole
from probseq.files import Format, hash_tensors, read_tensors, write_tensors
from probseq.pretrained import fingerprint
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.labels import check_labels
from pseudovideo.pixels import to_unit
from pseudovideo.pretrained import eval_mode
from pseudovideo.spec import ClassSpec, PseudoVideoConfig, TokenGrid
from pseudovideo.tokenizers.tokenizer import Tokenizer

TOKENS = "tokens.safetensors"
_FORMAT = Format("token cache", 3)
_LARGEST_CODEBOOK = 2**15  # int16 holds 0..32,767.


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenCache:
    """Tokens of pseudo videos, and what they were made of."""

    # (n, t, h, w), mapped from disk: what isn't read takes no memory. Writing to it doesn't change
    # the file
    tokens: Int16[Tensor, "n t h w"]
    codebook_size: int  # K
    tokenizer_fingerprint: str  # `fingerprint` of the tokenizer
    corruption: dict[str, Any]  # the settings of the videos, by name
    # Of the videos. Tokens of random corruptions are those of (seed, epoch 0): a prior sees one
    # draw of the noise per image
    seed: int
    images_hash: str  # of the images, see `hash_tensors`
    # (n,), classes of the images; None where none were stored
    labels: Int64[Tensor, " n"] | None = None

    @property
    def grid(self) -> TokenGrid:
        """The grid of a video."""
        _, time, rows, columns = self.tokens.shape
        return TokenGrid(codebook_size=self.codebook_size, shape=(time, rows, columns))

    @classmethod
    def open(cls, folder: Path | str) -> "TokenCache":
        """Read what `cached_tokens` wrote.

        Raises:
            FileNotFoundError: there is none, as where no cache was finished.
            DamagedFileError: the file was altered.
        """
        head, tensors = read_tensors(Path(folder) / TOKENS, _FORMAT, mapped=True)
        return cls(tokens=tensors["tokens"], labels=tensors.get("labels"), **head)


def cached_tokens(
    folder: Path | str,
    tokenizer: Tokenizer,
    images: Shaped[Tensor, "n c h w"],
    config: PseudoVideoConfig,
    *,
    labels: Int64[Tensor, " n"] | None = None,
    seed: int = 0,
    batch_size: int = 256,
    progress: Callable[[int], object] | None = None,
) -> TokenCache:
    """Return the cache of a folder where it is of these; write it where there is none or another.

    The pseudo videos of the images are encoded once, on the tokenizer's device.

    Args:
        folder: made if it is not there; a cache that it holds stays until the new one is whole.
        tokenizer: encodes in eval mode, in which its codebook stands still; its mode comes back.
        images: floating point in −1..1, or uint8 (then 2x/255 − 1, batch by batch).
        config: which videos are made of them.
        labels: classes of the images from 0 on, stored beside the tokens.
        seed: of random corruptions; the draw is the one of epoch 0.
        batch_size: videos that are encoded at once.
        progress: called after each batch with the number of its images.
    """
    check_whole(seed=seed)
    folder, seed = Path(folder), int(seed)
    _check_arguments(tokenizer, images, config, batch_size)
    if labels is not None:
        check_labels(labels.cpu(), ClassSpec(num_classes=2**63 - 1), len(images))
    head = {
        "codebook_size": tokenizer.grid.codebook_size,
        "tokenizer_fingerprint": fingerprint(tokenizer),
        "corruption": config.to_dict(),
        "seed": seed,
        "images_hash": hash_tensors({"images": images}),
    }
    with contextlib.suppress(FileNotFoundError, ValueError):
        cache = TokenCache.open(folder)
        same = {name: getattr(cache, name) for name in head} == head
        # A cache that has labels where none are asked for will do.
        stored = cache.labels
        if same and (labels is None or (stored is not None and torch.equal(stored, labels.cpu()))):
            return cache
    tensors = {"tokens": torch.empty((len(images), *tokenizer.grid.shape), dtype=torch.int16)}
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        tensors["tokens"][start : start + batch_size] = _encode(
            tokenizer, batch, start, config, seed
        )
        if progress is not None:
            progress(len(batch))
    if labels is not None:
        tensors["labels"] = labels
    write_tensors(folder / TOKENS, _FORMAT, head, tensors)
    return TokenCache.open(folder)


def _check_arguments(
    tokenizer: Tokenizer, images: Tensor, config: PseudoVideoConfig, batch_size: int
) -> None:
    check_counts(batch_size=batch_size)
    if tokenizer.grid.codebook_size > _LARGEST_CODEBOOK:
        raise ValueError(
            f"tokenizer must have at most {_LARGEST_CODEBOOK} codes, since tokens are stored as "
            f"int16, got {tokenizer.grid.codebook_size}"
        )
    if config.num_frames != tokenizer.config.num_frames:
        raise ValueError(
            f"config must have num_frames={tokenizer.config.num_frames} as the tokenizer, "
            f"got {config.num_frames}"
        )
    if images.ndim != 4 or not len(images):
        raise ValueError(
            f"images must have shape (n, channels, height, width), n >= 1, got {images.shape}"
        )
    if not images.is_floating_point() and images.dtype != torch.uint8:
        raise ValueError(f"images must be floating point or uint8, got {images.dtype}")


def _encode(
    tokenizer: Tokenizer, images: Tensor, start: int, config: PseudoVideoConfig, seed: int
) -> Int64[Tensor, "b t h w"]:
    device = next(tokenizer.parameters()).device
    images = images.to(device)
    if images.dtype == torch.uint8:
        images = to_unit(images)
    index = torch.arange(start, start + len(images), device=device)
    # Outside of inference mode, whose tensors cannot be trained on: blur matrices are kept.
    videos = pseudo_videos(images, config, seed=seed, epoch=0, index=index)
    # Half precision would give other tokens, and the head wouldn't tell.
    autocast = torch.autocast(device.type, enabled=False)
    with eval_mode(tokenizer), torch.inference_mode(), autocast:
        return tokenizer.encode(videos)
