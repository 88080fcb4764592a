"""What an online Gaussian process refuses, and that a refusal leaves it as it was."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from ohsvgp import Bernoulli, Cosine, Gaussian, LegS, OnlineGP, Poisson, RandomSubset
from probseq.errors import CholeskyError
from probseq.kernels import RBF, Kernel, Matern32

T = torch.linspace(0, 5, 20, dtype=torch.float64)
Y = T.sin()
NAN, INF = math.nan, math.inf


def model(**options: Any) -> OnlineGP:
    return OnlineGP(RBF(1, lengthscale=0.8), Gaussian(0.02), LegS(6), **options)


def assert_unchanged(gp: OnlineGP, act: Callable[[], object]) -> None:
    before, clock, state = gp.state_dict(), gp.clock, gp.state
    act()
    after = gp.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert gp.clock is clock
    assert gp.state is state


BAD_UPDATES: list[tuple[Any, Any, dict[str, Any], str]] = [
    ([6.0, NAN], [0.0, 0.0], {}, "t must be finite, got nan at position 1"),
    ([6.0, 7.0], [0.0, NAN], {}, "y must be finite, got 1 NaN or infinite"),
    ([6.0, 7.0], [INF, 0.0], {"missing": "drop"}, "y must be finite"),
    ([-0.5, 6.0], [0.0, 0.0], {}, "t must not lie before t0=0.0, got -0.5"),
    ([7.0, 6.0], [0.0, 0.0], {}, "t must be sorted"),
    (np.zeros((2, 1)), [0.0, 0.0], {}, "t must have shape (n,)"),
    ([6.0, 7.0], [0.0], {}, "y must have shape (..., 2) for 2 inputs, got (1,)"),
    ([6.0], [0.0], {"mask": [True, True]}, "mask must have y's shape"),
    ([6.0], [0.0], {"mask": [1]}, "mask must be boolean"),
    ([6.0], [0.0], {"mask": [True], "missing": "drop"}, "exclude each other"),
    (pd.to_datetime(["2020-01-01"]), [0.0], {}, "t must hold numbers"),
    ([6.0], [0.0], {"t_end": pd.Timestamp("2020-01-01")}, "t_end must hold num"),
    ([6.0], [0.0], {"t_end": [7.0, 8.0]}, "t_end must be one stamp, got 2"),
]


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(("t", "y", "options", "message"), BAD_UPDATES)
def test_a_bad_update_is_refused_and_the_model_stays(
    t: Any, y: Any, options: dict[str, Any], message: str
) -> None:
    gp = model(t0=0.0)
    gp.update(T, Y)

    def act() -> None:
        for call in (gp.update, gp.partial_fit, gp.updated, gp.energy):
            with pytest.raises(ValueError, match=re.escape(message)):
                call(t, y, **options)

    assert_unchanged(gp, act)


def test_unsorted_stamps_are_sorted_on_demand_with_their_targets_and_mask() -> None:
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    hidden = T > 4.2
    hidden[-1] = False
    gp, sorted_gp = model(), model()
    y = Y.masked_fill(hidden, NAN)
    gp.update(T[order], y[order], mask=~hidden[order], sort=True)
    sorted_gp.update(T, y, mask=~hidden)
    assert gp.clock == sorted_gp.clock
    torch.testing.assert_close(gp.predict(T).mean, sorted_gp.predict(T).mean)


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (Bernoulli(), [0.0, 1.0, 2.0]),
        (Bernoulli(), [0.0, 0.5, 1.0]),
        (Poisson(), [0.0, 3.0, -1.0]),
        (Poisson(), [0.0, 3.0, 1.5]),
    ],
)
def test_targets_outside_the_support_are_refused_unless_hidden(
    likelihood: Any, y: list[float]
) -> None:
    gp = OnlineGP(RBF(1), likelihood, LegS(4))
    good = [float(value in (0.0, 1.0, 3.0)) for value in y]
    with pytest.raises(ValueError, match="y must"):
        gp.update([0.0, 1.0, 2.0], y)
    assert gp.state is None
    info = gp.update([0.0, 1.0, 2.0], y, mask=np.array(good, dtype=bool))
    assert bool(info.energy.isfinite())
    with pytest.raises(ValueError, match="y must"):
        gp.log_prob([0.0, 1.0, 2.0], y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda gp: setattr(gp, "kernel", Matern32(1).double()), "kernel Matern32 instead of RBF"),
        (lambda gp: setattr(gp, "basis", LegS(7)), "num_inducing 7 instead of 6"),
        (lambda gp: setattr(gp, "basis", Cosine(6)), "basis Cosine instead of LegS"),
        (lambda gp: setattr(gp, "likelihood", Poisson()), "likelihood Poisson instead of Gaussian"),
    ],
)
def test_a_model_stays_of_its_kind(change: Callable[[OnlineGP], None], message: str) -> None:
    gp = model()
    gp.update(T, Y)
    change(gp)
    state = gp.state
    for call in (lambda: gp.update([6.0], [0.0]), lambda: gp.predict(T)):
        with pytest.raises(ValueError, match=message):
            call()
    assert gp.state is state


class Indefinite(RBF):
    """RBF minus a constant: no covariance once the constant is large."""

    def __init__(self, minus: float) -> None:
        super().__init__(1)
        self.minus = nn.Parameter(torch.tensor(minus))

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        return super()._covariance(x, z) - self.minus


def test_a_covariance_that_will_not_factorise_raises_and_the_model_stays() -> None:
    kernel: Kernel = Indefinite(0.0)
    gp = OnlineGP(kernel, Gaussian(0.1), RandomSubset(4))
    gp.update(T[:10], Y[:10])
    with torch.no_grad():
        kernel.minus.fill_(5.0)

    def act() -> None:
        for call in (lambda: gp.update(T[10:], Y[10:]), lambda: gp.predict(T)):
            with pytest.raises(CholeskyError, match="not positive definite"):
                call()

    assert_unchanged(gp, act)
    with torch.no_grad():
        kernel.minus.fill_(NAN)
    with pytest.raises(CholeskyError, match="matrix must be finite"):
        gp.update(T[10:], Y[10:])
    with torch.no_grad():
        kernel.minus.fill_(0.0)
    assert gp.update(T[10:], Y[10:]).n_new == 10
