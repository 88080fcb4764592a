"""Corruptions of single pixels: colours that fade, and patches that are hidden."""

import torch

from pseudovideo.corruptions.base import Corruption, Frames, Hidden, Images, ImageShape, Operators
from pseudovideo.spec import PseudoVideoConfig


class Colour(Corruption):
    """Colours that fade: frame t has saturation s_t = (t−1)/(T−1) of the image's.

    A_t = s_t I + (1−s_t) 11ᵀ/c on the c channels of a pixel: the first frame is their mean, grey.
    """

    def operators(self, config: PseudoVideoConfig, shape: ImageShape) -> Operators:
        """Return A; refuse grey images."""
        if shape.channels < 2:
            raise ValueError("images must have colours for config.kind=colour, got 1 channel")
        saturation = torch.linspace(0, 1, config.num_frames, dtype=torch.float64)[:-1, None, None]
        eye = torch.eye(shape.channels, dtype=torch.float64)
        return (saturation * eye + (1 - saturation) / shape.channels,)

    def signal(self, images: Images, operators: Operators, hidden: Hidden) -> Frames:
        """Return A_t on the channels of each pixel."""
        return torch.einsum("tdc,bchw->btdhw", operators[0], images)


class PatchMask(Corruption):
    """Patches that are hidden: frame t shows ⌊P·t/T⌋ of P patches, the others are 0, mid-grey.

    Patches appear in an order that is drawn for each video, all equally likely; what a frame shows
    all later ones show.
    """

    def operators(self, config: PseudoVideoConfig, shape: ImageShape) -> Operators:
        """Return how many patches the frames show, and sides as a grid of patch numbers."""
        side = config.mask_patch
        if shape.height % side or shape.width % side:
            raise ValueError(
                f"images must be a whole number of patches of mask_patch={side} pixels on each "
                f"side for config.kind=patch-mask, got {shape.height}x{shape.width}"
            )
        rows, columns = shape.height // side, shape.width // side
        if rows * columns < config.num_frames:
            raise ValueError(
                f"images must have at least num_frames={config.num_frames} patches of "
                f"mask_patch={side} pixels for config.kind=patch-mask, got {rows * columns} in "
                f"{shape.height}x{shape.width}"
            )
        numbers = torch.arange(rows * columns).view(rows, columns)
        grid = numbers.repeat_interleave(side, 0).repeat_interleave(side, 1)
        shown = torch.arange(1, config.num_frames) * rows * columns // config.num_frames
        return shown.double(), grid.double()

    def num_hidden(self, config: PseudoVideoConfig, shape: ImageShape) -> int:
        """Return P: ranks of normal numbers are the order."""
        return shape.height * shape.width // config.mask_patch**2

    def signal(self, images: Images, operators: Operators, hidden: Hidden) -> Frames:
        """Return the patches that are shown."""
        if hidden is None:
            raise ValueError(
                "hidden must be given for config.kind=patch-mask: its frames depend on it"
            )
        shown, grid = operators
        ranks = hidden.argsort(-1).argsort(-1)[:, grid.long()]
        visible = ranks[:, None] < shown[:, None, None]
        return images[:, None] * visible[:, :, None]
