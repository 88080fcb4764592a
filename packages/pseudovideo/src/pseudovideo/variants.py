"""Variants of the thesis' tables: tokenizers of equal bits, and diffusion models by their names.

Importing this module loads no torch.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

from pseudovideo.spec import (
    ClassSpec,
    CorruptionKind,
    CorruptionSpec,
    DiffusionSpec,
    ImageDiffusionConfig,
    PseudoVideoConfig,
    UNetSpec,
    VideoDiffusionConfig,
    VideoSpec,
    unet_values,
)

# `frames` for videos of a length; of their controls `repeat` for as many identical frames, `patch`
# for one frame in patches of half the side.
VariantKind = Literal["frames", "patch", "repeat"]
# What stands behind "T-frame-" and makes the frames before the image.
CORRUPTION_OF: dict[str, CorruptionKind] = {
    "first-order": "first-order-noise",
    "high-order": "high-order-noise",
    "matched": "matched-noise",
    "blur": "high-order-blur",
    "first-order-blur": "blur",
}
_NAME = re.compile(r"1-frame-(?P<steps>\d+)|(?P<frames>[1-9]\d*)-frame-(?P<kind>.+)")


class TokenVariant(NamedTuple):
    """One way from images to tokens."""

    name: str  # in tables and folders
    kind: VariantKind
    frames: int  # T
    patch_size: int  # side of a patch in pixels
    corruption: CorruptionKind  # what makes the frames


def token_variants(
    lengths: Sequence[int], patch_size: int, corruption: CorruptionKind, *, controls: bool = True
) -> tuple[TokenVariant, ...]:
    """Return videos of some lengths T and their controls, in the order of the tables (section 5.3).

    A video of T frames has T/2 slots of tokens, so it spends T/2 times the bits of its image. Two
    controls spend bits on the image alone: T identical frames have exactly the bits of the video;
    one frame in half patches has four times those of the image, which is exact for T = 8 only.
    """
    variants: list[TokenVariant] = []
    for number in lengths:
        variants.append(TokenVariant(f"{number}-frame", "frames", number, patch_size, corruption))
        if controls and number > 1 and corruption != "repeat":
            variants.append(
                TokenVariant(f"{number}-frame-repeat", "repeat", number, patch_size, "repeat")
            )
    if controls and max(lengths) > 1:
        half = patch_size // 2
        variants.append(TokenVariant(f"1-frame-patch{half}", "patch", 1, half, corruption))
    return tuple(variants)


class DiffusionVariant(NamedTuple):
    """An image model, or a model of pseudo videos.

    Example:
        >>> from pseudovideo import CorruptionSpec
        >>> from pseudovideo.variants import DiffusionVariant
        >>> DiffusionVariant.parse("4-frame-high-order").videos(CorruptionSpec()).kind
        'high-order-noise'
    """

    name: str  # in tables and folders
    frames: int  # T; 1 for the image alone
    corruption: CorruptionKind | None  # what makes the frames before the image
    diffusion_steps: int | None  # of a variant that has its own number; None for that of all

    @classmethod
    def parse(cls, name: str) -> "DiffusionVariant":
        """Return what a variant's name means.

        - ``1-frame``: the image model; ``1-frame-4000`` with 4,000 diffusion steps.
        - ``T-frame-first-order``, ``T-frame-high-order``, ``T-frame-matched`` (first-order noise at
          the levels of the high-order one), ``T-frame-blur`` (high-order blur) and
          ``T-frame-first-order-blur``, for any even T.
        """
        match = _NAME.fullmatch(name)
        frames = int(match["frames"] or 1) if match else 1
        if match and match["steps"]:
            if int(match["steps"]) < 2:
                raise ValueError(f"variants must have at least 2 diffusion steps, got {name!r}")
            return cls(name, 1, None, int(match["steps"]))
        lengths = sorted({4, 8, frames} - {1})  # the thesis has 4 and 8
        names = ["1-frame", "1-frame-4000"]
        names += [f"{length}-frame-{kind}" for length in lengths for kind in CORRUPTION_OF]
        if name not in names:
            near = get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f" did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown variant {name!r};{hint} known: {', '.join(names)}")
        if frames > 1 and frames % 2:
            raise ValueError(
                f"variants must have 1 frame or an even number, half as context, got {name!r}"
            )
        return cls(name, frames, CORRUPTION_OF[match["kind"]] if match else None, None)

    @property
    def is_video(self) -> bool:
        """True where it has frames before the image."""
        return self.frames > 1

    def videos(self, spec: CorruptionSpec) -> PseudoVideoConfig:
        """Return the pseudo videos that it learns."""
        return spec.for_frames(self.frames, self.corruption or "repeat")

    def context(self, spec: VideoSpec) -> int:
        """Return the frames C that a frame is generated from; 0 for one frame."""
        return (spec.context or self.frames // 2) if self.is_video else 0

    def config(
        self,
        image_size: int,
        channels: int,
        *,
        unet: UNetSpec,
        process: DiffusionSpec,
        frames: VideoSpec,
        classes: ClassSpec | None = None,
    ) -> ImageDiffusionConfig | VideoDiffusionConfig:
        """Return the settings of its model of such images, and of these classes."""
        values: dict[str, Any] = unet_values(unet, image_size, channels, classes)
        values |= process.to_dict()
        values["num_steps"] = self.diffusion_steps or process.num_steps
        if not self.is_video:
            return ImageDiffusionConfig(**values)
        values |= {name: getattr(frames, name) for name in VideoSpec.__dataclass_fields__}
        values |= {"num_frames": self.frames, "context": self.context(frames)}
        return VideoDiffusionConfig(**values)
