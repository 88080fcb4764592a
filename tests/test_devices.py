"""Layers and models on a GPU: the CPU's numbers in float64, half precision, compiled.

PROBSEQ_DEVICE=pretend looks for tensors on the wrong device, in a process of its own, see
test_pretend.py; PROBSEQ_DEVICE=cpu runs the same tests on the CPU.
"""

import copy
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from cgpt import CorrelatedGPAttention, SparseCorrelatedGPAttention
from kepsvgp import KernelEigenPairAttention
from ohsvgp import (
    AdamSteps,
    Bernoulli,
    Cosine,
    Gaussian,
    LegS,
    OnlineGP,
    PivotedCholesky,
    RecurrentFeatures,
)
from ohsvgp.vae import MLPDecoder, MLPEncoder, OnlineSVGPVAE
from probseq.kernels import RBF
from probseq.testing.attention import close
from probseq.testing.instruments import compile_failure, constant_noise
from probseq.transformers import KernelAttention, SoftmaxAttention, copy_kernel_weights
from pseudovideo import (
    AutoregressivePrior,
    HeatHVAE,
    ImageDiffusion,
    LearnedEncoderHVAE,
    MaskedPrior,
    VideoDiffusion,
)
from pseudovideo.diffusion.frame_windows import stage_window
from pseudovideo.spec import (
    AutoregressiveConfig,
    HVAEConfig,
    ImageDiffusionConfig,
    MaskedConfig,
    VideoDiffusionConfig,
)
from sgpa import SparseGPAttention

DEVICE = os.environ.get("PROBSEQ_DEVICE", "cuda" if torch.cuda.is_available() else "")
if not DEVICE:
    pytest.skip("there is no GPU; PROBSEQ_DEVICE=pretend needs none", allow_module_level=True)
if DEVICE == "pretend":
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("torch has no devices written in Python", allow_module_level=True)
    import pretend
pytestmark = [pytest.mark.gpu, *([pytest.mark.slow] if DEVICE == "pretend" else [])]
# Errors relative to the largest value. Autocast's are errors of products of several layers.
FLOAT32, BFLOAT16 = 1e-4, 0.1
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "SoftmaxAttention({dim}, 2)": SoftmaxAttention,
    "KernelAttention({dim}, 2, kernel='rbf')": KernelAttention,
    "KernelAttention({dim}, 2, kernel='exponential')": KernelAttention,
    "SparseGPAttention({dim}, 2, 3, kernel='rbf')": SparseGPAttention,
    "SparseGPAttention({dim}, 2, 3, kernel='exponential')": SparseGPAttention,
    "CorrelatedGPAttention({dim}, 2)": CorrelatedGPAttention,
    "SparseCorrelatedGPAttention({dim}, 2, 2)": SparseCorrelatedGPAttention,
    "KernelEigenPairAttention({dim}, 2, 2)": KernelEigenPairAttention,
    "KernelEigenPairAttention({dim}, 2, 2, merge='concatenation', max_tokens=9)": (
        KernelEigenPairAttention
    ),
}
IMAGES, VIDEOS, TOKENS = (2, 1, 8, 8), (2, 3, 1, 8, 8), (3, 7, 8)
UNET: Any = {
    **{"image_size": 8, "channels": 1, "base_channels": 8, "channel_multipliers": (1, 2)},
    **{"num_res_blocks": 1, "attention_sizes": (4,), "num_heads": 2, "num_groups": 4},
}
PRIOR: Any = {"codebook_size": 8, "grid": (1, 2, 2), "dim": 8, "depth": 2, "num_heads": 2}


@pytest.fixture(autouse=True)
def _pretended():
    """The device that pretends is there inside of its context."""
    with pretend.device() if DEVICE == "pretend" else nullcontext():
        yield


class Case(NamedTuple):
    """How a module is made, and what is computed of an input of a shape."""

    make: Callable[[], nn.Module]
    run: Callable[[Any, Tensor], tuple[Tensor, ...]]
    shape: tuple[int, ...]


