"""Names that settings of kernel-eigen-pair attention may have."""

from typing import Literal

MergeName = Literal["addition", "concatenation", "concatenation-low-rank"]
BranchesName = Literal["er", "ee", "rr"]
InitialPosterior = Literal["random", "prior"]
LayersName = Literal["last", "all"]
