"""How a few samples come into being, for the films of reports, and the file that holds it."""

from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from probseq_apps.engine.files import load_arrays
from probseq_apps.experiments.stored import save_arrays


class Process(NamedTuple):
    """Snapshots of sampling.

    An image model has predictions of the image at each snapshot, T = 1; a video model all its
    frames, those that have not begun being grey (0 in -1..1); an HVAE the image of each level,
    T = 1.

    Attributes:
        frames: of n samples at k snapshots, bytes 0..255 for -1..1.
        done: denoising steps that were done at each snapshot, over all stages, or levels; rising,
            and the last is their total.
    """

    frames: UInt8[Tensor, "n k t c h w"]
    done: Int64[Tensor, " k"]

    @classmethod
    def of(cls, frames: Float[Tensor, "n k t c h w"], done: Int64[Tensor, " k"]) -> "Process":
        """Bytes of snapshots in -1..1; values beyond are clamped."""
        levels = frames.detach().float().clamp(-1, 1).add(1).mul(127.5).round()
        return cls(levels.to(torch.uint8).cpu(), done.cpu())

    def save(self, file: Path) -> None:
        """Write the arrays, all or nothing."""
        save_arrays(file, {"frames": self.frames, "done": self.done})

    @classmethod
    def load(cls, file: Path) -> "Process":
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: the file is not there.
            ValueError: it holds something else.
        """
        if not file.is_file():
            raise FileNotFoundError(f"process must be a file of snapshots, and {file} is not there")
        arrays = load_arrays(file)
        try:
            frames, done = (torch.from_numpy(arrays[name]) for name in ("frames", "done"))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"process must be a file of snapshots, and {file} holds none"
            ) from error
        if frames.ndim != 6 or done.shape != frames.shape[1:2]:
            raise ValueError(
                f"process must have frames (n, k, t, c, h, w) and k numbers of steps, and {file} "
                f"has {tuple(frames.shape)} and {tuple(done.shape)}"
            )
        return cls(frames, done)
