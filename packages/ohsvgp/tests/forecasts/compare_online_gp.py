"""Updates of a stream beside online_gp's own streaming sparse GP (Maddox et al. 2021).

    git clone https://github.com/wjmaddox/online_gp PEER
    uv run --no-project --with gpytorch==1.6.0 --with ./shared --with ./packages/ohsvgp \
        python packages/ohsvgp/tests/forecasts/compare_online_gp.py PEER

GPyTorch 1.6 is the last version with the classes that online_gp needs. 391 points in ten batches,
one process, one thread, process time, medians of seven runs in turns; float64, the same kernel.
"""

import importlib.util
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpytorch
import torch

from ohsvgp import Cosine, Gaussian, LegS, OnlineGP, UniformGrid
from ohsvgp.bases import Basis
from probseq.kernels import RBF

LENGTHSCALE, NOISE = 4.0, 0.05
T = torch.arange(391, dtype=torch.float64)
Y = (T / 8).sin() + (T / 31).cos() + 0.2 * torch.randn(391, generator=torch.Generator()).double()


def ours(basis: Basis) -> None:
    """Learn the stream in ten updates."""
    gp = OnlineGP(RBF(1, lengthscale=LENGTHSCALE), Gaussian(NOISE), basis)
    for part in torch.arange(391).chunk(10):
        gp.update(T[part], Y[part])


def theirs(peer: Any, num_inducing: int, steps: int) -> None:
    """The same as their ``OnlineSGPRegression.update``: steps of Adam, then the posterior."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    kernel.outputscale, kernel.base_kernel.lengthscale = 1.0, LENGTHSCALE
    points = torch.linspace(0, 390, num_inducing)[:, None]
    gp = peer.StreamingSGPR(points, covar_module=kernel, jitter=1e-6)
    gp.likelihood.noise = NOISE
    for part in torch.arange(391).chunk(10):
        x, y = T[part][:, None], Y[part][:, None]
        gp.train()
        bound = peer.StreamingSGPRBound(gp, combine_terms=False)
        groups = (gp.likelihood.parameters(), gp.covar_module.parameters())
        places = gp.variational_strategy.inducing_points
        adam = torch.optim.Adam([*groups[0], *groups[1], places], lr=0.01)
        for _ in range(steps):
            adam.zero_grad()
            value, trace, _, _ = bound(x, y)
            (-(value + trace)).sum().backward()
            adam.step()
        gp.eval()
        gp = gp.get_fantasy_model(x, y, 0)


def main(folder: Path) -> None:
    """Print a table of ratios."""
    path = folder / "online_gp" / "models" / "streaming_sgpr.py"
    spec = importlib.util.spec_from_file_location("streaming_sgpr", path)
    assert spec is not None
    assert spec.loader is not None
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    print(
        "| M | online_gp against | its posterior alone | with its step of Adam |\n|---|---|---|---|"
    )
    for m in (50, 150):
        runs: dict[str, Callable[[], None]] = {
            "posterior": lambda m=m: theirs(peer, m, 0),
            "step": lambda m=m: theirs(peer, m, 1),
            "LegS": lambda m=m: ours(LegS(m)),
            "Cosine": lambda m=m: ours(Cosine(m)),
            "UniformGrid": lambda m=m: ours(UniformGrid(m)),
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(7):
            for name, run in runs.items():
                start = time.process_time()
                run()
                times[name].append(time.process_time() - start)
        found = {name: statistics.median(each) for name, each in times.items()}
        for name in ("LegS", "Cosine", "UniformGrid"):
            ratios = (f"{found[key] / found[name]:.1f}x" for key in ("posterior", "step"))
            print(f"| {m} | {name} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    main(Path(sys.argv[1]))
