"""Calibration of a trained classifier with a sparse GP beside its attention.

Not in the papers.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseq.batches import device_of, on_device, read_batches
from probseq.checks import check_counts, check_labels, check_positive
from probseq.metrics.post_hoc import search_temperature, warn_at_bound
from probseq.transformers.adapters import (
    Layers,
    choose_layers,
    deviations,
    guests,
    remove_attention,
)
from probseq.transformers.drawing import log_probabilities
from probseq.transformers.layouts import check_layout, find_attention
from sgpa.beyond.calibrated import Calibrated, Candidate
from sgpa.beyond.drop_in import replace_attention
from sgpa.beyond.tuning import tune_deviation

# Candidates: the prior standard deviation σ of the deviation.
DEVIATION_GRID = (0.0, 0.1, 0.3, 1.0, 2.0, 3.0, 4.5, 6.0, 10.0, 20.0)
_TUNING_BATCH = 64
# Rows that choose and rows that measure: each half in turn, and all that choose in the end.
_EVEN, _ODD = slice(0, None, 2), slice(1, None, 2)
_SPLITS = ((_EVEN, _ODD), (_ODD, _EVEN), (slice(None), slice(0)))


class _Fit(NamedTuple):
    """A temperature, and negative log-likelihoods of rows that chose it and of the others."""

    temperature: float
    selection_nll: float
    held_out_nll: float


class _Setting(NamedTuple):
    """Deviations of a model: their mean σ, their state, and fits of each split without and with T.

    What it predicts is not kept: that would be all classes of all data, for each σ.
    """

    deviation: float
    state: Mapping[str, Mapping[str, Tensor]]
    fits: Sequence[tuple[_Fit, _Fit]]


def calibrate(
    model: nn.Module,
    calibration: Any,
    validation: Iterable[Any],
    *,
    layers: Layers = "last",
    num_inducing: int = 48,
    rho: Sequence[float] = (0.1,),
    deviations: Sequence[float] = DEVIATION_GRID,
    tuning_steps: int = 0,
    num_samples: int = 10,
    seed: int = 0,
) -> Calibrated:
    """Choose the variance of a sparse GP beside a classifier's attention, next to a temperature.

    Four candidates: the model as it is, with a temperature, with a deviation
    (:func:`~sgpa.beyond.drop_in.replace_attention`), and with both; two more where the scales of
    the deviation are tuned (:func:`~sgpa.beyond.tuning.tune_deviation`). Each is fitted on one half
    of the validation data and measured on the other, and the other way round; what has the
    lowest negative log-likelihood is fitted on all of them. No weight of the model is trained. To
    be calibrated under shift, give validation data that are shifted too: all candidates then
    get them.

    Args:
        model: classifier of torch, torchvision, timm or transformers, in evaluation mode; it is
            changed in place where a deviation is chosen, else it stays as it was. Any other, whose
            attention is unknown or that has none, gets a temperature at most, with a warning.
        calibration: a batch of training inputs, a tensor or a mapping of keyword arguments.
        validation: data that the model was not trained on, see
            :func:`~probseq.batches.read_batches`; read once, and kept.
        layers: attention modules that get a deviation.
        num_inducing: inducing inputs M of each head.
        rho: standard deviations of the whitened inducing outputs to choose from.
        deviations: standard deviations σ to choose from; with 0 alone there is no deviation.
        tuning_steps: steps of tuning, from what was chosen; 0 leaves these candidates out.
        num_samples: samples S of a prediction.
        seed: of the choice of inducing inputs and of the draws, which are the same for each σ.

    Returns:
        The calibrated model, with what each candidate reached; a temperature at the bounds of its
        search comes with a warning.

    Raises:
        ValueError: the layers named cannot have a deviation, an argument cannot be used, there are
            fewer than two validation examples, labels that are not those of the inputs, or the
            predictions are not finite; the model is as it was.
    """
    check_counts(num_samples=num_samples)
    if torch.is_inference_mode_enabled():
        raise ValueError("calibrate must be called outside torch.inference_mode()")
    if tuning_steps:
        check_counts(tuning_steps=tuning_steps)
    if not deviations or min(deviations) < 0:
        raise ValueError(f"deviations must be at least 0, got {tuple(deviations)}")
    if tuning_steps and not any(deviations):
        raise ValueError(f"deviations must have one above 0 to tune from, got {tuple(deviations)}")
    if not rho:
        raise ValueError("rho must have at least one standard deviation, got none")
    for one in rho:
        check_positive(rho=one)
    held = list(read_batches(validation, model, name="validation"))
    if sum(len(labels) for _, labels in held) < 2:
        raise ValueError("validation must have batches with at least two examples in all")
    if not all(len(labels) for _, labels in held):
        raise ValueError("validation must have examples in each batch, got an empty batch")
    if model.training:
        raise ValueError("model must be in evaluation mode: call model.eval() first")
    if guests(model):
        raise ValueError("model must be as it was trained: call remove_attention(model) first")
    if any(deviations):
        try:
            check_attention(model, layers)
        except ValueError as error:
            if layers not in ("last", "all"):
                raise
            warnings.warn(f"candidates with a deviation are left out: {error}", stacklevel=2)
            deviations, tuning_steps = (0.0,), 0
    generator = torch.Generator(device_of(model)).manual_seed(seed)
    options: dict[str, Any] = {"num_inducing": num_inducing, "generator": generator}
    if any(deviations):
        calibration = on_device(calibration, model)
        replace_attention(model, layers=layers, calibration=calibration, **options)
    try:
        search = _Search(model, held, num_samples, seed)
        settings = [
            search.setting(sigma, one)
            for sigma, one in product(dict.fromkeys((0.0, *deviations)), rho)
            if sigma or one == rho[0]
        ]
        candidates = search.candidates(settings, tuning_steps)
    finally:
        remove_attention(model)
    chosen = min(candidates, key=lambda name: candidates[name].nll)
    warn_at_bound(candidates[chosen].temperature)
    return Calibrated(model, candidates, chosen, num_samples)


def check_attention(model: nn.Module, layers: Layers) -> None:
    """Raise if layers of a model cannot have a deviation.

    Args:
        model: any classifier, as it was trained.
        layers: see :func:`calibrate`.

    Raises:
        ValueError: the model has no attention that is known, a layer is not there, or cannot have
            one.
    """
    modules = find_attention(model)
    for layer in choose_layers(list(modules), layers):
        check_layout(layer, modules[layer])


class _Search:
    """Deviations of a model, and what it predicts of validation data with them."""

    def __init__(
        self, model: nn.Module, held: Sequence[tuple[Any, Tensor]], num_samples: int, seed: int
    ) -> None:
        self.model, self.held = model, held
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

    def candidates(self, settings: Sequence[_Setting], steps: int) -> dict[str, Candidate]:
        """Fit and measure all candidates."""
        fits: dict[str, list[tuple[_Setting, _Fit]]] = {}
        for split, (rows, _) in enumerate(_SPLITS):
            groups: dict[str, Sequence[_Setting]] = {"": settings[:1], "deviation": settings}
            if steps:
                drawn = [one for one in settings if one.deviation]
                start = min(drawn, key=lambda one: one.fits[split][False].selection_nll)
                groups["tuned deviation"] = [settings[0], self._tuned(start, rows, steps)]
            for name, settings in groups.items():
                for tempered in (False, True):
                    words = [name, "temperature" if tempered else ""]
                    full = " and ".join(filter(None, words)) or "as it is"
                    setting = min(settings, key=lambda one: one.fits[split][tempered].selection_nll)
                    fits.setdefault(full, []).append((setting, setting.fits[split][tempered]))
        return {
            name: Candidate(
                setting.deviation,
                whole.temperature,
                (one.held_out_nll + two.held_out_nll) / 2,
                setting.state,
            )
            for name, ((_, one), (_, two), (setting, whole)) in fits.items()
        }

    def _tuned(self, start: _Setting, rows: slice, steps: int) -> _Setting:
        """Tune the scales on some rows of the validation data."""
        self.load(start)
        pieces: list[tuple[Any, Tensor]] = []
        chosen = torch.zeros(sum(len(labels) for _, labels in self.held), dtype=torch.bool)
        chosen[rows] = True
        sizes = [len(labels) for _, labels in self.held]
        for (inputs, labels), here in zip(self.held, chosen.split(sizes), strict=True):
            # A batch of a single example is in one half alone.
            for piece in here.nonzero().flatten().split(_TUNING_BATCH) if here.any() else ():
                pieces.append((_rows(inputs, piece), labels[piece]))
        batches = [pieces[step % len(pieces)] for step in range(steps)]
        tune_deviation(self.model, batches, seed=self.seed)
        return self._current()

    @torch.no_grad()
    def _current(self) -> _Setting:
        """Predict all validation data; fit temperatures in float64 on the CPU."""
        sigmas = [float(process.deviation.mean()) for process in self.processes.values()]
        sigma = sum(sigmas) / max(len(sigmas), 1)
        generator = torch.Generator(device_of(self.model)).manual_seed(self.seed)
        # One draw of a deviation that is zero, and none where there is no deviation.
        samples = self.num_samples if sigma else 1 if self.processes else None
        batches: list[Tensor] = []
        for inputs, labels in self.held:
            on_model = on_device(inputs, self.model)
            batches.append(log_probabilities(self.model, on_model, samples, generator).cpu())
            check_labels(labels.cpu(), batches[-1])
        log_probs = torch.cat(batches)
        del batches
        if not bool(log_probs.isfinite().all()):
            raise ValueError(
                f"model must give finite log-probabilities, and does not at sigma={sigma:g}"
            )
        state = {
            name: {key: value.detach().clone() for key, value in process.state_dict().items()}
            for name, process in self.processes.items()
            if sigma
        }
        labels = torch.cat([targets.cpu() for _, targets in self.held])
        fits = [
            (_fit(log_probs, labels, *split, False), _fit(log_probs, labels, *split, True))
            for split in _SPLITS
        ]
        return _Setting(sigma, state, fits)


def _rows(inputs: Any, rows: Tensor) -> Any:
    if isinstance(inputs, Mapping):
        batched = (name for name, value in inputs.items() if isinstance(value, Tensor))
        return {**inputs, **{name: inputs[name][rows] for name in batched}}
    return inputs[rows]


def _fit(log_probs: Tensor, labels: Tensor, rows: slice, others: slice, tempered: bool) -> _Fit:
    """Fit a temperature, or take 1, and measure it."""

    def nll(rows: slice) -> float:
        scaled = (log_probs[rows].double() / temperature).log_softmax(-1)
        return float(F.nll_loss(scaled, labels[rows]))

    temperature = search_temperature(log_probs[rows], labels[rows]) if tempered else 1.0
    return _Fit(temperature, nll(rows), nll(others))
