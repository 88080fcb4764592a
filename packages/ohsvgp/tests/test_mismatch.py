"""Warnings of first targets that the prior does not expect."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from ohsvgp import (
    Bernoulli,
    Gaussian,
    LegS,
    Level,
    OnlineGP,
    OnlineSVGPVAE,
    Poisson,
    PriorMismatchWarning,
    Refit,
    StudentT,
)
from ohsvgp.vae import MLPDecoder, MLPEncoder
from probseq.kernels import RBF

T = torch.linspace(0.0, 10.0, 30, dtype=torch.float64)
NOISE = 0.3 * torch.randn(30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
WAVE = T.sin() + NOISE


@pytest.mark.parametrize(
    ("y", "likelihood", "words"),
    [
        (20 + WAVE, Gaussian(0.1), "y lies about 19.9"),
        (101_325 + WAVE, StudentT(), "y lies about 1.01e"),
        (300 * WAVE, Gaussian(0.1), "y lies about"),
        (torch.stack([WAVE, WAVE - 50]), Gaussian(0.1), "y lies about -50"),
        (torch.full((30,), 5000.0), Poisson(), "logarithms of y lies about 8.52"),
        (1e-3 * WAVE, Gaussian(0.1), "all of it noise"),
    ],
)
def test_raw_units_are_told_once_with_what_to_do(y, likelihood, words) -> None:
    gp = OnlineGP(RBF(1), likelihood, LegS(12))
    with pytest.warns(PriorMismatchWarning, match=words):
        gp.update(T[:20], y[..., :20])
    gp.update(T[20:], y[..., 20:])  # warnings are errors in these tests


def test_levels_that_a_prior_expects_and_outliers_are_none() -> None:
    outlier = torch.where(torch.arange(30) == 3, -9999.0, WAVE)
    hidden = torch.arange(30) > 0
    for y, likelihood, options in (
        (20 + WAVE, Gaussian(0.1), {"mean": Level(20.0)}),
        (20 + WAVE, Gaussian(0.1), {"refit": Refit()}),
        (outlier, StudentT(), {}),
        (torch.poisson(torch.full((30,), 4.0)), Poisson(), {}),
        ((WAVE > 0).double(), Bernoulli(), {}),
    ):
        OnlineGP(RBF(1), likelihood, LegS(12), **options).update(T, y)
    y = torch.where(hidden, torch.nan, 30 + WAVE)
    gp = OnlineGP(RBF(1), Gaussian(0.1), LegS(12), t0=-1.0)
    gp.update(T[1:], y[1:], missing="drop")  # no value yet
    with pytest.warns(PriorMismatchWarning, match="y lies about"):
        gp.update(T[-1:], 30 + WAVE[-1:])


def test_draws_of_the_prior_hardly_ever_warn() -> None:
    warned = 0
    for seed in range(60):
        torch.manual_seed(seed)
        gp = OnlineGP(RBF(1, lengthscale=50.0), Gaussian(0.1), LegS(5))
        f = gp.sample(T, 1)[0]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PriorMismatchWarning)
            gp.update(T, f + 0.1**0.5 * torch.randn(30))
        warned += len(caught)
    assert warned <= 2  # 0.1 expected at most, where all values are as good as equal


@pytest.mark.parametrize("units", [(1000.0, 1.0), (0.0, 1000.0)])
def test_an_autoencoder_tells_of_channels_in_raw_units(units) -> None:
    level, scale = units
    y = level + scale * torch.stack([T.sin(), T.cos()], -1)
    vae = OnlineSVGPVAE(MLPEncoder(2, 1), MLPDecoder(1, 2), RBF(1), LegS(6), num_latents=1)
    with pytest.warns(PriorMismatchWarning, match=r"y\[:, 0\] lies about"):
        vae.fit_task(T, y, epochs=1)


@pytest.mark.parametrize("readme", ["../../README.md", "README.md"])
@pytest.mark.filterwarnings("ignore::ohsvgp.LostInformationWarning")
def test_examples_of_readmes_hold_on_temperatures(readme: str) -> None:
    text = (Path(__file__).parents[1] / readme).read_text("utf-8")
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "°C" in code]
    lines = code.splitlines()
    first = next(i for i, line in enumerate(lines) if "°C" in line)
    last = next(i for i, line in enumerate(lines) if line.startswith("low, high"))
    imports = ["import torch, ohsvgp", "from ohsvgp import *"]
    imports += ["from probseq.kernels import RBF, parse_kernel"]
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec("\n".join([*imports, *lines[first : last + 1]]), names)
    tomorrow = 20 + 5 * (2 * torch.pi * torch.arange(24) / 24).sin() + torch.randn(24)
    inside = (names["low"] < tomorrow) & (tomorrow < names["high"])
    assert inside.double().mean() > 0.8
    assert (names["high"] - names["low"]).mean() < 8  # 3.9 of noise alone
