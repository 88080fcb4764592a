"""Names that settings of correlated GP attention may have."""

from typing import Literal

ConditionalName = Literal["nystrom", "exact"]
SparseConditional = Literal["sor", "fitc"]
RegulariserName = Literal["joint", "marginals", "jensen"]
CanonicalPrior = Literal["noise-free", "noisy"]
InducingName = Literal["free", "mixed"]


def check_exact(regulariser: str, canonical_prior: str) -> None:
    """Refuse settings that mean nothing to ``conditional="exact"``."""
    if regulariser == "jensen" or canonical_prior == "noisy":
        raise ValueError(
            "conditional='exact' has no inducing values: regulariser must be 'joint' or "
            "'marginals' and canonical_prior 'noise-free', got "
            f"{regulariser!r} and {canonical_prior!r}"
        )
