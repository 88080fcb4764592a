"""Gaps in series of irregular stamps: probabilistic layers against a recurrence without variance.

``python packages/ohsvgp/tests/layers/test_gaps.py DATA`` prints Reproduce's tables in some
minutes; DATA is the folder of data sets, without which there is one table.
"""

import math
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ohsvgp import HiPPOLayer, LegS, MaternLayer

LENGTH, WIDTH, BATCH = 48, 16, 16
STEPS, SEEDS, KL_WEIGHT = 300, 3, 1e-3
STARTS = torch.tensor([0.1, 0.3])  # lengthscales of the two heads, in windows


class Batch(NamedTuple):
    """Series on [0, 1] with shared stamps; ``seen`` is false in gaps, where they are predicted."""

    times: Tensor
    series: Tensor
    seen: Tensor


class LinearRecurrence(nn.Module):
    """h_t = e^{λ(t − t')} h_{t'} + B x_t with a diagonal of complex λ, read out linearly."""

    def __init__(self) -> None:
        super().__init__()
        self.log_decay = nn.Parameter(torch.linspace(0.0, 4.0, WIDTH))
        self.frequency = nn.Parameter(2 * math.pi * torch.linspace(0.0, 5.0, WIDTH))
        self.to_state = nn.Linear(WIDTH, 2 * WIDTH)
        self.to_out = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, seen: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """Values, and a penalty of zero."""
        age = (times[:, None] - times).clamp_min(0)
        poles = torch.complex(-self.log_decay.exp(), self.frequency)
        kernel = (age[..., None] * poles).exp() * torch.ones(LENGTH, LENGTH).tril()[..., None]
        u = torch.view_as_complex(self.to_state(x).unflatten(-1, (WIDTH, 2)))
        h = torch.einsum("tsd,bsd->btd", kernel, u)
        return self.to_out(torch.view_as_real(h).flatten(-2)), x.new_zeros(())


class Masked(nn.Module):
    """A layer of the library, to which tokens in gaps say nothing."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, seen: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """Values and penalty."""
        return self.layer(x, seen, times=times)


MODELS = {
    "HiPPOLayer": lambda: Masked(HiPPOLayer(WIDTH, 2, LegS(16, num_nodes=32), lengthscale=STARTS)),
    "MaternLayer": lambda: Masked(MaternLayer(WIDTH, 2, lengthscale=STARTS)),
    "linear recurrence": LinearRecurrence,
}


class Model(nn.Module):
    """Two residual blocks between an embedding of (value or 0, seen) and (mean, log variance)."""

    def __init__(self, make) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(2, WIDTH), nn.Linear(WIDTH, 2)
        self.layers = nn.ModuleList(make() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(2)
        )

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and standard deviation of each value, and the penalty."""
        seen = batch.seen.to(batch.series)
        x = self.embed(torch.stack([batch.series * seen, seen], -1))
        penalty = x.new_zeros(())
        for i in range(2):
            values, kl = self.layers[i](self.norms[2 * i](x), batch.seen, batch.times)
            x = x + values
            x = x + self.mlps[i](self.norms[2 * i + 1](x))
            penalty = penalty + kl
        mean, log_variance = self.head(x).unbind(-1)
        return mean, (0.5 * log_variance.clamp(-12, 4)).exp(), penalty


def hide(times: Tensor, series: Tensor, generator: torch.Generator) -> Batch:
    """Hide a run of 12 tokens, and a tenth of the others; the first four are seen."""
    index = torch.arange(LENGTH)
    start = torch.randint(4, LENGTH - 12, (len(series), 1), generator=generator)
    gap = (index >= start) & (index < start + 12)
    gap |= torch.rand(series.shape, generator=generator) < 0.1
    return Batch(times, series, ~gap | (index < 4))


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator)


def synthetic(generator: torch.Generator, *, test: bool) -> Batch:
    """Two sinusoids of random frequency, phase and amplitude, and noise of deviation .1."""
    times = uniform(generator, LENGTH).sort().values
    frequency, phase = 1 + 3 * uniform(generator, BATCH, 2, 1), uniform(generator, BATCH, 2, 1)
    waves = (2 * math.pi * (frequency * times + phase)).sin()
    series = (torch.randn(BATCH, 2, 1, generator=generator) * waves).sum(1)
    return hide(times, series + 0.1 * torch.randn(series.shape, generator=generator), generator)


