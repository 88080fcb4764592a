"""Names that settings of transformers may have, and one number of all attention."""

from typing import Literal

KernelName = Literal["rbf", "exponential"]
PoolingName = Literal["mean", "sequence", "cls", "flatten"]
NormPlacement = Literal["pre", "post"]

ATTENTION_JITTER = 1e-6
"""Relative jitter of the covariances that attention factorises, in float32 and in float64.

One number for both: it is a part of the model, whose predictions must not depend on the dtype.
float32 cannot do with less.
"""
