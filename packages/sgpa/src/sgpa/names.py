"""Names that settings of SGPA may have."""

from typing import Literal

VariantName = Literal["orthogonal", "decoupled"]
CovarianceName = Literal["diag", "inducing", "full"]
StandardCovariance = Literal["diag", "full"]
KLWeighting = Literal["sequence", "dataset"]
InitialPosterior = Literal["random", "prior"]
