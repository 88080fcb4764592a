"""K-means on raw patches: what a tokenizer of equal tokens has to beat."""

from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from probseq.checks import check_counts
from pseudovideo.pretrained import Pretrained
from pseudovideo.spec import TokenGrid, TokenizerConfig
from pseudovideo.tokenizers.codebook import cluster_sums, nearest_codes
from pseudovideo.tokenizers.patches import patchify, unpatchify
from pseudovideo.tokenizers.tokenizer import check_indices, check_range, check_shape

_DISTANCES_AT_ONCE = 2**24
_SEEDING_ROUNDS = 8


class _Assignment(NamedTuple):
    """The nearest code of each point, and how far it is, squared."""

    indices: Int64[Tensor, " n"]
    errors: Float[Tensor, " n"]


class PatchKMeans(Pretrained):
    """A codebook of raw patches, one for all slots and places: no network at all.

    It has the grid, the codebook size and so the bits of a tokenizer of the same settings. A
    tokenizer that reconstructs worse has not learned to use its tokens.

    Args:
        config: of the tokenizer to compare with; its sizes and `codebook_size` count here.
    """

    config_class: ClassVar[type[TokenizerConfig]] = TokenizerConfig
    config: TokenizerConfig
    codebook: Float[Tensor, "k p"]
    fitted: Bool[Tensor, ""]

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.config = config
        self.patch = (config.temporal_patch, config.patch_size)
        patch_dim = config.temporal_patch * config.patch_size**2 * config.channels
        self.register_buffer("codebook", torch.zeros(config.codebook_size, patch_dim))
        self.register_buffer("fitted", torch.tensor(False))

    @property
    def grid(self) -> TokenGrid:
        """The tokens of a video."""
        return self.config.grid

    @torch.no_grad()
    def fit(
        self,
        videos: Float[Tensor, "b f c y x"],
        *,
        iterations: int = 25,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " i"]:
        """Run Lloyd's algorithm on all patches, on the device of the codebook.

        It starts at patches that are drawn in rounds with probability proportional to the squared
        distance to the nearest one drawn before (k-means++ in few passes). A code that no patch
        chooses takes the place of a patch that is drawn in the same way.

        Args:
            videos: what is to be clustered; a few thousand videos serve a thousand codes well.
            iterations: assignments and averages at most; it stops where nothing changes.
            generator: of the draws.

        Returns:
            Mean squared error per pixel value before each average; never increases.

        Raises:
            ValueError: videos are not of `config`, or give fewer patches than codes.
        """
        check_counts(iterations=iterations)
        points = self._points(videos)
        size = self.config.codebook_size
        if len(points) < size:
            raise ValueError(
                f"videos must give at least codebook_size={size} patches, got {len(points)}"
            )
        codebook = _seed(points, size, generator)
        history: list[Tensor] = []
        before = None
        for _ in range(iterations):
            assignment = _assign(points, codebook)
            history.append(assignment.errors.mean() / points.shape[1])
            if before is not None and torch.equal(assignment.indices, before):
                break
            before = assignment.indices
            codebook = _update(points, assignment, codebook, generator)
        self.codebook.copy_(codebook)
        self.fitted.fill_(True)
        return torch.stack(history)

    @torch.no_grad()
    def encode(self, videos: Float[Tensor, "b f c y x"]) -> Int64[Tensor, "b t h w"]:
        """Return the nearest code of each patch.

        Args:
            videos: as of `Tokenizer.encode`.

        Raises:
            ValueError: videos are not of `config`, or nothing has been fitted.
        """
        self._check_fitted()
        indices = _assign(self._points(videos), self.codebook).indices
        return indices.view(-1, *self.grid.shape)

    @torch.no_grad()
    def decode(self, indices: Int64[Tensor, "b t h w"]) -> Float[Tensor, "b f c y x"]:
        """Return the codes as pixels, clamped to −1..1.

        Args:
            indices: tokens, 0..K−1.

        Raises:
            ValueError: the grid or the values are not those of `config`, or nothing was fitted.
        """
        self._check_fitted()
        check_indices(indices, self.grid)
        return unpatchify(self.codebook[indices], *self.patch).clamp(-1.0, 1.0)

    def reconstruct(self, videos: Float[Tensor, "b f c y x"]) -> Float[Tensor, "b f c y x"]:
        """Return videos through their tokens: `decode(encode(videos))`."""
        return self.decode(self.encode(videos))

    def _check_fitted(self) -> None:
        if not self.fitted:
            raise ValueError("PatchKMeans must be fitted before it is used: call fit(videos)")

    def _points(self, videos: Float[Tensor, "b f c y x"]) -> Float[Tensor, "n p"]:
        check_shape(videos, self.config)
        check_range(videos)
        return patchify(videos.to(self.codebook), *self.patch).flatten(0, 3)


def _assign(points: Float[Tensor, "n p"], codebook: Float[Tensor, "k p"]) -> _Assignment:
    """Return nearest codes, in pieces whose distances fit into memory."""
    pieces = points.split(max(1, _DISTANCES_AT_ONCE // len(codebook)))
    nearest = [nearest_codes(piece, codebook) for piece in pieces]
    errors = [
        (piece - codebook[indices]).square().sum(dim=-1)
        for piece, indices in zip(pieces, nearest, strict=True)
    ]
    return _Assignment(torch.cat(nearest), torch.cat(errors))


def _update(
    points: Float[Tensor, "n p"],
    assignment: _Assignment,
    codebook: Float[Tensor, "k p"],
    generator: torch.Generator | None,
) -> Float[Tensor, "k p"]:
    """Return means of each code's patches; empty codes start anew at badly served ones."""
    size = len(codebook)
    at_once = max(1, _DISTANCES_AT_ONCE // size)
    counts, sums = points.new_zeros(size), torch.zeros_like(codebook)
    for piece, indices in zip(
        points.split(at_once), assignment.indices.split(at_once), strict=True
    ):
        more, further = cluster_sums(piece, indices, size)
        counts, sums = counts + more, sums + further
    means = sums / counts.clamp(min=1)[:, None]
    empty = counts == 0
    # The first draws, the likeliest to be bad ones, go to the empty codes.
    drawn = _draw(assignment.errors, size, generator)[(empty.cumsum(0) - 1).clamp(min=0)]
    # A patch that a code meets exactly is of no use as another code.
    useful = assignment.errors[drawn] > 0
    fresh = torch.where(useful[:, None], points[drawn], codebook)
    return torch.where(empty[:, None], fresh, means)


def _seed(
    points: Float[Tensor, "n p"], size: int, generator: torch.Generator | None
) -> Float[Tensor, "k p"]:
    """Return patches far from each other."""
    first, *others = torch.arange(size).tensor_split(min(_SEEDING_ROUNDS, size))
    codebook = points[_draw(points.new_ones(len(points)), len(first), generator)]
    for piece in others:
        drawn = _draw(_assign(points, codebook).errors, len(piece), generator)
        codebook = torch.cat((codebook, points[drawn]))
    return codebook


def _draw(
    weights: Float[Tensor, " n"], count: int, generator: torch.Generator | None
) -> Int64[Tensor, " m"]:
    """Draw without replacement, each next one with probability proportional to its weight.

    The largest weight/exponential are such a draw (Efraimidis and Spirakis 2006), for any n:
    `torch.multinomial` ends at 2²⁴.
    """
    device = weights.device if generator is None else generator.device
    times = torch.empty(len(weights), device=device).exponential_(generator=generator)
    return (weights / times.to(weights)).topk(count).indices
