"""Videos as patches of several frames, and the two ways into the network."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from pseudovideo.spec import Stem


def patchify(
    videos: Float[Tensor, "b f c y x"], temporal_patch: int, patch_size: int
) -> Float[Tensor, "b t h w p"]:
    """Cut videos into patches of `temporal_patch` frames and `patch_size` pixels a side.

    The values of each patch are in the order (frame, row, column, channel).
    """
    return rearrange(
        videos,
        "b (t f) c (h y) (w x) -> b t h w (f y x c)",
        f=temporal_patch,
        y=patch_size,
        x=patch_size,
    )


def unpatchify(
    patches: Float[Tensor, "b t h w p"], temporal_patch: int, patch_size: int
) -> Float[Tensor, "b f c y x"]:
    """Put patches together again: the inverse of `patchify`."""
    return rearrange(
        patches,
        "b t h w (f y x c) -> b (t f) c (h y) (w x)",
        f=temporal_patch,
        y=patch_size,
        x=patch_size,
    )


class PatchStem(nn.Module):
    """The first layer: what a patch is to the transformer.

    `plain` is a linear map of the raw values. `layernorm` is what public C-ViViT code does:
    LayerNorm on the raw patch, a linear map, LayerNorm. The first of these takes each patch's mean
    and standard deviation out, so that the network never sees brightness and contrast: a black and
    a white image are the same to it. It is kept to reproduce results that were won with it.
    """

    def __init__(self, patch_dim: int, dim: int, stem: Stem) -> None:
        super().__init__()
        normed = stem == "layernorm"
        self.norm_patch = nn.LayerNorm(patch_dim) if normed else nn.Identity()
        self.linear = nn.Linear(patch_dim, dim)
        self.norm = nn.LayerNorm(dim) if normed else nn.Identity()

    def forward(self, patches: Float[Tensor, "*b p"]) -> Float[Tensor, "*b d"]:
        """Return W patch + b, between two norms or none."""
        return self.norm(self.linear(self.norm_patch(patches)))
