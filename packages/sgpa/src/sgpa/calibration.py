"""Calibration of a trained classifier with a sparse GP beside its attention.

Not in the papers.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseq.checks import check_counts, check_labels, check_positive
from probseq.metrics import fit_temperature
from probseq.transformers.adapters import (
    Layers,
    deviations,
    guests,
    log_probabilities,
    remove_attention,
)
from sgpa.calibrated import Calibrated, Candidate
from sgpa.drop_in import replace_attention
from sgpa.tuning import tune_deviation

# What is tried: the prior standard deviation σ of the deviation.
DEVIATIONS = (0.0, 0.1, 0.3, 1.0, 2.0, 3.0, 4.5, 6.0, 10.0, 20.0)
_TUNING_BATCH = 64
Batches = Sequence[tuple[Any, Tensor]]


class _Setting(NamedTuple):
    """Deviations of a model: their mean σ, their state, and what it then predicts of all data."""

    deviation: float
    state: Mapping[str, Mapping[str, Tensor]]
    log_probs: Tensor


def calibrate(
    model: nn.Module,
    calibration: Any,
    validation: Sequence[tuple[Any, Tensor]],
    *,
    layers: Layers = "last",
    num_inducing: int = 48,
    rho: Sequence[float] = (0.1,),
    tried: Sequence[float] = DEVIATIONS,
    tuning_steps: int = 0,
    num_samples: int = 10,
    seed: int = 0,
) -> Calibrated:
    """Choose the variance of a sparse GP beside a classifier's attention, next to a temperature.

    Four candidates: the model as it is, with a temperature, with a deviation
    (:func:`~sgpa.drop_in.replace_attention`), and with both; two more where the scales of the
    deviation are tuned (:func:`~sgpa.tuning.tune_deviation`). Each is fitted on one half of the
    validation data and measured on the other, and the other way round; what has the lowest negative
    log-likelihood is fitted on all of them. No weight of the model is trained. To be calibrated
    under shift, give validation data that are shifted too: all candidates then get them.

    Args:
        model: classifier of torch, torchvision, timm or transformers, in evaluation mode; it is
            changed in place where a deviation is chosen, else it stays as it was.
        calibration: a batch of training inputs, a tensor or a mapping of keyword arguments.
        validation: batches of inputs and labels that the model was not trained on.
        layers: attention modules that get a deviation.
        num_inducing: inducing inputs M of each head.
        rho: standard deviations of the whitened inducing outputs to choose from.
        tried: standard deviations σ to choose from; with 0 alone the model may be any classifier,
            and gets a temperature at most.
        tuning_steps: steps of tuning, from what was chosen; 0 leaves these candidates out.
        num_samples: samples S of a prediction.
        seed: of the choice of inducing inputs and of the draws, which are the same for each σ.

    Returns:
        The calibrated model, with what each candidate reached.

    Raises:
        ValueError: the model has no attention that is known, an argument cannot be used, there are
            fewer than two validation examples, labels that are not those of the inputs, or the
            predictions are not finite; the model is as it was.
    """
    check_counts(num_samples=num_samples)
    if torch.is_inference_mode_enabled():
        raise ValueError("calibrate must be called outside torch.inference_mode()")
    if tuning_steps:
        check_counts(tuning_steps=tuning_steps)
    if not tried or min(tried) < 0:
        raise ValueError(f"tried must be standard deviations of at least 0, got {tuple(tried)}")
    if tuning_steps and not any(tried):
        raise ValueError(f"tried must have a positive one to tune from, got {tuple(tried)}")
    if not rho:
        raise ValueError("rho must have at least one standard deviation, got none")
    for one in rho:
        check_positive(rho=one)
    labels = torch.cat([own.detach().cpu() for _, own in validation]) if validation else None
    if labels is None or len(labels) < 2:
        raise ValueError("validation must have batches with at least two examples in all")
    if not all(len(own) for _, own in validation):
        raise ValueError("validation must have examples in each batch, got an empty batch")
    if model.training:
        raise ValueError("model must be in evaluation mode: call model.eval() first")
    if guests(model):
        raise ValueError("model must be as it was trained: call remove_attention(model) first")
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    given: dict[str, Any] = {"num_inducing": num_inducing, "generator": generator}
    if any(tried):
        replace_attention(model, layers=layers, calibration=calibration, **given)
    try:
        search = _Search(model, validation, labels, num_samples, seed)
        found = [
            search.setting(sigma, one)
            for sigma, one in product(dict.fromkeys((0.0, *tried)), rho)
            if sigma or one == rho[0]
        ]
        candidates = search.candidates(found, tuning_steps)
    finally:
        remove_attention(model)
    chosen = min(candidates, key=lambda name: candidates[name].nll)
    return Calibrated(model, candidates, chosen, num_samples)


class _Search:
    """Deviations of a model, and what it predicts of validation data with them."""

    def __init__(
        self, model: nn.Module, validation: Batches, labels: Tensor, num_samples: int, seed: int
    ) -> None:
        self.model, self.validation, self.labels = model, validation, labels
        self.num_samples, self.seed = num_samples, seed
        self.processes = deviations(model) if guests(model) else {}

    def setting(self, sigma: float, rho: float) -> _Setting:
        """Set σ and ρ of all heads, and predict."""
        for process in self.processes.values():
            process.reset(deviation=sigma, rho=rho)
        return self._current()

    def load(self, setting: _Setting) -> None:
        """Set what a setting has."""
        for name, state in setting.state.items():
            self.processes[name].load_state_dict(state)

    def candidates(self, found: Sequence[_Setting], steps: int) -> dict[str, Candidate]:
        """Fit and measure all candidates."""
        labels = self.labels
        halves = [torch.arange(start, len(labels), 2) for start in (0, 1)]
        whole, nobody = torch.arange(len(labels)), torch.arange(0)
        fits: dict[str, list[tuple[_Setting, float, float]]] = {}
        for rows, others in (halves, halves[::-1], (whole, nobody)):
            groups: dict[str, Sequence[_Setting]] = {"": found[:1], "deviation": found}
            if steps:
                drawn = [one for one in found if one.deviation]
                start = min(drawn, key=lambda one: _nll(one.log_probs[rows], labels[rows], 1.0))
                groups["tuned deviation"] = [found[0], self._tuned(start, rows, steps)]
            for name, settings in groups.items():
                for tempered in (False, True):
                    parts = [name, "temperature" if tempered else ""]
                    full = " and ".join(filter(None, parts)) or "as it is"
                    setting, temperature = _fit(settings, labels, rows, tempered)
                    nll = _nll(setting.log_probs[others], labels[others], temperature)
                    fits.setdefault(full, []).append((setting, temperature, nll))
        return {
            name: Candidate(setting.deviation, temperature, (one[2] + two[2]) / 2, setting.state)
            for name, (one, two, (setting, temperature, _)) in fits.items()
        }

    def _tuned(self, start: _Setting, rows: Tensor, steps: int) -> _Setting:
        """Tune the scales on some rows of the validation data."""
        self.load(start)
        chosen, first = set(rows.tolist()), 0
        pieces: list[tuple[Any, Tensor]] = []
        for inputs, labels in self.validation:
            kept = [row for row in range(len(labels)) if first + row in chosen]
            first += len(labels)
            # A batch of a single example is in one half alone.
            for piece in torch.tensor(kept).split(_TUNING_BATCH) if kept else ():
                pieces.append((_rows(inputs, piece), labels[piece]))
        batches = [pieces[step % len(pieces)] for step in range(steps)]
        tune_deviation(self.model, batches, seed=self.seed)
        return self._current()

    @torch.no_grad()
    def _current(self) -> _Setting:
        """Predict all validation data, in float64 on the CPU."""
        sigmas = [float(process.deviation.mean()) for process in self.processes.values()]
        sigma = sum(sigmas) / max(len(sigmas), 1)
        device = next(self.model.parameters()).device
        generator = torch.Generator(device).manual_seed(self.seed)
        # One draw of a deviation that is zero, and none where there is no deviation.
        samples = self.num_samples if sigma else 1 if self.processes else None
        parts: list[Tensor] = []
        for inputs, labels in self.validation:
            parts.append(log_probabilities(self.model, inputs, samples, generator).double().cpu())
            check_labels(labels.cpu(), parts[-1])
        found = torch.cat(parts)
        if not bool(found.isfinite().all()):
            raise ValueError(
                f"model must give finite log-probabilities, and does not at sigma={sigma:g}"
            )
        state = {
            name: {key: value.detach().clone() for key, value in process.state_dict().items()}
            for name, process in self.processes.items()
            if sigma
        }
        return _Setting(sigma, state, found)


def _rows(inputs: Any, rows: Tensor) -> Any:
    if isinstance(inputs, Mapping):
        batched = (name for name, value in inputs.items() if isinstance(value, Tensor))
        return {**inputs, **{name: inputs[name][rows] for name in batched}}
    return inputs[rows]


def _fit(
    settings: Sequence[_Setting], labels: Tensor, rows: Tensor, tempered: bool
) -> tuple[_Setting, float]:
    """Return setting and temperature of the lowest negative log-likelihood of some rows."""
    fits = [
        (one, fit_temperature(one.log_probs[rows], labels[rows]) if tempered else 1.0)
        for one in settings
    ]
    return min(fits, key=lambda fit: _nll(fit[0].log_probs[rows], labels[rows], fit[1]))


def _nll(log_probs: Tensor, labels: Tensor, temperature: float) -> float:
    return float(F.nll_loss((log_probs / temperature).log_softmax(-1), labels))
