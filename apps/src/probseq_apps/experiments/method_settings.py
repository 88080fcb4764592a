"""Settings of the single methods; importable without torch, for the command line.

Their docstrings are the command line's help.
"""

from dataclasses import dataclass
from typing import Literal

from probseq_apps.experiments.checks import at_least, not_negative, positive
from probseq_apps.experiments.methods import MethodSpec


@dataclass(frozen=True, kw_only=True)
class SgpaSettings:
    """SGPA."""

    num_inducing: int = 16
    """Global inducing points of each head."""
    kl_weighting: Literal["sequence", "dataset"] = "sequence"
    """Global part of the KL: once per sequence, as in the papers, or once per data set."""
    initial_posterior: Literal["random", "prior"] = "random"
    """Inducing outputs to start from: random as the authors', or the prior's."""
    kl_anneal: float = 0.5
    """Share of the epochs in which the KL's weight rises from 0 to 1; 0: full from the start."""
    kl_scale: float = 1.0
    """Final weight of the KL; 1 is the ELBO, less tempers it so that attention is used more."""
    warm_start_epochs: int = 0
    """Of SGPA's epochs, those spent on kernel attention first, whose weights SGPA starts from."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("num_inducing", self.num_inducing, 1)
        at_least("warm_start_epochs", self.warm_start_epochs, 0)
        if not 0.0 <= self.kl_anneal <= 1.0:
            raise ValueError(f"kl_anneal must be in [0, 1], got {self.kl_anneal}")
        if not 0.0 < self.kl_scale <= 1.0:
            raise ValueError(f"kl_scale must be above 0 and at most 1, got {self.kl_scale}")


@dataclass(frozen=True, kw_only=True)
class CgptSettings:
    """CGPT and SCGPT."""

    cgpt_noise: float = 0.1
    """Noise sigma of CGPT."""
    scgpt_noise: float = 0.1
    """Noise sigma of SCGPT; the paper has 0.1 for images, 0.5 for CoLA."""
    scgpt_inducing: int = 16
    """Inducing inputs of each of SCGPT's two sets, for each head."""
    scgpt_inducing_inputs: Literal["free", "mixed"] = "free"
    """SCGPT's inducing inputs: parameters, or learned mixtures of the tokens (fixed length)."""
    regulariser: Literal["joint", "marginals", "jensen"] = "joint"
    """Log density that is rewarded: exact and joint, of the parts, or a lower bound of these."""
    conditional: Literal["nystrom", "exact"] = "nystrom"
    """CGPT: the paper's prediction through latent inputs, or the exact one, without."""
    alpha_start: float = 0.0
    """Weight of the regulariser at the start."""
    alpha: float = 1.0
    """Weight of the regulariser at the end; it moves linearly."""
    cgpt_warm_start_epochs: int = 0
    """Of CGPT's and SCGPT's epochs, those spent on asymmetric kernel attention first, whose weights
    they start from."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("scgpt_inducing", self.scgpt_inducing, 1)
        at_least("cgpt_warm_start_epochs", self.cgpt_warm_start_epochs, 0)
        for name in ("cgpt_noise", "scgpt_noise"):
            positive(name, getattr(self, name))
        for name in ("alpha_start", "alpha"):
            not_negative(name, getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class KepsvgpSettings:
    """KEP-SVGP."""

    rank: int = 10
    """Singular functions s of each head."""
    merge: Literal["auto", "addition", "concatenation", "concatenation-low-rank"] = "auto"
    """How the two processes become one output; auto: concatenation for images, addition (which
    takes any length) for texts."""
    layers: Literal["last", "all"] = "last"
    """Blocks that have it; the others have softmax attention."""
    ksvd_weight: float = 10.0
    """Weight eta of the kernel SVD's loss."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("rank", self.rank, 1)
        not_negative("ksvd_weight", self.ksvd_weight)


def warm_start_epochs(method: MethodSpec, sgpa: SgpaSettings, cgpt: CgptSettings) -> int:
    """Of a method's epochs, those spent on kernel attention first."""
    if method.attention == "sgpa":
        return sgpa.warm_start_epochs
    return cgpt.cgpt_warm_start_epochs if method.attention in ("cgpt", "scgpt") else 0
