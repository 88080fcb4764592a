"""Tokens of a set of images on disk: encoded once, then read as often as a prior is trained.

A folder holds `tokens.npy`, int16 of shape (n, t, h, w), and `manifest.json`, which says whose
tokens they are. A writer works aside and puts both in place when the last token is written: one
that is killed leaves the folder as it was, and the next starts anew. The manifest holds the hash of
the tokens, so that tokens and manifest of different writers are never taken together.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int16, Int64, Shaped
from torch import Tensor

from pseudovideo.corruptions import pseudo_videos
from pseudovideo.corruptions.config import PseudoVideoConfig
from pseudovideo.grid import TokenGrid
from pseudovideo.pretrained import fingerprint
from pseudovideo.tokenizers.tokenizer import Tokenizer

TOKENS, MANIFEST = "tokens.npy", "manifest.json"
_ASIDE = ".tmp-"
_FORMAT = 1
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
    """

    tokens: Int16[Tensor, "n t h w"]
    grid: TokenGrid
    tokenizer_fingerprint: str
    corruption: PseudoVideoConfig
    seed: int
    images_hash: str

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        tokenizer: Tokenizer | None = None,
        config: PseudoVideoConfig | None = None,
        images: Shaped[Tensor, "n c h w"] | None = None,
        seed: int | None = None,
    ) -> "TokenCache":
        """Read what `write_token_cache` wrote; what is given is compared with it.

        Args:
            folder: holds the cache.
            tokenizer: whose tokens they must be.
            config: settings that the videos must have.
            images: what the tokens must be of.
            seed: that the videos must have.

        Raises:
            FileNotFoundError: no cache is there, or none that was finished.
            ValueError: the files are damaged, or tell of something else than is given; the message
                says what differs.
        """
        folder = Path(folder)
        manifest = _read_manifest(folder)
        expected = {
            "tokenizer": None if tokenizer is None else fingerprint(tokenizer),
            "corruption": None if config is None else asdict(config),
            "images": None if images is None else hash_images(images),
            "seed": seed,
        }
        for name, value in expected.items():
            if value is not None and value != manifest[name]:
                raise ValueError(
                    f"{folder} holds tokens of another {name}: {manifest[name]}, not {value}; "
                    "write the cache anew"
                )
        try:
            grid = TokenGrid(
                codebook_size=manifest["codebook_size"], shape=tuple(manifest["shape"][1:])
            )
            corruption = PseudoVideoConfig(**manifest["corruption"])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{folder / MANIFEST} is damaged: {error}") from error
        return cls(
            tokens=_read_tokens(folder, manifest),
            grid=grid,
            tokenizer_fingerprint=manifest["tokenizer"],
            corruption=corruption,
            seed=manifest["seed"],
            images_hash=manifest["images"],
        )


def write_token_cache(
    folder: Path | str,
    tokenizer: Tokenizer,
    images: Shaped[Tensor, "n c h w"],
    config: PseudoVideoConfig,
    *,
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
        seed: of random corruptions; the draw is the one of epoch 0.
        batch_size: videos that are encoded at once.
        progress: called after each batch with the number of its images.

    Returns:
        The stored cache.

    Raises:
        ValueError: images or settings that don't fit the tokenizer, or more than 32,768 codes.
    """
    folder, seed = Path(folder), int(seed)
    _check_arguments(tokenizer, images, config, batch_size)
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{_ASIDE}*"):
        shutil.rmtree(leftover)
    shape = (len(images), *tokenizer.grid.shape)
    with tempfile.TemporaryDirectory(dir=folder, prefix=_ASIDE) as aside:
        tokens, manifest = Path(aside) / TOKENS, Path(aside) / MANIFEST
        stored = np.lib.format.open_memmap(tokens, mode="w+", dtype=np.dtype("<i2"), shape=shape)
        for start in range(0, len(images), batch_size):
            batch = images[start : start + batch_size]
            encoded = _encode(tokenizer, batch, start, config, seed)
            stored[start : start + len(batch)] = encoded.to("cpu", torch.int16).numpy()
            if progress is not None:
                progress(len(batch))
        stored.flush()
        values = {
            "format": _FORMAT,
            "codebook_size": tokenizer.grid.codebook_size,
            "shape": shape,
            "tokenizer": fingerprint(tokenizer),
            "corruption": asdict(config),
            "seed": seed,
            "images": hash_images(images),
            "sha256": _hash_file(tokens),
        }
        manifest.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        for path in (tokens, manifest):
            _sync(path)
            os.replace(path, folder / path.name)
        _sync(folder)
    return TokenCache.open(folder)


def _check_arguments(
    tokenizer: Tokenizer, images: Tensor, config: PseudoVideoConfig, batch_size: int
) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
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
        images = images / 127.5 - 1.0
    index = torch.arange(start, start + len(images), device=device)
    # Outside of inference mode, whose tensors cannot be trained on: blur matrices are kept.
    videos = pseudo_videos(images, config, seed=seed, epoch=0, index=index)
    training = tokenizer.training
    tokenizer.eval()
    try:
        # Half precision would give other tokens, and the manifest wouldn't tell.
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            return tokenizer.encode(videos)
    finally:
        tokenizer.train(training)


def hash_images(images: Shaped[Tensor, "n c h w"]) -> str:
    """Hash of images, with their shape and type.

    Returns:
        32 hexadecimal digits.
    """
    digest = hashlib.sha256(f"{tuple(images.shape)}:{images.dtype};".encode())
    # A batch at a time: images on another device or with strides are copied before they are hashed.
    for batch in images.split(1024):
        digest.update(batch.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{folder} holds no finished token cache") from error
    except ValueError as error:
        raise ValueError(f"{folder / MANIFEST} is damaged: {error}") from error
    known = {"format", "codebook_size", "shape", "tokenizer", "corruption", "seed", "images"}
    if not isinstance(manifest, dict) or manifest.keys() != known | {"sha256"}:
        raise ValueError(f"{folder / MANIFEST} is not the manifest of a token cache")
    if manifest["format"] != _FORMAT:
        raise ValueError(
            f"{folder} must hold a token cache of format {_FORMAT}, got {manifest['format']}: "
            "it was written by another version"
        )
    return manifest


def _read_tokens(folder: Path, manifest: dict[str, Any]) -> Int16[Tensor, "n t h w"]:
    path = folder / TOKENS
    try:
        if _hash_file(path) != manifest["sha256"]:
            raise ValueError(f"{path} does not hold the tokens that {MANIFEST} tells of")
        # Mode c, copy on write: torch warns of arrays that it may not write to.
        mapped = np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{folder} holds a manifest and no {TOKENS}") from error
    if mapped.dtype != np.int16 or list(mapped.shape) != manifest["shape"]:
        raise ValueError(
            f"{path} must hold int16 of shape {manifest['shape']}, "
            f"got {mapped.dtype} of {list(mapped.shape)}"
        )
    if mapped.min() < 0 or mapped.max() >= manifest["codebook_size"]:
        raise ValueError(
            f"{path} must hold tokens below codebook_size={manifest['codebook_size']}, "
            f"got {mapped.min()}..{mapped.max()}"
        )
    return torch.from_numpy(mapped)


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
