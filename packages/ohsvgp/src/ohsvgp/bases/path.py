"""HiPPO-LegS along a path through inputs of several dimensions (thesis section 4.4).

The inputs are put in an order and strung into a path that stays at x_i during the i-th unit of
time, so that after T points

    u_m = (1/T) ∫_0^T f(x(s)) √(2m+1) P_m(2s/T − 1) ds = Σ_i W_mi f(x_i),

where W_mi is an integral of one polynomial over one cell, known in closed form. A batch that takes
the path from T1 to T2 points turns u into R(T1→T2) u + W_new f(x_new), with the exact propagator R
of LegS. This is the exact solution of the recurrence that thesis Eq. 4.18 takes in Euler steps, a
point at a time: its time step Δt cancels, and neither Euler's error nor its instability is left.
"""

from typing import Literal

import torch
from torch import Tensor

from ohsvgp.bases.base import Advance, Basis
from ohsvgp.bases.ordering import ORDERS, Order, path_order
from ohsvgp.bases.path_inducing import PathFeatures, PathPoints, cell_weights
from ohsvgp.hippo.covariance import legs_propagator
from ohsvgp.hippo.random_features import FeatureKernel
from ohsvgp.inducing import Inducing
from probseq.checks import check_counts
from probseq.fourier import sample_frequencies
from probseq.kernels import Kernel, StationaryKernel


class Path(Basis):
    """LegS memory of inputs of several dimensions, in the order of a path through them.

    memory="features" keeps the path's random Fourier features, M × 2·num_features numbers however
    long the stream is. The whole model then lives under that kernel of finite rank, predictions
    included; its hyperparameters must stay once data have been absorbed.

    memory="inputs" keeps all inputs seen, O(n d), and uses the kernel as it is. An update by n_new
    points after n costs (n + n_new) n_new kernel values and O(M n n_new) products, one with changed
    hyperparameters n²/2 of them more. At n = 8611, d = 4, M = 256 these take .8 s of one core, a
    first update by as many points 1.5 s, in tiles of 2 MB, where the kernel matrix has 0.6 GB.

    Args:
        num_inducing: M.
        memory: "features" or "inputs".
        num_features: frequencies F of memory="features"; each gives a cosine and a sine.
        order: how the points of a batch are ordered: "given", "kernel-max", "kernel-min" or
            "random"; see ``ordering.path_order``.
    """

    frequencies: Tensor

    def __init__(
        self,
        num_inducing: int,
        *,
        memory: Literal["features", "inputs"] = "features",
        num_features: int = 1000,
        order: Order = "given",
    ) -> None:
        super().__init__(num_inducing)
        check_counts(num_features=num_features)
        if memory not in ("features", "inputs"):
            raise ValueError(f'memory must be "features" or "inputs", got {memory!r}')
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        self.memory = memory
        self.num_features = num_features
        self.order: Order = order
        self.fixed_hyperparameters = memory == "features"
        self.frequencies = torch.empty(0)

    def bind(self, kernel: Kernel, generator: torch.Generator) -> None:
        """Check the kernel and sample its frequencies."""
        super().bind(kernel, generator)
        if kernel.dim == 1:
            raise ValueError(
                "kernel must have dim of at least 2 for Path, got dim=1: use LegS for times"
            )
        if self.memory == "features":
            if not isinstance(kernel, StationaryKernel):
                raise ValueError(
                    f'kernel must be stationary for memory="features", got '
                    f'{type(kernel).__name__}: use memory="inputs"'
                )
            self.frequencies = sample_frequencies(kernel, self.num_features, generator)

    def prior(self, kernel: Kernel) -> Kernel:
        """Return the kernel of finite rank for memory="features", else the kernel."""
        return FeatureKernel(kernel, self.frequencies) if self.fixed_hyperparameters else kernel

    def advance(self, step: Advance) -> Inducing:
        """Lengthen the path by the new inputs."""
        old, added = step.previous, step.inputs.shape[0]
        if added == 0:
            if old is None:
                raise ValueError("t must hold at least one input at first, got none")
            return old
        last = old.last if isinstance(old, PathFeatures | PathPoints) else None
        # What is near is the model's own kernel to say, not its features.
        near = step.kernel.kernel if isinstance(step.kernel, FeatureKernel) else step.kernel
        order = path_order(self.order, near, step.inputs, last, step.generator)
        x = step.inputs[order]
        if isinstance(step.kernel, FeatureKernel) and self.fixed_hyperparameters:
            count = round(step.length)
            # u_b = R u_a + W_new f(x_new), for all features at once.
            W = cell_weights(self.num_inducing, count - added, count).to(x)
            new = W @ step.kernel.features(x)
            if not isinstance(old, PathFeatures):
                return PathFeatures(new, x[-1].clone())
            R = legs_propagator(self.num_inducing, step.length - added, step.length, like=x)
            return PathFeatures(R @ old.coefficients + new, x[-1].clone())
        if not isinstance(old, PathPoints):
            return PathPoints.of(self.num_inducing, step.inputs, order, step.kernel)
        return old.extended(step.inputs, order, step.kernel)

    def tensors(self) -> dict[str, Tensor]:
        """Return the frequencies of memory="features"."""
        return {"frequencies": self.frequencies} if self.fixed_hyperparameters else {}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take saved frequencies."""
        got = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        expected = {name: tuple(tensor.shape) for name, tensor in self.tensors().items()}
        if got != expected:
            raise ValueError(f"tensors must have shapes {expected} for this Path, got {got}")
        self.frequencies = tensors.get("frequencies", self.frequencies)

    def restore(self, tensors: dict[str, Tensor]) -> Inducing:
        """Return the inducing set that ``Inducing.tensors`` was called on."""
        if "coefficients" in tensors:
            return PathFeatures(tensors["coefficients"], tensors["last"])
        nodes = tensors["nodes"]
        weights = cell_weights(self.num_inducing, 0, nodes.shape[0]).to(nodes)
        return PathPoints(nodes, weights, tensors["gram"], tensors["hyperparameters"])
