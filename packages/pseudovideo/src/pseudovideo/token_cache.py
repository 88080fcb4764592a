"""Tokens of a set of images on disk: encoded once, then read as often as a prior is trained.

A folder holds `tokens.npy`, int16 of shape (n, t, h, w), where there are classes also `labels.npy`,
int64 of shape (n,), and `config.json`, which says whose tokens they are (see `probseq.files`). A
writer that is killed leaves the folder as it was, and the next starts anew.
"""

import contextlib
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int16, Int64, Shaped
from torch import Tensor

from probseq.checks import check_counts, check_whole
from probseq.files import Format, read_folder, write_folder
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.labels import check_labels
from pseudovideo.pixels import to_unit
from pseudovideo.pretrained import CONFIG, eval_mode, fingerprint
from pseudovideo.spec import ClassSpec, PseudoVideoConfig, TokenGrid
from pseudovideo.tokenizers.tokenizer import Tokenizer

TOKENS, LABELS = "tokens.npy", "labels.npy"
_FORMAT = Format("token cache", 2)
_LARGEST_CODEBOOK = 2**15  # int16 holds 0..32,767.


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenCache:
    """Tokens of pseudo videos, and what they were made of.

    Attributes:
        tokens: (n, t, h, w), mapped from disk: what isn't read takes no memory. Writing to it
            doesn't change the file.
        grid: the grid of a video.
        tokenizer_fingerprint: `fingerprint` of the tokenizer.
        corruption: the settings of the videos.
        seed: of the videos. Tokens of random corruptions are those of (seed, epoch 0): a prior
            sees one draw of the noise per image.
        images_hash: of the images, see `hash_images`.
        labels: (n,), classes of the images; None where none were stored.
    """

    tokens: Int16[Tensor, "n t h w"]
    grid: TokenGrid
    tokenizer_fingerprint: str
    corruption: PseudoVideoConfig
    seed: int
    images_hash: str
    labels: Int64[Tensor, " n"] | None = None

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        tokenizer: Tokenizer | None = None,
        config: PseudoVideoConfig | None = None,
        images: Shaped[Tensor, "n c h w"] | None = None,
        labels: Int64[Tensor, " n"] | None = None,
        seed: int | None = None,
    ) -> "TokenCache":
        """Read what `write_token_cache` wrote; what is given is compared with it.

        Raises:
            FileNotFoundError: a file is missing, as where no cache was finished.
            DamagedFileError: a file was altered.
        """
        folder = Path(folder)
        saved = read_folder(folder, _FORMAT, manifest=CONFIG)
        values = saved.head
        expected = {
            "tokenizer": None if tokenizer is None else fingerprint(tokenizer),
            "corruption": None if config is None else config.to_dict(),
            "images": None if images is None else hash_images(images),
            "seed": seed,
        }
        for name, value in expected.items():
            if value is not None and value != values[name]:
                raise ValueError(
                    f"{folder} holds tokens of another {name}: {values[name]}, not {value}; "
                    "write the cache anew"
                )
        try:
            grid = TokenGrid(
                codebook_size=values["codebook_size"], shape=tuple(values["shape"][1:])
            )
            corruption = PseudoVideoConfig.from_dict(values["corruption"])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{folder / CONFIG} was written by another version: {error}"
            ) from error
        stored = None
        if LABELS in saved.files:
            content = io.BytesIO(saved.read(LABELS))
            stored = torch.from_numpy(np.load(content, allow_pickle=False))
        if labels is not None and not (stored is not None and torch.equal(stored, labels.cpu())):
            held = "no labels" if stored is None else "other labels"
            raise ValueError(f"{folder} holds tokens with {held}; write the cache anew")
        # Mode c, copy on write: torch warns of arrays that it may not write to.
        tokens = np.load(saved.check(TOKENS), mmap_mode="c", allow_pickle=False)
        return cls(
            tokens=torch.from_numpy(tokens),
            grid=grid,
            tokenizer_fingerprint=values["tokenizer"],
            corruption=corruption,
            seed=values["seed"],
            images_hash=values["images"],
            labels=stored,
        )


def write_token_cache(
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
    """Encode the pseudo videos of images once, on the tokenizer's device, and store the tokens.

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
    shape = (len(images), *tokenizer.grid.shape)
    values = {
        "codebook_size": tokenizer.grid.codebook_size,
        "shape": shape,
        "tokenizer": fingerprint(tokenizer),
        "corruption": config.to_dict(),
        "seed": seed,
        "images": hash_images(images),
    }
    with write_folder(folder, _FORMAT, values, manifest=CONFIG) as aside:
        if labels is not None:
            np.save(aside / LABELS, labels.cpu().numpy().astype("<i8"), allow_pickle=False)
        stored = np.lib.format.open_memmap(
            aside / TOKENS, mode="w+", dtype=np.dtype("<i2"), shape=shape
        )
        for start in range(0, len(images), batch_size):
            batch = images[start : start + batch_size]
            encoded = _encode(tokenizer, batch, start, config, seed)
            stored[start : start + len(batch)] = encoded.to("cpu", torch.int16).numpy()
            if progress is not None:
                progress(len(batch))
        stored.flush()
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
    # Half precision would give other tokens, and the manifest wouldn't tell.
    autocast = torch.autocast(device.type, enabled=False)
    with eval_mode(tokenizer), torch.inference_mode(), autocast:
        return tokenizer.encode(videos)


def cached_tokens(
    folder: Path | str,
    tokenizer: Tokenizer,
    images: Shaped[Tensor, "n c h w"],
    config: PseudoVideoConfig,
    *,
    labels: Int64[Tensor, " n"] | None = None,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> TokenCache:
    """Return the cache of a folder where it is of these; write it where there is none or another.

    Arguments are those of `write_token_cache`.
    """
    with contextlib.suppress(FileNotFoundError, ValueError):
        return TokenCache.open(
            folder, tokenizer=tokenizer, config=config, images=images, labels=labels, seed=seed
        )
    return write_token_cache(
        folder, tokenizer, images, config, labels=labels, seed=seed, progress=progress
    )


def hash_images(images: Shaped[Tensor, "n c h w"]) -> str:
    """Return the hash of images, with their shape and type, in 32 hexadecimal digits."""
    digest = hashlib.sha256(f"{tuple(images.shape)}:{images.dtype};".encode())
    # A batch at a time: images on another device or with strides are copied before they are hashed.
    for batch in images.split(1024):
        digest.update(batch.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
