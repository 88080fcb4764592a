"""State dicts: bit-equal continuation, plain tensors, and refusal of what is not one's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ohsvgp import (
    Bernoulli,
    Cosine,
    FouT,
    Gaussian,
    LagT,
    LegS,
    LegT,
    OnlineGP,
    PivotedCholesky,
    RandomSubset,
    UniformGrid,
    VariationalFourier,
)
from ohsvgp.bases import RecurrentFeatures
from ohsvgp.saved import pack
from probseq.kernels import RBF, Matern32

T = torch.linspace(0, 6, 40, dtype=torch.float64)
Y = (2 * T).sin()


def model(basis: Any = None, kernel: Any = RBF, **options: Any) -> OnlineGP:
    return OnlineGP(kernel(1, lengthscale=0.7), Gaussian(0.02), basis or LegS(8), **options)


def copied(tensors: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The tensors as a file of raw arrays gives them back."""
    np.savez(folder / "state.npz", **{name: tensor.numpy() for name, tensor in tensors.items()})
    with np.load(folder / "state.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


@pytest.mark.parametrize("options", [{}, {"rebase": "grow:1.05"}, {"t0": -1.0}])
@pytest.mark.parametrize(
    "basis",
    [
        *(LegS(8), Cosine(8), UniformGrid(8), RandomSubset(8), PivotedCholesky(8)),
        *(LegT(8, 5.0), LagT(8, 5.0), FouT(8, 5.0), VariationalFourier(9, -1.0, 12.0)),
        RecurrentFeatures(LegS(8), num_features=20),
    ],
    ids=lambda basis: type(basis).__name__,
)
def test_a_saved_model_continues_to_the_last_bit(
    basis: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    gp = model(basis, Matern32, **options)
    for part in torch.arange(20).split(7):
        gp.update(T[part], Y[part])
    with torch.no_grad():
        gp.likelihood.raw_noise.add_(0.1)
    twin = model(basis, Matern32, seed=5, **options)
    twin.load_state_dict(copied(gp.state_dict(), tmp_path))
    assert torch.equal(gp.predict(T).variance, twin.predict(T).variance)
    for part in (*torch.arange(20, 30).split(1), torch.arange(30, 40)):
        a, b = gp.update(T[part], Y[part]), twin.update(T[part], Y[part])
        assert torch.equal(a.energy, b.energy)
        assert a.t_end == b.t_end
    for a, b in zip(
        gp.predict(T).__dict__.values(), twin.predict(T).__dict__.values(), strict=True
    ):
        assert torch.equal(a, b)
    assert torch.equal(gp.generator.get_state(), twin.generator.get_state())
    first, second = gp.state_dict(), twin.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_state_is_a_flat_dict_of_contiguous_tensors_that_share_no_memory() -> None:
    gp = model()
    gp.update(T, Y)
    state = gp.state_dict()
    assert all(isinstance(name, str) for name in state)
    assert all(type(tensor) is Tensor and tensor.is_contiguous() for tensor in state.values())
    assert not any(tensor.requires_grad for tensor in state.values())
    places = [tensor.untyped_storage().data_ptr() for tensor in state.values()]
    assert len(set(places)) == len(places)
    before = gp.predict(T).mean
    for tensor in state.values():
        tensor.zero_()
    assert torch.equal(gp.predict(T).mean, before)


OTHERS: list[tuple[str, OnlineGP]] = [
    ("kernel RBF instead of Matern32", OnlineGP(Matern32(1), Gaussian(), LegS(8))),
    ("likelihood Gaussian instead of Bernoulli", OnlineGP(RBF(1), Bernoulli(), LegS(8))),
    ("basis LegS instead of Cosine", model(Cosine(8))),
    ("num_inducing 8 instead of 9", model(LegS(9))),
    ("dtype torch.float64 instead of torch.float32", model(dtype=torch.float32)),
    (
        r"kernel_batch \[\] instead of \[2\]",
        OnlineGP(RBF(1, batch_shape=(2,)), Gaussian(), LegS(8)),
    ),
    (r"alpha [0-9.]+ instead of 1.0", model(alpha=1.0)),
    (
        r"likelihood_parameters \{'raw_noise': \[\]\} instead of \{'raw_noise': \[2\]\}",
        OnlineGP(RBF(1), Gaussian(torch.tensor([0.1, 0.2])), LegS(8)),
    ),
]


@pytest.mark.parametrize(("message", "other"), OTHERS, ids=[message for message, _ in OTHERS])
def test_the_state_of_another_kind_of_model_is_refused_and_changes_nothing(
    message: str, other: OnlineGP
) -> None:
    gp = model()
    gp.update(T, Y)
    before = other.state_dict()
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(gp.state_dict())
    after = other.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before | after)


def test_the_state_of_another_schema_is_refused() -> None:
    gp = model()
    gp.update(T, Y)
    state = gp.state_dict()
    text = bytes(state["identity"].tolist()).replace(b'"schema": 5', b'"schema": 4')
    state["identity"] = torch.tensor(list(text), dtype=torch.uint8)
    with pytest.raises(ValueError, match="schema 4 instead of 5"):
        model().load_state_dict(state)


CHECKSUM = "tensors must be those that were saved, but their hash is another"


def assert_refused(gp: OnlineGP, state: dict[str, Tensor], message: str | None) -> None:
    """And the model stays as it was."""
    before = gp.state_dict()
    with pytest.raises(ValueError, match=message):
        gp.load_state_dict(state)
    after = gp.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.fixture
def saved() -> dict[str, Tensor]:
    gp = OnlineGP(RBF(1, lengthscale=2.0), Gaussian(0.1), LegS(8))
    gp.update(T, Y)
    return gp.state_dict()


def test_a_state_of_which_something_is_missing_is_refused(saved: dict[str, Tensor]) -> None:
    gp = model()
    gp.update(T, -Y)
    for lost in saved:
        rest = {name: tensor for name, tensor in saved.items() if name != lost}
        message = "OnlineGP.state_dict, got no identity" if lost == "identity" else CHECKSUM
        assert_refused(gp, rest, message)
    gp.load_state_dict(saved)
    assert float(gp.kernel.lengthscale.detach()) == pytest.approx(2.0)


def test_a_state_of_another_name_shape_dtype_or_with_more_in_it_is_refused(
    saved: dict[str, Tensor],
) -> None:
    shift = saved["site.shift"]
    for change in (
        {"site.extra": shift},
        {"site.shift": shift[None]},
        {"site.shift": shift.float()},
        {"site.shift": shift.view(torch.int64)},
        {"site.shift": -shift},
        {"site.shift": torch.zeros(5, dtype=torch.float64)},
        {"generator": torch.zeros(3)},
        {"length": torch.full_like(saved["length"], torch.nan)},
    ):
        assert_refused(model(), {**saved, **change}, CHECKSUM)
    renamed = {name.replace("shift", "shifts"): tensor for name, tensor in saved.items()}
    assert_refused(model(), renamed, CHECKSUM)


def flipped(tensor: Tensor, bit: int) -> Tensor:
    """A copy with one bit the other way."""
    raw = tensor.clone().flatten().view(torch.uint8)
    raw[bit // 8] ^= 1 << bit % 8
    return raw.view(tensor.dtype).reshape(tensor.shape)


def test_a_state_with_one_bit_flipped_is_refused(saved: dict[str, Tensor]) -> None:
    rng, gp = np.random.default_rng(0), model()
    gp.update(T, -Y)
    bits = {name: 8 * t.numel() * t.element_size() for name, t in saved.items()}
    names = [name for name in saved if name != "identity"]
    # At least one of every tensor, the others wherever the bits are.
    share = np.array([bits[name] for name in names]) / sum(bits[name] for name in names)
    chosen = [*names, *rng.choice(names, 40 - len(names), p=share)]
    for name in chosen:
        spoilt = flipped(saved[name], int(rng.integers(bits[name])))
        assert_refused(gp, {**saved, name: spoilt}, CHECKSUM)
    for bit in rng.choice(bits["identity"], 40, replace=False):
        # JSON no more, another setting, or another checksum.
        assert_refused(gp, {**saved, "identity": flipped(saved["identity"], int(bit))}, None)
    gp.load_state_dict(saved)


def test_a_generator_of_another_device_is_refused_before_the_basis_changes() -> None:
    # What a generator of CUDA would save.
    basis = RecurrentFeatures(LegS(5), num_features=10)
    gp, other = model(basis, seed=1), model(basis, seed=2)
    short = torch.zeros(16, dtype=torch.uint8)
    groups = {
        "generator": {"": short},
        "kernel": gp.kernel.state_dict(),
        "likelihood": gp.likelihood.state_dict(),
        "basis": gp.basis.tensors(),
    }
    assert_refused(other, pack(gp._settings(), {}, groups), "generator must be")
