"""Features of sequences by random convolutions, of MiniRocket's kind (Dempster et al. 2021).

A kernel has nine taps, six of -1 and three of 2, a dilation and some of the channels; its features
are the largest value of the convolution, and the share of the frames at which it is above a bias, a
quantile of what a random training sequence gives. Deviations: taps and quantiles are drawn, not
listed, the largest value is ROCKET's, and frames behind the end of a sequence count for nothing.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float32
from torch import Tensor

_TAPS = 9
_NUMBERS_AT_ONCE = 20_000_000  # of the convolutions


class RandomConvolutions:
    """Draw kernels and choose their biases by training sequences."""

    def __init__(
        self,
        x: Float32[Tensor, "n t c"],
        frame: Bool[Tensor, "n t"],
        *,
        seed: int,
        num_kernels: int = 2000,
    ) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        channels = x.shape[2]
        taps = self._uniform(num_kernels, _TAPS).argsort(1)
        taps = torch.where(taps < 3, 2.0, -1.0)
        # Few channels are as likely as many: 2^U of them, U uniform.
        sizes = ((channels + 1) ** self._uniform(num_kernels, 1)).long()
        chosen = self._uniform(num_kernels, channels).argsort(1).argsort(1) < sizes
        self._kernels = taps[:, None] * chosen[..., None]
        widest = max(1.0, (x.shape[1] - 1) / (_TAPS - 1))
        self._dilations = (widest ** self._uniform(num_kernels)).long()
        rows = (self._uniform(num_kernels) * len(x)).long()
        levels = self._uniform(num_kernels)
        self._biases = torch.zeros(num_kernels)
        for kernel, row in enumerate(rows.tolist()):
            dilation, which = int(self._dilations[kernel]), torch.tensor([kernel])
            values = self._convolved(x[row : row + 1], dilation, which)[0, 0, frame[row]]
            self._biases[kernel] = values.quantile(float(levels[kernel]))

    def __call__(
        self, x: Float32[Tensor, "n t c"], frame: Bool[Tensor, "n t"]
    ) -> Float32[Tensor, "n m"]:
        """Return for each kernel the share of frames above its bias, and its largest value."""
        at_once = max(1, _NUMBERS_AT_ONCE // (x.shape[1] * len(self._biases)))
        batches = zip(x.split(at_once), frame.split(at_once), strict=True)
        return torch.cat([self._features(*batch) for batch in batches])

    def _features(self, x: Tensor, frame: Tensor) -> Tensor:
        shares, largest = torch.zeros(2, len(x), len(self._biases))
        for dilation in self._dilations.unique().tolist():
            which = (self._dilations == dilation).nonzero().flatten()
            # What is behind the end is below everything.
            outputs = self._convolved(x, dilation, which).masked_fill(~frame[:, None], -torch.inf)
            above = outputs > self._biases[which, None]
            shares[:, which] = above.sum(-1) / frame.sum(1, keepdim=True)
            largest[:, which] = outputs.amax(-1)
        return torch.cat([shares, largest], 1)

    def _convolved(self, x: Tensor, dilation: int, which: Tensor) -> Tensor:
        padding = dilation * (_TAPS // 2)
        return F.conv1d(x.mT, self._kernels[which], dilation=dilation, padding=padding)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator)
