"""Calibration of a trained classifier with a sparse GP beside its attention; no training.

Not in the papers.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.metrics import fit_temperature
from probseq.transformers.adapters import Layers, deviations, remove_attention, sample_predictions
from sgpa.drop_in import replace_attention

# What is tried: the prior standard deviation σ of the deviation.
DEVIATIONS = (0.0, 0.1, 0.3, 1.0, 2.0, 3.0, 4.5, 6.0)


class Candidate(NamedTuple):
    """One way to calibrate.

    Attributes:
        deviation: prior standard deviation σ; 0 is the model as it was.
        temperature: what logarithms of probabilities are divided by; 1 leaves them.
        nll: negative log-likelihood of one half of the validation data with what the other half
            chooses, in nats an example, mean over both halves.
    """

    deviation: float
    temperature: float
    nll: float


class Calibrated(nn.Module):
    """A classifier that gives calibrated log-probabilities; :func:`calibrate` makes it.

    Attributes:
        model: the classifier, with its deviation if one was chosen.
        candidates: what was tried, by name.
        chosen: name of the candidate of the lowest negative log-likelihood.
        num_samples: samples S of a prediction.
    """

    def __init__(
        self, model: nn.Module, candidates: Mapping[str, Candidate], chosen: str, num_samples: int
    ) -> None:
        super().__init__()
        self.model, self.candidates, self.chosen = model, dict(candidates), chosen
        self.num_samples = num_samples

    @torch.no_grad()
    def forward(
        self, inputs: Any, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Return the logarithms of predictive probabilities.

        Args:
            inputs: a tensor, or a mapping of keyword arguments, as the model takes.
            generator: source of the draws.
        """
        chosen = self.candidates[self.chosen]
        samples = self.num_samples if chosen.deviation else None
        found = _log_probs(self.model, inputs, samples, generator)
        return (found / chosen.temperature).log_softmax(-1)


def calibrate(
    model: nn.Module,
    calibration: Any,
    validation: Sequence[tuple[Any, Tensor]],
    *,
    layers: Layers = "last",
    num_inducing: int = 48,
    rho: float = 0.1,
    tried: Sequence[float] = DEVIATIONS,
    num_samples: int = 10,
    seed: int = 0,
) -> Calibrated:
    """Choose the variance of a sparse GP beside a classifier's attention, next to a temperature.

    Four candidates: the model as it is, with a temperature, with a deviation
    (:func:`~sgpa.drop_in.replace_attention`), and with both. Each is fitted on one half of the
    validation data and measured on the other, and the other way round; what has the lowest negative
    log-likelihood is fitted on all of them. Nothing is trained. To be calibrated under shift, give
    validation data that are shifted too: both candidates then get them.

    Args:
        model: classifier of torch, torchvision, timm or transformers, in evaluation mode; it is
            changed in place where a deviation is chosen, else it stays as it was.
        calibration: a batch of training inputs, a tensor or a mapping of keyword arguments.
        validation: batches of inputs and labels that the model was not trained on.
        layers: attention modules that get a deviation.
        num_inducing: inducing inputs M of each head.
        rho: standard deviation of the whitened inducing outputs.
        tried: standard deviations σ to choose from.
        num_samples: samples S of a prediction.
        seed: of the choice of inducing inputs and of the draws, which are the same for each σ.

    Returns:
        The calibrated model, with what each candidate reached.

    Raises:
        ValueError: the model has no attention that is known, an argument cannot be used, there are
            fewer than two validation examples, or the predictions are not finite; the model is as
            it was.
    """
    check_counts(num_samples=num_samples)
    if not tried or min(tried) < 0:
        raise ValueError(f"tried must be standard deviations of at least 0, got {tuple(tried)}")
    labels = torch.cat([own.detach().cpu() for _, own in validation]) if validation else None
    if labels is None or len(labels) < 2:
        raise ValueError("validation must have batches with at least two examples in all")
    if model.training:
        raise ValueError("model must be in evaluation mode: call model.eval() first")
    generator = torch.Generator().manual_seed(seed)
    given: dict[str, Any] = {"num_inducing": num_inducing, "rho": rho, "generator": generator}
    replace_attention(model, layers=layers, calibration=calibration, **given)
    with ExitStack() as stack:
        stack.callback(remove_attention, model)
        found = {
            sigma: _predictions(model, validation, sigma, num_samples, seed)
            for sigma in dict.fromkeys((0.0, *tried))
        }
        candidates = _candidates(found, labels)
        chosen = min(candidates, key=lambda name: candidates[name].nll)
        deviation = candidates[chosen].deviation
        if deviation:
            _set(model, deviation)
            stack.pop_all()
    return Calibrated(model, candidates, chosen, num_samples)


