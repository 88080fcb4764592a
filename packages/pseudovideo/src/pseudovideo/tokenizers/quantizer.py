"""Vector quantization with a codebook of moving averages (thesis section 5.3.1, eqs. 5.5-5.6).

NaN and infinity in a tensor reach the result.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from probseq.checks import (
    check_counts,
    check_floating,
    check_integers,
    check_not_negative,
    check_rates,
)
from pseudovideo.tokenizers.codebook import cluster_sums, k_means, nearest_codes, random_points

_KMEANS_STEPS = 10  # of the initialisation


class QuantizerOutput(NamedTuple):
    """Codes of a quantizer's inputs, and how the codebook was used."""

    # The chosen codes at the input's width, with straight-through gradients
    quantized: Float[Tensor, "*b d"]
    indices: Int64[Tensor, "*b"]  # the number of the code of each input
    loss: Float[Tensor, ""]  # the commitment term, β already multiplied in
    usage: Float[Tensor, ""]  # share of the codes that this batch uses, of all ranks in training
    perplexity: Float[Tensor, ""]  # exp of the entropy of the codes' shares in this batch, 1..K


class VectorQuantizer(nn.Module):
    r"""Replace each vector by its nearest code.

    With x = W_in z + b_in and the nearest code e_k, the output is W_out e_k + b_out, the gradient
    that of k held fixed and e_k = x (straight-through), and the loss β·mean (x − sg e_k)²: the
    commitment term of eq. 5.6. Its codebook term is not a loss here but its running optimum: each
    code is the mean of the inputs that chose it, by exponential moving averages of their numbers
    N_k and sums,

    $$ N_k \leftarrow γ N_k + (1 - γ) n_k, \quad
       e_k \leftarrow e_k + \frac{(1 - γ) n_k}{N_k} (\bar x_k - e_k) $$

    which is the quotient of both averages, without smoothing: a code that nobody chooses stays
    where it is, and γ = 0 is one step of k-means. At the n-th batch γ is at most (1+n)/(10+n):
    the encoder moves fastest at first, and averages over a hundred batches would leave the
    codebook behind, with most codes unused and hundreds of batches to go until they count as dead.

    All of it happens in training mode only: the first batch sets the codebook by k-means from
    random inputs of its own; codes whose N_k falls below `revive_below` times an even use take
    the place of a random input, with N_k at that threshold, so that one which nobody wants is
    moved again at the next batch. Draws are from torch's global generator, which a trainer
    seeds and stores. Under `torch.distributed` numbers and sums are those of all ranks together,
    so that every rank must train the same number of batches; draws are the first rank's.

    Autocast is off inside, and distances are in float32 at least; a batch's inputs that are not
    finite leave the codebook as it is.

    Args:
        codebook_size: K.
        code_dim: width of the codes; no projections where it equals `dim`.
        dim: width of inputs and outputs.
        decay: γ, after the first batches.
        commitment: β.
        revive_below: share of an even use under which a code is dead; 0 revives none.

    Example:
        >>> quantizer = VectorQuantizer(512, 32, 128).train()
        >>> quantizer(torch.randn(8, 4, 16, 128)).indices.shape
        torch.Size([8, 4, 16])
    """

    codebook: Float[Tensor, "k d"]
    counts: Float[Tensor, " k"]
    batches: Int64[Tensor, ""]
    initialised: Bool[Tensor, ""]

    def __init__(
        self,
        codebook_size: int,
        code_dim: int,
        dim: int,
        *,
        decay: float = 0.99,
        commitment: float = 0.25,
        revive_below: float = 0.01,
    ) -> None:
        super().__init__()
        check_counts(codebook_size=codebook_size, code_dim=code_dim, dim=dim)
        check_not_negative(commitment=commitment)
        check_rates(decay=decay, revive_below=revive_below)
        if codebook_size < 2:
            raise ValueError(f"codebook_size must be at least 2, got {codebook_size}")
        self.dim = dim
        self.decay, self.commitment, self.revive_below = decay, commitment, revive_below
        projected = code_dim != dim
        self.project_in = nn.Linear(dim, code_dim) if projected else nn.Identity()
        self.project_out = nn.Linear(code_dim, dim) if projected else nn.Identity()
        self.register_buffer("codebook", torch.randn(codebook_size, code_dim))
        self.register_buffer("counts", torch.zeros(codebook_size))
        self.register_buffer("batches", torch.tensor(0))
        self.register_buffer("initialised", torch.tensor(False))
        # The flag is in the state dict, so that a resumed run keeps its codebook; to read it
        # makes a GPU wait, so it is read once, and again after weights were loaded.
        self._checked = False
        self.register_load_state_dict_post_hook(self._check_again)

    def forward(self, z: Float[Tensor, "*b d"]) -> QuantizerOutput:
        """Replace vectors by their nearest codes; in training mode the codebook learns from them.

        There may be any number of leading dimensions.
        """
        with torch.autocast(z.device.type, enabled=False):
            x = self._project(z)
            points = x.detach().reshape(-1, x.shape[-1])
            if self.training and not self._checked:
                self._initialise(points)
            codebook = self.codebook.to(x.dtype)
            indices = nearest_codes(points, codebook)
            # From here a tensor of its own: the codebook may change.
            codes = codebook[indices].view_as(x)
            loss = self.commitment * F.mse_loss(x, codes)  # β · mean (x − sg e_k)²
            # x − sg(x) is exactly 0: the value is the code to the last bit.
            quantized = self._project_back(codes + (x - x.detach()))
            with torch.no_grad():
                counts = self._learn(points, indices)
                shares = counts / counts.sum().clamp(min=1)
                # exp(−Σ_k s_k log s_k) of the shares s_k
                perplexity = torch.special.entr(shares).sum().exp()
                usage = (counts > 0).to(shares.dtype).mean()
        indices = indices.view(z.shape[:-1])
        return QuantizerOutput(quantized.to(z.dtype), indices, loss, usage, perplexity)

    @torch.no_grad()
    def encode(self, z: Float[Tensor, "*b d"]) -> Int64[Tensor, "*b"]:
        """Return the number of the nearest code of each input, as of `forward`; learn nothing."""
        with torch.autocast(z.device.type, enabled=False):
            x = self._project(z)
            indices = nearest_codes(x.reshape(-1, x.shape[-1]), self.codebook.to(x.dtype))
        return indices.view(z.shape[:-1])

    def lookup(self, indices: Int64[Tensor, "*b"]) -> Float[Tensor, "*b d"]:
        """Return the outputs that stand for given codes, 0..K−1."""
        check_integers(0, len(self.codebook) - 1, indices=indices)
        with torch.autocast(self.codebook.device.type, enabled=False):
            return self._project_back(self.codebook[indices])

    def _project(self, z: Float[Tensor, "*b d"]) -> Float[Tensor, "*b c"]:
        """Return the inputs W_in z + b_in of the codebook, in float32 at least."""
        check_floating(z=z)
        if z.shape[-1:] != (self.dim,) or not z.numel():
            raise ValueError(f"z must have shape (..., dim={self.dim}), got {tuple(z.shape)}")
        weights = self.project_in.weight if isinstance(self.project_in, nn.Linear) else z
        x = self.project_in(z.to(weights.dtype))
        return x.to(torch.promote_types(x.dtype, torch.float32))

    def _project_back(self, codes: Float[Tensor, "*b c"]) -> Float[Tensor, "*b d"]:
        """Return the outputs W_out e + b_out."""
        if isinstance(self.project_out, nn.Linear):
            codes = codes.to(self.project_out.weight.dtype)
        return self.project_out(codes)

    @torch.no_grad()
    def _initialise(self, points: Float[Tensor, "n c"]) -> None:
        """Start at k-means of the first batch, unless a codebook has been loaded."""
        if not bool(self.initialised):
            start = random_points(points, len(self.codebook))
            finite = start.isfinite().all(dim=-1, keepdim=True)
            start = torch.where(finite, start, self.codebook.to(points.dtype))
            codebook, counts = k_means(points, start, _KMEANS_STEPS)
            self.codebook.copy_(codebook)
            self.counts.copy_(counts)
            self.initialised.fill_(True)
        self._checked = True

    def _learn(
        self, points: Float[Tensor, "n c"], indices: Int64[Tensor, " n"]
    ) -> Float[Tensor, " k"]:
        """Take the batch into the averages and revive dead codes, in training mode.

        Returns:
            How many points of the batch chose each code.
        """
        size = len(self.codebook)
        if not self.training:
            # `bincount` would make a GPU wait.
            return points.new_zeros(size).scatter_add_(0, indices, points.new_ones(len(indices)))
        batch, sums = cluster_sums(points, indices, size, over_ranks=True)
        age = self.batches.to(batch.dtype)
        decay = ((1 + age) / (10 + age)).clamp(max=self.decay)
        # N_k ← γ N_k + (1 − γ) n_k
        counts = decay * self.counts + (1 - decay) * batch
        # (1 − γ) n_k / N_k, which is 0 for a code that the batch left alone.
        step = (1 - decay) * batch / torch.where(batch > 0, counts, 1)
        means = sums / batch.clamp(min=1)[:, None]
        # e_k ← e_k + (1 − γ) n_k/N_k (x̄_k − e_k)
        codebook = self.codebook + step[:, None] * (means - self.codebook)
        if self.revive_below:
            threshold = self.revive_below * counts.mean()
            candidates = random_points(points, size)
            dead = (counts < threshold) & candidates.isfinite().all(dim=-1)
            codebook = torch.where(dead[:, None], candidates, codebook)
            counts = torch.where(dead, threshold, counts)
        self.codebook.copy_(codebook)
        self.counts.copy_(counts)
        self.batches.add_(1)
        return batch

    @staticmethod
    def _check_again(module: nn.Module, _: object) -> None:
        assert isinstance(module, VectorQuantizer)
        module._checked = False
