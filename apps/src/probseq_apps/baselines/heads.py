"""Heads on the features of a trained classifier: logistic regressions, and several small networks.

Each is a choice of candidates, among which validation data choose.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from probseq.metrics import class_predictions, scale_log_probs
from probseq.metrics.post_hoc import search_temperature
from probseq.transformers.attention import full_precision

# Logits (samples, rows, classes) of features (rows, width).
Head = Callable[[Tensor], Tensor]
# Inverse strengths of the L2 penalty on standardised features.
_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
_MEMBERS, _HIDDEN, _BATCH, _STEPS, _EVERY = 5, 64, 128, 400, 20


def linear_probes(
    features: Float[Tensor, "rows width"], labels: Tensor, num_classes: int
) -> Iterator[Head]:
    """Yield logistic regressions, from the most to the least regularised.

    A class without examples gets about the probability 1 / rows.

    Raises:
        ValueError: all labels are the same.
    """
    from sklearn.linear_model import LogisticRegression

    features = full_precision(features)
    classes = labels.unique()
    if len(classes) < 2:
        raise ValueError(f"labels must be of at least two classes, got {classes.tolist()} alone")
    mean, scale = _moments(features)
    standard = ((features - mean) / scale).cpu().double().numpy()
    regression = LogisticRegression(max_iter=1000, warm_start=True)
    for strength in _STRENGTHS:
        regression.set_params(C=strength).fit(standard, labels.cpu().numpy())
        known, bias = (
            torch.from_numpy(each).to(features)
            for each in (regression.coef_, regression.intercept_)
        )
        if len(classes) == 2:  # of the second class alone
            known, bias = (
                torch.stack([torch.zeros_like(each[0]), each[0]]) for each in (known, bias)
            )
        weight = features.new_zeros(num_classes, features.shape[1])
        # w'(x − mean) / scale + b, one layer of the features as they are.
        weight[classes] = known / scale
        bias = bias - weight[classes] @ mean
        everywhere = F.linear(features, weight[classes], bias).logsumexp(-1).mean()
        whole = (everywhere - math.log(len(features))).repeat(num_classes)
        whole[classes] = bias
        yield _Linear(weight, whole)


class _Linear(NamedTuple):
    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return F.linear(full_precision(features), self.weight, self.bias)[None]


def mlp_heads(
    features: Float[Tensor, "rows width"], labels: Tensor, num_classes: int, *, seed: int
) -> Iterator[Head]:
    """Yield five networks with a hidden layer while they are trained, each on draws of its own."""
    features = full_precision(features)
    generator = torch.Generator(features.device).manual_seed(seed)
    sizes = (features.shape[1], _HIDDEN, num_classes)

    def start(fan_in: int, *shape: int) -> nn.Parameter:
        # U(−1/√n, 1/√n), as nn.Linear has it.
        drawn = torch.rand(_MEMBERS, *shape, generator=generator, device=features.device)
        return nn.Parameter((2.0 * drawn - 1.0) / math.sqrt(fan_in))

    layers = [start(n, *shape) for n, out in pairwise(sizes) for shape in ((n, out), (1, out))]
    mean, scale = _moments(features)
    members = _MLPs(mean, scale, *layers)
    optimizer = torch.optim.AdamW(layers, 1e-3, weight_decay=1e-2)
    count = min(_BATCH, len(features))
    for step in range(1, _STEPS + 1):
        rows = torch.randint(
            len(features), (_MEMBERS, count), generator=generator, device=features.device
        )
        with torch.enable_grad():
            logits = members(features[rows])
            # The sum over members: none has a part in another's gradient.
            loss = _MEMBERS * F.cross_entropy(logits.flatten(0, 1), labels[rows].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % _EVERY == 0:
            yield _MLPs(mean, scale, *(layer.detach().clone() for layer in layers))


class _MLPs(NamedTuple):
    mean: Tensor
    scale: Tensor
    inner: Tensor
    inner_bias: Tensor
    outer: Tensor
    outer_bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        hidden = (
            (full_precision(features) - self.mean) / self.scale
        ) @ self.inner + self.inner_bias
        return F.gelu(hidden) @ self.outer + self.outer_bias


class Choice(NamedTuple):
    """Settings of a head that are chosen on validation data."""

    head: Head  # of the lowest negative log-likelihood
    nll: float  # of one half of the data with what the other half chooses, mean over both
    tempered_nll: float  # likewise, with the temperature that the other half chooses


@torch.no_grad()
def choose_head(
    candidates: Iterable[Head], features: Float[Tensor, "rows width"], labels: Tensor
) -> Choice:
    """Choose among candidates by validation data; halves are every second row.

    There must be a candidate and two examples at least.
    """
    labels = labels.cpu()
    even, odd = slice(0, None, 2), slice(1, None, 2)
    best: dict[str, tuple[float, Head]] = {}
    for head in candidates:
        losses = F.nll_loss(_log_probs(head, features), labels, reduction="none")
        for name, rows in (("even", even), ("odd", odd), ("all", slice(None))):
            loss = float(losses[rows].mean())
            if name not in best or loss < best[name][0]:
                best[name] = loss, head
    nll, tempered = 0.0, 0.0
    for name, known, others in (("even", even, odd), ("odd", odd, even)):
        log_probs = _log_probs(best[name][1], features)
        temperature = search_temperature(log_probs[known], labels[known])
        nll += float(F.nll_loss(log_probs[others], labels[others])) / 2
        scaled = scale_log_probs(log_probs[others], temperature)
        tempered += float(F.nll_loss(scaled, labels[others])) / 2
    return Choice(best["all"][1], nll, tempered)


def _log_probs(head: Head, features: Tensor) -> Tensor:
    return class_predictions(head(features).double())[0].cpu()


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each feature; a constant one has the deviation 1."""
    scale = features.std(0, correction=0)
    return features.mean(0), torch.where(scale > 0, scale, 1.0)
