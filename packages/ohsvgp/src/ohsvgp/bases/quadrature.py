"""Quadrature rules that turn projections on a window into functionals of point values."""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.bases.base import TimeBasis
from probseq.checks import check_counts
from probseq.kernels import Kernel

# Half of what is promised for Matérn kernels: functions are largest at the ends of a window, and
# panels are as long there as elsewhere.
_ERROR = 5e-7
# Of a smooth kernel's variance, what may lie above the frequencies that the nodes resolve.
_SHARE = 1e-10
# Windows of more Matérn lengthscales get the rule of so many, and windows of more radians of a
# smooth kernel's band that of so many, 100 lengthscales of an RBF kernel, or of so many times M:
# polynomials of degree M resolve 2M.
_LONGEST = 100.0
_WIDEST, _WAVES = 650.0, 6.5
# Nodes are taken in multiples of this.
_STEP = 16

Rule = Callable[[int, int, int], tuple[Tensor, Tensor]]


class QuadratureBasis(TimeBasis):
    """A basis u_m = ∫ f(s) g_m(s) ω(s) ds, the integral by Q nodes inside the window.

    Any Q is a valid model, since all covariances come from the same point values; a large Q makes
    it the model of the integral.

    By default Q is as small as the kernel allows. Smooth kernels, their sums and products too, get
    one panel of Gauss-Legendre nodes that brings K_uu and K_uf to within 1e-9 of those of the
    integrals, on windows of up to 100 lengthscales of an RBF kernel, or M if that is more. Where a
    Matérn kernel is part of it, the window is cut into as many equal panels of 2M + 100 nodes as
    bring them to within 1e-6 of the variance, on windows of up to 100 of its lengthscales; see
    ``num_panels``. A kernel whose ``spectra`` are unknown gets one such panel.

    Q grows with the window until it is that long, to some 240 nodes of an RBF kernel at M = 100;
    ``num_nodes`` keeps it constant. Thesis Eq. 4.10 to 4.17 evolve these covariances by an ODE and
    random features, as ``RecurrentFeatures`` does.
    """

    def __init__(self, num_inducing: int, *, num_nodes: int | None = None) -> None:
        super().__init__(num_inducing)
        self.num_nodes = num_nodes
        if num_nodes is None:
            return
        check_counts(num_nodes=num_nodes)
        if num_nodes < num_inducing:
            raise ValueError(
                f"num_nodes must be at least num_inducing={num_inducing}, got {num_nodes}: "
                "the inducing variables would depend on each other"
            )

    def choose(
        self,
        rule: Rule,
        kernel: Kernel,
        unit: float,
        window: float,
        *,
        degree: float | None,
        spare: int = 100,
    ) -> tuple[Float[Tensor, " q"], Float[Tensor, "m q"]]:
        """Return nodes and weights for a kernel.

        The rule gives nodes and weights of M functions from M, nodes on a panel (2M and ``spare``)
        and panels; a unit of the nodes is ``unit`` in time; the functions come within 1e-9 of
        polynomials of ``degree``; None where they don't.
        """
        M = self.num_inducing
        if self.num_nodes is not None:
            return rule(M, self.num_nodes, 1)
        Q = 2 * M + spare
        spectra = kernel.spectra(_SHARE)
        if spectra is None or window == 0:
            return rule(M, Q, 1)
        # What M functions cannot hold need not be exact.
        widest = max(_WIDEST, _WAVES * M) / window
        if degree is None or any(term.rough for term in spectra):
            profile = _profile(rule, M, Q)
            return rule(M, Q, num_panels(kernel, *profile, unit, window, widest=widest))
        # e^{iκs} on [−1, 1], κ at most half the band, and M functions of a degree: Q nodes are
        # exact for polynomials of degree 2Q − 1.
        band = min(widest, max((term.band for term in spectra), default=0.0)) * window
        enough = max(M, 0.5 * (degree + wave_degree(0.5 * band)))
        # In steps: a window that grows a little at a time shall not make a new rule each time.
        return rule(M, _STEP * math.ceil(enough / _STEP), 1)