def audio(data: Path):
    """Windows of 400 samples of a demodulated sub-band, from another part of it for the test."""
    with np.load(data / "audio_subband" / "audio_subband.npz") as file:
        signal = torch.from_numpy(file["demodulated"])
    signal = signal / signal[:40_000].std()

    def draw(generator: torch.Generator, *, test: bool) -> Batch:
        first, last = (40_000, 49_600) if test else (0, 39_600)
        stamps = torch.randperm(400, generator=generator)[:LENGTH].sort().values
        starts = torch.randint(first, last, (BATCH, 1), generator=generator)
        return hide(stamps / 400, signal[starts + stamps], generator)

    return draw


def scores(make, draw, seed: int, steps: int = STEPS) -> tuple[float, ...]:
    """NLL, RMSE, coverage of central 95 % intervals in the gaps of new series; CPU seconds."""
    started = time.process_time()
    torch.manual_seed(seed)
    model = Model(make)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = draw(generator, test=False)
        mean, sd, penalty = model(batch)
        density = torch.distributions.Normal(mean, sd).log_prob(batch.series)
        loss = -density[~batch.seen].mean() + KL_WEIGHT * penalty / LENGTH
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    generator = torch.Generator().manual_seed(1000)
    nll, squares, inside = [], [], []
    with torch.no_grad():
        for _ in range(20):
            batch = draw(generator, test=True)
            outputs = [model(batch)[:2] for _ in range(32)]
            mean, sd = (torch.stack(each)[:, ~batch.seen] for each in zip(*outputs, strict=True))
            target, law = batch.series[~batch.seen], torch.distributions.Normal(mean, sd)
            nll.append(-(law.log_prob(target).logsumexp(0) - math.log(32)))
            squares.append((mean.mean(0) - target).square())
            inside.append((law.cdf(target).mean(0) - 0.5).abs() < 0.475)
    return (
        float(torch.cat(nll).mean()),
        float(torch.cat(squares).mean().sqrt()),
        float(torch.cat(inside).double().mean()),
        time.process_time() - started,
    )


def table(name: str, draw) -> None:
    """Print the scores of all models, as mean and range over seeds."""
    rows = [(model, make, STEPS) for model, make in MODELS.items()]
    rows.append(("linear recurrence, 4 times the steps", LinearRecurrence, 4 * STEPS))
    print(f"\n| {name} | NLL | RMSE | coverage of 95 % | CPU |")
    for model, make, steps in rows:
        values = np.array([scores(make, draw, seed, steps) for seed in range(SEEDS)])
        cells = [
            f"{mean:.3f} ({low:.3f} to {high:.3f})"
            for mean, low, high in zip(
                values.mean(0)[:3], values.min(0)[:3], values.max(0)[:3], strict=True
            )
        ]
        print(f"| {model} | {' | '.join(cells)} | {values[:, 3].mean():.0f} s |", flush=True)


@pytest.mark.slow
def test_layers_with_a_variance_give_gaps_more_density_and_cover_them():
    found = {name: scores(make, synthetic, 0, 100) for name, make in MODELS.items()}
    for name in ("HiPPOLayer", "MaternLayer"):
        assert found[name][0] < found["linear recurrence"][0]
        assert abs(found[name][2] - 0.95) < 0.06


def test_the_recurrence_of_the_baseline_is_the_loop_over_time():
    torch.manual_seed(0)
    model, x = LinearRecurrence().double(), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    times = torch.rand(LENGTH, dtype=torch.float64).sort().values
    h = torch.zeros(2, WIDTH, dtype=torch.complex128)
    poles = torch.complex(-model.log_decay.exp(), model.frequency)
    for t in range(LENGTH):
        u = torch.view_as_complex(model.to_state(x[:, t]).unflatten(-1, (WIDTH, 2)))
        h = (poles * (times[t] - times[max(t - 1, 0)])).exp() * h + u
    expected = model.to_out(torch.view_as_real(h).flatten(-2))
    values, _ = model(x, torch.ones(2, LENGTH, dtype=torch.bool), times)
    torch.testing.assert_close(values[:, -1], expected)


if __name__ == "__main__":
    table("sinusoids", synthetic)
    if sys.argv[1:]:
        table("audio", audio(Path(sys.argv[1])))