def attention(layer: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    mask = torch.arange(7, device=x.device) < torch.tensor([7, 2, 4], device=x.device)[:, None]
    values, penalty = layer(x, mask)
    return values[mask], penalty


def unet(model: ImageDiffusion, x: Tensor) -> tuple[Tensor, ...]:
    return (model(x, torch.tensor([20.0, 170.0], device=x.device, dtype=x.dtype)),)


def video_unet(model: VideoDiffusion, x: Tensor) -> tuple[Tensor, ...]:
    times = torch.tensor([20.0, 170.0], device=x.device, dtype=x.dtype)
    return (model.network(x, times, stage_window(model.stages[-1], 2, device=x.device)),)


def levels(model: HeatHVAE | LearnedEncoderHVAE, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(model.level_terms(x, torch.tensor([1, 3], device=x.device), torch.ones_like(x)))


def numbers(x: Tensor) -> Tensor:
    return torch.arange(8, device=x.device).view(2, 1, 2, 2)


CASES = {
    expression: Case(
        lambda expression=expression, make=make: eval(
            expression.format(dim=8), {make.__name__: make}
        ),
        attention,
        TOKENS,
    )
    for expression, make in LAYERS.items()
} | {
    "ImageDiffusion": Case(lambda: ImageDiffusion(ImageDiffusionConfig(**UNET)), unet, IMAGES),
    "VideoDiffusion": Case(
        lambda: VideoDiffusion(VideoDiffusionConfig(**UNET)), video_unet, VIDEOS
    ),
    "HeatHVAE": Case(lambda: HeatHVAE(HVAEConfig(**UNET, num_levels=4)), levels, IMAGES),
    "LearnedEncoderHVAE": Case(
        lambda: LearnedEncoderHVAE(HVAEConfig(**UNET, num_levels=4)), levels, IMAGES
    ),
    "AutoregressivePrior": Case(
        lambda: AutoregressivePrior(AutoregressiveConfig(**PRIOR)),
        lambda model, x: (model(numbers(x)),),
        (1,),
    ),
    "MaskedPrior": Case(
        lambda: MaskedPrior(MaskedConfig(**PRIOR)),
        lambda model, x: (model(numbers(x).flatten(1), numbers(x).flatten(1) % 2 == 0),),
        (1,),
    ),
}


def pair(case: Case) -> tuple[nn.Module, nn.Module]:
    """The same weights in float32 on the device and in float64 on the CPU."""
    if case.shape in (IMAGES, VIDEOS):
        pytest.importorskip("diffusers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = case.make().float().train()
        with torch.no_grad():
            for parameter in model.parameters():  # a new UNet returns zeros
                parameter += 0.05 * torch.randn_like(parameter)
    return copy.deepcopy(model).to(DEVICE), model.double()


def passes(case: Case, model: nn.Module, x: Tensor, lean: bool = False) -> list[Tensor]:
    """Values, then gradients, on the CPU in float64."""
    leaf = x.clone().requires_grad_()
    with constant_noise(1.0):
        with torch.autocast(leaf.device.type, torch.bfloat16, enabled=lean):
            values = case.run(model, leaf)
        total = torch.stack([value.double().square().sum() for value in values]).sum()
        leaves = (leaf, *(p for p in model.parameters() if p.requires_grad))
        found = torch.autograd.grad(total, leaves, allow_unused=True)
    gradient = torch.cat([part.flatten() for part in found if part is not None])
    assert all(value.device.type == leaf.device.type for value in (*values, gradient))
    return [value.detach().cpu().double() for value in (*values, gradient)]


@pytest.mark.parametrize("name", CASES)
def test_float32_agrees_with_float64_on_the_cpu(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    case = CASES[name]
    model, exact = pair(case)
    x = torch.randn(case.shape, generator=torch.Generator().manual_seed(1))
    found, expected = passes(case, model, x.to(DEVICE)), passes(case, exact, x.double())
    for actual, wanted in zip(found, expected, strict=True):
        close(actual, wanted, FLOAT32)


@pytest.mark.skipif(DEVICE == "pretend", reason="it has no kernels of its own")
@pytest.mark.parametrize("name", CASES)
def test_bfloat16_under_autocast_agrees_within_its_bound(name):
    case = CASES[name]
    model, exact = pair(case)
    x = torch.randn(case.shape, generator=torch.Generator().manual_seed(1))
    found, expected = passes(case, model, x.to(DEVICE), True), passes(case, exact, x.double())
    assert all(bool(part.isfinite().all()) for part in found)
    for actual, wanted in zip(found[:-1], expected[:-1], strict=True):
        close(actual, wanted, BFLOAT16)


@pytest.mark.parametrize("likelihood", [Gaussian, Bernoulli])
@pytest.mark.parametrize(
    "basis", [LegS(8), Cosine(8), PivotedCholesky(8), PivotedCholesky(8, learn=AdamSteps(steps=5))]
)
def test_an_online_process_forecasts_the_same(basis, likelihood):
    t = torch.linspace(0.0, 4.0, 40, dtype=torch.float64)
    y = t.sin() if likelihood is Gaussian else (t.sin() > 0).double()

    def forecast(device: str) -> list[Tensor]:
        given = (0.1,) if likelihood is Gaussian else ()
        gp = OnlineGP(RBF(1).to(device), likelihood(*given).to(device), basis)
        for part in (slice(20), slice(20, 40)):
            gp.update(t[part].to(device), y[part].to(device))
        found = gp.predict(t.to(device))
        assert found.mean.device.type == device
        return [
            found.mean.cpu(),
            found.variance.cpu(),
            gp.log_prob(t.to(device), y.to(device)).cpu(),
        ]

    # Sums in another order; a Cholesky factor makes more of them.
    assert_close(forecast(DEVICE), forecast("cpu"), rtol=1e-6, atol=1e-8)


def test_an_autoencoder_with_online_processes_learns_and_predicts_on_the_device():
    t = torch.linspace(0.0, 4.0, 40, device=DEVICE)
    y = torch.stack([t.sin(), t.cos(), t.sin() * t.cos()], dim=-1)
    parts = [part.to(DEVICE) for part in (MLPEncoder(3, 2), MLPDecoder(2, 3), RBF(1))]
    model: Any = OnlineSVGPVAE(*parts, LegS(8), num_latents=2)
    for part in torch.arange(40).chunk(2):
        model.fit_task(t[part], y[part], epochs=2)
    assert model.predict(t).mean.device.type == DEVICE


def test_an_online_vae_that_has_learned_is_moved():
    t = torch.linspace(0.0, 4.0, 40)
    y = torch.stack([t.sin(), t.cos(), t.sin() * t.cos()], dim=-1)
    drawn = RecurrentFeatures(LegS(8), step="closed")  # has frequencies of its own
    for basis in (LegS(8), drawn):
        parts: Any = MLPEncoder(3, 2), MLPDecoder(2, 3), RBF(1), basis
        model = OnlineSVGPVAE(*parts, num_latents=2)
        model.fit_task(t[:20], y[:20], epochs=2)
        expected = model.latent(t[:20])
        model.to(DEVICE)
        found = model.latent(t[:20].to(DEVICE))
        assert_close(found.mean.cpu(), expected.mean)
        assert_close(found.variance.cpu(), expected.variance)
        model.fit_task(t[20:].to(DEVICE), y[20:].to(DEVICE), epochs=2)
        assert model.predict(t.to(DEVICE)).mean.device.type == DEVICE


@pytest.mark.parametrize(
    ("symmetric", "attention"),
    [
        (True, SparseGPAttention(8, 2, 2, kernel="rbf")),
        (False, SparseCorrelatedGPAttention(8, 2, 2)),
    ],
)
def test_a_model_on_the_cpu_starts_from_one_on_the_device(symmetric, attention):
    target = nn.Sequential(attention)
    source = nn.Sequential(KernelAttention(8, 2, kernel="rbf", symmetric=symmetric)).to(DEVICE)
    copy_kernel_weights(source, target)
    assert {value.device.type for value in target.state_dict().values()} == {"cpu"}


@pytest.mark.skipif(DEVICE == "pretend", reason="it has no kernels of its own")
def test_compiled_layers_agree_with_plain_ones():
    layers = {make: layer.format(dim=4) for layer, make in LAYERS.items()}  # one of each class
    makers = {make.__name__: make.__module__.partition(".")[0] for make in layers}
    makers |= {name: "probseq.transformers" for name, home in makers.items() if home == "probseq"}
    imports = "\n".join(f"from {home} import {name}" for name, home in makers.items())
    failure = compile_failure(imports, list(layers.values()), device=DEVICE)
    assert failure is None, failure
