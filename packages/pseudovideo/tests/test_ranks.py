"""Two processes have together what one has of the whole batch."""

import pytest
import torch

from probseq.draws import RowGenerator, draw_rows
from pseudovideo.ranks import alone, mean_over_ranks, shared_rows
from pseudovideo.tokenizers.adversarial import adaptive_weight

ROWS = (slice(0, 3), slice(3, 4))


def losses_of(rows):
    """Two losses of some rows, both means, and the weights that they depend on."""
    layer = torch.nn.Parameter(torch.linspace(-1, 1, 5, dtype=torch.float64))
    x = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))[rows]
    return ((x @ layer).square().mean(), (x @ layer).sin().mean()), layer


def drawn(count):
    """Numbers of the rows of two batches, drawn by all ranks that there are."""
    source = RowGenerator()
    source.manual_seed(2)

    def numbers(rows):
        size = rows.stop - rows.start
        uniform = draw_rows(lambda n: torch.rand(n, 2, generator=source), size, source)
        return torch.cat([torch.arange(count)[rows, None], uniform], dim=1)

    return torch.cat([shared_rows(numbers, count, source) for _ in range(2)])


def work(rank, folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    rows = ROWS[rank]
    mean = mean_over_ranks(torch.arange(4.0)[rows].mean(), rows.stop - rows.start)
    losses, layer = losses_of(rows)
    weight = adaptive_weight(*losses, layer, largest=50.0, rows=rows.stop - rows.start)
    together = [drawn(count) for count in (5, 1)]
    with alone():
        by_itself = mean_over_ranks(torch.tensor(7.0 + rank), 1)
    torch.save((mean, weight, together, by_itself), f"{folder}/{rank}.pt")
    torch.distributed.barrier()  # gloo of torch 2.6 waits forever where the other has gone before
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_of_unequal_rows_have_the_numbers_of_the_batch(tmp_path, processes):
    started = [processes.Process(target=work, args=(rank, tmp_path)) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join()
        assert process.exitcode == 0
    losses, layer = losses_of(slice(0, 4))
    expected = adaptive_weight(*losses, layer, largest=50.0).item()
    assert 0.1 < expected < 40
    for rank in range(2):
        mean, weight, together, by_itself = torch.load(tmp_path / f"{rank}.pt")
        assert mean == 1.5
        assert weight.item() == pytest.approx(expected, rel=1e-12)
        for numbers, count in zip(together, (5, 1), strict=True):
            assert torch.equal(numbers, drawn(count))
        assert by_itself == 7.0 + rank