def _candidates(found: Mapping[float, Tensor], labels: Tensor) -> dict[str, Candidate]:
    """Fit and measure all candidates on predictions for each σ."""
    classes = found[0.0].shape[-1]
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise ValueError(
            f"labels must be in 0..{classes - 1}, the model's classes, got {int(labels.min())}.."
            f"{int(labels.max())}"
        )
    halves = [torch.arange(start, len(labels), 2) for start in (0, 1)]
    allowed = {
        "as it is": ((0.0,), False),
        "temperature": ((0.0,), True),
        "deviation": (tuple(found), False),
        "deviation and temperature": (tuple(found), True),
    }
    candidates: dict[str, Candidate] = {}
    for name, (sigmas, tempered) in allowed.items():
        held_out = list[float]()
        for rows, others in (halves, halves[::-1]):
            sigma, temperature = _fit(found, labels, rows, sigmas, tempered)
            held_out.append(_nll(found[sigma][others], labels[others], temperature))
        sigma, temperature = _fit(found, labels, torch.arange(len(labels)), sigmas, tempered)
        candidates[name] = Candidate(sigma, temperature, sum(held_out) / 2)
    return candidates


def _fit(
    found: Mapping[float, Tensor],
    labels: Tensor,
    rows: Tensor,
    sigmas: Sequence[float],
    tempered: bool,
) -> tuple[float, float]:
    """Return σ and temperature of the lowest negative log-likelihood of some rows."""
    fits = [
        (sigma, fit_temperature(found[sigma][rows], labels[rows]) if tempered else 1.0)
        for sigma in sigmas
    ]
    return min(fits, key=lambda fit: _nll(found[fit[0]][rows], labels[rows], fit[1]))


def _nll(log_probs: Tensor, labels: Tensor, temperature: float) -> float:
    return float(F.nll_loss((log_probs / temperature).log_softmax(-1), labels))


def _set(model: nn.Module, sigma: float) -> None:
    for process in deviations(model).values():
        process.set_deviation(sigma)


def _predictions(
    model: nn.Module,
    validation: Sequence[tuple[Any, Tensor]],
    sigma: float,
    num_samples: int,
    seed: int,
) -> Tensor:
    """Return log-probabilities of all validation data at one σ, in float64 on the CPU."""
    _set(model, sigma)
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    samples = num_samples if sigma else 1
    parts = [_log_probs(model, inputs, samples, generator) for inputs, _ in validation]
    found = torch.cat(parts).double().cpu()
    if not bool(found.isfinite().all()):
        raise ValueError(f"model must give finite log-probabilities, and does not at sigma={sigma}")
    return found


@torch.no_grad()
def _log_probs(
    model: nn.Module, inputs: Any, num_samples: int | None, generator: torch.Generator | None
) -> Tensor:
    """Return the logarithm of the mean probabilities of samples; None: of the model's own."""
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    given = () if named else (inputs,)
    if num_samples is None:
        return _logits(model(*given, **named)).log_softmax(-1)
    drawn = sample_predictions(model, *given, num_samples=num_samples, generator=generator, **named)
    # log 1/S Σ softmax
    return _logits(drawn).log_softmax(-1).logsumexp(0) - torch.tensor(num_samples).log()


def _logits(outputs: Any) -> Tensor:
    if isinstance(outputs, Mapping):
        return outputs["logits"]
    return outputs if isinstance(outputs, Tensor) else outputs[0]
