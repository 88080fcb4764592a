"""Closed forms of HiPPO's projections of Fourier features, ∫ e^{iωx} g_m(x) ω^{(t)}(x) dx.

They replace the recurrences of thesis Eq. 4.17 and cost nothing in the length of the stream. The
real part is the projection of cos ωx, the imaginary part that of sin ωx. Arguments: M functions,
frequencies ω per unit of time, the window's end t, and its length θ or time scale τ.

FouT is in the real pairs of ``ohsvgp.FouT``, where thesis A.1 has complex exponentials.
"""

import math

import torch
from jaxtyping import Complex, Float
from torch import Tensor


def legs_projections(M: int, w: Float[Tensor, "*b f"], t: float) -> Complex[Tensor, "*b {M} f"]:
    """Return √(2m+1) iᵐ e^{iωt/2} j_m(ωt/2): scaled Legendre polynomials on [0, t]."""
    return legt_projections(M, w, t, t)


def legt_projections(
    M: int, w: Float[Tensor, "*b f"], t: float, window: float
) -> Complex[Tensor, "*b {M} f"]:
    """Return √(2m+1) iᵐ e^{iω(t−θ/2)} j_m(ωθ/2): scaled Legendre polynomials on [t − θ, t]."""
    m = torch.arange(M, device=w.device)
    scale = (2 * m + 1).to(w.dtype).sqrt()
    powers = torch.tensor([1, 1j, -1, -1j], dtype=w.dtype.to_complex(), device=w.device)[m % 4]
    phase = _cis(w * (t - 0.5 * window))
    bessel = scale[:, None] * spherical_bessel(M, w * (0.5 * window))
    return powers[:, None] * bessel * phase[..., None, :]


def lagt_projections(
    M: int, w: Float[Tensor, "*b f"], t: float, timescale: float
) -> Complex[Tensor, "*b {M} f"]:
    """Return e^{iωt} (iωτ)ᵐ/(1 + iωτ)^{m+1}: Laguerre polynomials under exp(−(t − x)/τ)/τ."""
    a = w * timescale
    # With a = tan α: iωτ/(1 + iωτ) = sin α e^{i(π/2 − α)} and 1/(1 + iωτ) = cos α e^{−iα}, so that
    # high powers cost no accuracy.
    angle = a.atan()
    m = torch.arange(M, dtype=w.dtype, device=w.device)[:, None]
    size = angle.sin()[..., None, :] ** m * angle.cos()[..., None, :]
    turn = m * (0.5 * math.pi - angle[..., None, :]) - angle[..., None, :]
    return size * _cis(turn + (w * t)[..., None, :])


def fout_projections(
    M: int, w: Float[Tensor, "*b f"], t: float, window: float
) -> Complex[Tensor, "*b {M} f"]:
    """Return real Fourier pairs on [t − θ, t], from e^{iωt} e^{−id} sin d/d, d = (ωθ − 2πj)/2.

    With E_j that integral against e^{2πij(t−x)/θ}, the pairs are (E_j + E_{−j})/√2 for the cosine
    and (E_j − E_{−j})/(√2 i) for the sine: 1, then √2 cos 2πj(t − x)/θ, √2 sin 2πj(t − x)/θ, cut
    after M.
    """
    j = torch.arange(M // 2 + 1, dtype=w.dtype, device=w.device)[:, None]
    half = (0.5 * window) * w[..., None, :]
    present = _cis(w * t)[..., None, :]

    def exponential(order: Tensor) -> Tensor:
        d = half - math.pi * order
        return present * _cis(-d) * torch.sinc(d / math.pi)

    ahead, back = exponential(j), exponential(-j)
    cosine = (ahead + back) / math.sqrt(2)
    sine = (ahead - back) / (1j * math.sqrt(2))
    pairs = torch.stack([cosine[..., 1:, :], sine[..., 1:, :]], dim=-2).flatten(-3, -2)
    return torch.cat([ahead[..., :1, :], pairs], dim=-2)[..., :M, :]


def spherical_bessel(M: int, a: Float[Tensor, "*b f"]) -> Float[Tensor, "*b {M} f"]:
    """Return spherical Bessel functions of the first kind j_0(a) to j_{M−1}(a), to round-off.

    The recurrence j_{m+1} = (2m+1)/a j_m − j_{m−1} is stable upwards as long as m ≤ a. Beyond, the
    ratios ρ_m = j_m/j_{m−1} = a/(2m + 1 − a ρ_{m+1}) are, run backwards from an m so high that
    where they start is forgotten. The loops are over m alone.

    Arguments are of any sign: j_m(−a) = (−1)ᵐ j_m(a).
    """
    size = torch.where(a < 0, -a, a)  # not abs, whose derivative at zero is zero
    # Ratios converge over O(a^{1/3}) orders beyond a, and are needed for a below M only.
    top = M + 30 + math.ceil(8 * M ** (1 / 3))
    ratio = torch.zeros_like(size)
    ratios = [ratio] * M
    for m in range(top, 0, -1):
        # Orders up to a are not used, and their denominators may vanish.
        used = m > size
        ratio = torch.where(used, size / torch.where(used, 2 * m + 1 - size * ratio, 1), 0)
        if m < M:
            ratios[m] = ratio
    # Upwards is for arguments from 1 on; the bound lies below, where no gradient passes it.
    safe = size.clamp_min(0.5)
    orders = [torch.sinc(size / math.pi)]
    before = safe.cos() / safe  # j_{−1}
    for m in range(1, M):
        upwards = (2 * m - 1) / safe * orders[-1] - before
        before = orders[-1]
        orders.append(torch.where(m > size, ratios[m] * before, upwards))
    values = torch.stack(orders, dim=-2)
    odd = (torch.arange(M, device=a.device) % 2 == 1)[:, None]
    return torch.where(odd & (a < 0)[..., None, :], -values, values)


def _cis(angle: Tensor) -> Tensor:
    return torch.complex(angle.cos(), angle.sin())
