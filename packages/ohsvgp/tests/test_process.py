"""The functions of a state behind ``OnlineGP``."""

import pytest
import torch

from ohsvgp import Gaussian, LegS, OnlineGP, RandomSubset
from ohsvgp.bases import Basis
from ohsvgp.process import Process
from ohsvgp.state import OnlineState
from probseq.kernels import RBF


@pytest.mark.filterwarnings("ignore::ohsvgp.information_loss.LostInformationWarning")
@pytest.mark.parametrize(
    ("dim", "basis"), [(1, LegS(8)), (1, RandomSubset(8)), (2, RandomSubset(8))]
)
def test_functions_of_a_state_equal_the_model_to_the_last_bit(dim: int, basis: Basis) -> None:
    x = torch.linspace(0.0, 4.0, 60, dtype=torch.float64)
    x = x if dim == 1 else torch.stack([x.sin(), x.cos()], -1)
    y = torch.stack([x.reshape(60, -1)[:, 0].sin(), x.reshape(60, -1).sum(-1)])
    gp = OnlineGP(RBF(dim), Gaussian(0.01), basis, alpha=0.3, seed=4)
    generator = torch.Generator().manual_seed(4)
    process = Process.init(RBF(dim), Gaussian(0.01), basis, generator, alpha=0.3)
    state: OnlineState | None = None
    seen: list[OnlineState] = []
    for part in torch.arange(60).chunk(3):
        expected = gp.update(x[part], y[:, part])
        state, info = process.update(state, process.batch(state, x[part], y[:, part]), generator)
        seen.append(state)
        assert torch.equal(info.energy, expected.energy)
    with torch.no_grad():
        law = process.predict(state, x.reshape(60, -1))
    assert torch.equal(law.mean, gp.predict(x).mean)
    assert torch.equal(law.variance, gp.predict(x).variance)
    assert [one.count for one in seen] == [20, 40, 60]
    assert torch.isfinite(process.predict(None, x.reshape(60, -1)).variance).all()
