from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from probseq.pretrained import fingerprint
from pseudovideo.priors.base import AxisPositions
from pseudovideo.priors.masked import MaskedConfig, MaskedPrior
from pseudovideo.spec import TokenGrid
from pseudovideo.token_cache import TokenCache
from pseudovideo.tokenizers import Tokenizer

GRID = TokenGrid(codebook_size=6, shape=(2, 2, 3))


class Table(Tokenizer):
    """A tokenizer whose frame is a row of numbers for each token."""

    grid = GRID

    def __init__(self, grid: TokenGrid = GRID) -> None:
        nn.Module.__init__(self)
        self.grid = self.config = grid
        self.rows = nn.Parameter(torch.linspace(-1, 1, grid.codebook_size))
        self.batches: list[int] = []

    def decode(self, indices: Tensor) -> Tensor:
        self.batches.append(len(indices))
        return self.rows[indices][:, :, None]


def prior(tokenizer_fingerprint: str | None = None) -> MaskedPrior:
    torch.manual_seed(0)
    return MaskedPrior(
        MaskedConfig(
            codebook_size=6,
            grid=(2, 2, 3),
            tokenizer_fingerprint=tokenizer_fingerprint,
            dim=8,
            depth=1,
            num_heads=2,
        )
    )


def cache_of(grid: TokenGrid, tokenizer_fingerprint: str) -> TokenCache:
    return TokenCache(
        tokens=torch.zeros(3, *grid.shape, dtype=torch.int16),
        codebook_size=grid.codebook_size,
        tokenizer_fingerprint=tokenizer_fingerprint,
        corruption={},
        seed=0,
        images_hash="0" * 32,
    )


def test_positions_are_sums_over_the_axes_in_raster_order() -> None:
    positions = AxisPositions((2, 3, 4), 5)
    expected = [
        positions.time[t] + positions.rows[y] + positions.columns[x]
        for t in range(2)
        for y in range(3)
        for x in range(4)
    ]
    torch.testing.assert_close(positions(), torch.stack(expected), rtol=0, atol=1e-7)


def test_frames_are_those_of_the_tokens_drawn_batch_by_batch() -> None:
    tokenizer, model = Table(), prior()
    frames = model.sample(
        7, tokenizer, num_steps=3, generator=torch.Generator().manual_seed(1), batch_size=3
    )
    assert tokenizer.batches == [3, 3, 1]
    generator = torch.Generator().manual_seed(1)
    tokens = [model.sample_tokens(n, num_steps=3, generator=generator) for n in (3, 3, 1)]
    assert torch.equal(frames, tokenizer.rows[torch.cat(tokens)][:, :, None])
    assert not frames.requires_grad


@pytest.mark.parametrize(
    ("grid", "found"),
    [
        (TokenGrid(codebook_size=7, shape=(2, 2, 3)), r"got 7 and \(2, 2, 3\)"),
        (TokenGrid(codebook_size=6, shape=(2, 3, 2)), r"got 6 and \(2, 3, 2\)"),
    ],
)
@pytest.mark.parametrize("what", ["check_tokenizer", "sample", "check_cache"])
def test_another_codebook_or_grid_is_refused(grid: TokenGrid, found: str, what: str) -> None:
    tokenizer = Table(grid)
    calls: dict[str, Callable[[], object]] = {
        "check_tokenizer": lambda: prior().check_tokenizer(tokenizer),
        "sample": lambda: prior().sample(2, tokenizer),
        "check_cache": lambda: prior().check_cache(cache_of(grid, "a" * 32)),
    }
    with pytest.raises(ValueError, match=r"must have codebook_size=6 and a grid .*" + found):
        calls[what]()
    assert tokenizer.batches == []


def test_another_tokenizer_of_the_same_grid_is_refused_where_the_prior_knows_its_own() -> None:
    mine, other = Table(), Table()
    with torch.no_grad():
        other.rows[2] += 1e-7
    knowing = prior(fingerprint(mine))
    knowing.check_tokenizer(mine)
    knowing.check_cache(cache_of(GRID, fingerprint(mine)))
    with pytest.raises(ValueError, match="tokenizer must be of the tokenizer whose tokens"):
        knowing.sample(1, other)
    with pytest.raises(ValueError, match="cache must be of the tokenizer whose tokens"):
        knowing.check_cache(cache_of(GRID, fingerprint(other)))
    prior().check_tokenizer(other)
    prior().check_cache(cache_of(GRID, fingerprint(other)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n must be a whole number of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"num_steps": 0}, "num_steps must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_numbers_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prior().sample(**{"n": 2, "tokenizer": Table(), **options})


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(2, 2, 2, 3), r"tokens must be integers .*float32 of shape \(2, 2, 2, 3\)"),
        (torch.zeros(2, 2, 3, 2, dtype=torch.int64), r"\(batch, 2, 2, 3\), got .*\(2, 2, 3, 2\)"),
        (torch.zeros(2, 12, dtype=torch.int64), r"\(batch, 2, 2, 3\), got .*\(2, 12\)"),
        (torch.zeros(0, 2, 2, 3, dtype=torch.int64), r"got .*\(0, 2, 2, 3\)"),
        (torch.full((2, 2, 2, 3), 6), r"tokens must lie in 0..5, got 6..6"),
        (torch.full((2, 2, 2, 3), -1, dtype=torch.int16), r"tokens must lie in 0..5, got -1..-1"),
    ],
)
@pytest.mark.usefixtures("plain_calls")
def test_tokens_that_are_not_of_the_grid_are_refused(tokens: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prior().loss(tokens)