def wave_degree(kappa: float) -> float:
    """Return the degree of the polynomial within 1e-9 of e^{iκs} on [−1, 1]: κ + 6κ^(1/3) + 8.

    Its Legendre coefficients go by the Bessel functions J_n(κ), which vanish from there on.
    """
    return kappa + 6 * kappa ** (1 / 3) + 8


def num_panels(
    kernel: Kernel,
    spacing: Float[Tensor, " q"],
    density: Float[Tensor, " q"],
    unit: float,
    window: float,
    *,
    widest: float = math.inf,
) -> int:
    """Return the number of equal panels that bring K_uu and K_uf to within 1e-6 of the variance.

    Nodes h apart take ∫ k(s − x) ds, where one of them lies at x, for Σ_j h k(jh), which is
    2 Σ_n S(2πn/h) more, n = 1, 2, …, S the kernel's spectral density (Poisson's summation). Times
    the density that the integral has there, that is about the share of the variance above 2π/h of
    a smooth kernel times its resolution, and for a Matérn factor

        2ζ(2ν+1) A (h/2π)^{2ν+1} / ℓ^{2ν},   A = 2√π Γ(ν+½) (2ν)^ν / Γ(ν)

    which is of order h²/ℓ for Matérn-1/2, and no functional of point values comes closer: between
    two of them the process is free. In a product the frequencies of all factors add.

    Spacing and density (largest |weight| over it) are of the nodes on one panel, a unit of which is
    ``unit`` in time; of a window longer than 100 Matérn lengthscales so many are resolved.
    """
    h, density = unit * spacing, density / unit
    scale = float(kernel.resolution.detach().min())
    weight = density * (scale if math.isfinite(scale) else window)
    spectra = kernel.spectra(_SHARE) or []
    bands = [torch.zeros_like(h) for _ in spectra]
    for digits in range(1, 8) if any(term.band for term in spectra) else ():
        # Nodes of so small a weight need no smaller share.
        heavy = weight * 10.0 ** (1 - digits) > _ERROR
        terms = kernel.spectra(10.0**-digits) or []
        bands = [torch.where(heavy, term.band, b) for term, b in zip(terms, bands, strict=True)]
    needed = [torch.ones(1, dtype=h.dtype)]
    for term, band in zip(spectra, bands, strict=True):
        # The functions' own frequencies take at most half of the nodes.
        waves = h * band.clamp_max(widest) / (2 * math.pi)
        count = waves + 0.5 * (waves > 0)
        for nu, lengthscale in term.rough:
            ell = max(lengthscale, window / _LONGEST)
            p = 2 * nu + 1
            A = 2 * math.sqrt(math.pi) * math.gamma(nu + 0.5) * (2 * nu) ** nu / math.gamma(nu)
            # ζ(p) < p / (p − 1).
            # (h/2π)^p / ℓ^{2ν} = h/2π (h/2πℓ)^{2ν}, which does not overflow at long lengthscales.
            share = h / (2 * math.pi) * (h / (2 * math.pi * ell)) ** (2 * nu)
            error = 2 * p / (p - 1) * A * density * share
            count = count + (error / _ERROR) ** (1 / p)
        needed.append(count)
    return math.ceil(max(float(count.max()) for count in needed))


@lru_cache(maxsize=64)
def _profile(rule: Rule, M: int, Q: int) -> tuple[Tensor, Tensor]:
    """Return the spacing of the nodes on one panel, and the density of the functions there."""
    nodes, weights = rule(M, Q, 1)
    gaps = nodes.diff().abs()
    spacing = torch.maximum(torch.cat([gaps[:1], gaps]), torch.cat([gaps, gaps[-1:]]))
    return spacing, weights.abs().amax(0) / spacing


def check_inside(x: Tensor, start: float, end: float) -> None:
    """Refuse inputs where orthogonal functions mean nothing."""
    slack = 16 * torch.finfo(x.dtype).eps * max(abs(start) if math.isfinite(start) else 0.0, end)
    outside = (x < start - slack) | (x > end + slack)
    if bool(outside.any()):
        raise ValueError(
            f"t must lie inside the window of the basis, [{start:g}, {end:g}] counted from t0, "
            f"got {float(x[outside][0]):g}: use predict there"
        )
