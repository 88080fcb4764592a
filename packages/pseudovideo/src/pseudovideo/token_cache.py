"""Tokens of a set of images on disk: encoded once, then read as often as a prior is trained.

A folder holds `tokens.npy`, int16 of shape (n, t, h, w), and `manifest.json`, which says whose
tokens they are. A writer works aside and puts both in place when the last token is written: one
that is killed leaves the folder as it was, and the next starts anew. The manifest holds the hash of
the tokens, so that tokens and manifest of different writers are never taken together.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Int16, Shaped
from torch import Tensor, nn

from pseudovideo.corruptions.config import PseudoVideoConfig
from pseudovideo.grid import TokenGrid
from pseudovideo.pretrained import fingerprint

TOKENS, MANIFEST = "tokens.npy", "manifest.json"
_FORMAT = 1
_LARGEST_CODEBOOK = 2**15


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
        tokenizer: nn.Module | None = None,
        config: PseudoVideoConfig | None = None,
        images: Shaped[Tensor, "n c h w"] | None = None,
        seed: int | None = None,
    ) -> Self:
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
        return cls(
            tokens=_read_tokens(folder, manifest),
            grid=TokenGrid(
                codebook_size=manifest["codebook_size"], shape=tuple(manifest["shape"][1:])
            ),
            tokenizer_fingerprint=manifest["tokenizer"],
            corruption=PseudoVideoConfig(**manifest["corruption"]),
            seed=manifest["seed"],
            images_hash=manifest["images"],
        )


def hash_images(images: Shaped[Tensor, "n c h w"]) -> str:
    """Hash of images, with their shape and type.

    Returns:
        32 hexadecimal digits.
    """
    digest = hashlib.sha256(f"{tuple(images.shape)}:{images.dtype};".encode())
    # A batch at a time: images on another device or with strides are copied before they are hashed.
    for batch in images.split(1024):
        digest.update(batch.cpu().contiguous().numpy())
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
    return torch.from_numpy(mapped)


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
