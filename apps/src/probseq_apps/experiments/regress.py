"""`probseq regress`: predict a property of molecules, measure how sure and how right, compare."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from probseq.metrics import LaplaceMixture, evaluate_numbers, mae
from probseq_apps.data.graphs import TokenLayout, flip_signs, trim_tokens
from probseq_apps.data.molecules import load_molecules
from probseq_apps.engine import distributed
from probseq_apps.engine.trainer import Batch, LossParts, Step
from probseq_apps.experiments.comparison import (
    Comparison,
    Loaded,
    Measured,
    Objective,
    PredictionSetup,
    TestSet,
    Weight,
    penalised,
    penalty_of,
)
from probseq_apps.options import Options
from probseq_apps.report.regress import regress_report
from probseq_apps.settings.methods import Method, Row
from sgpa import LaplaceLikelihood, RegressionModel

SWAPPED = "ood/swapped-edges"


class NumberPredictions(NamedTuple):
    """Predictions of a test set in the unit of the targets: a mixture of Laplace distributions.

    Attributes:
        samples: function values f, one row a Monte Carlo sample.
        scale: b of the likelihood.
        targets: true values.
    """

    samples: Float[Tensor, "s n"]
    scale: Float[Tensor, ""]
    targets: Float[Tensor, " n"]


class Regress(Comparison):
    """Methods of regression on molecules, or rows of numbers."""

    kind = command = "regress"
    data_field = ("target", "target")
    run_identity = {"experiment": kind}  # noqa: RUF012
    prediction_type, make_report = NumberPredictions, staticmethod(regress_report)

    def load(self, options: Options) -> Loaded:
        """Read the molecules, or rows."""
        settings = self.settings
        distributed.join(distributed.resolve_device(settings.training.device))
        if options.download:
            raise ValueError("download must be off: data are read from files of one's own")
        reading = settings.reading.to_dict()
        data = load_molecules(settings.data, data_dir=options.data_dir, **reading)
        sets: dict[str, TestSet] = {"test": data.test}
        if settings.evaluation.ood and "swapped" in data.extra_tests:
            sets[SWAPPED] = data.extra_tests["swapped"]
        return Loaded(data, sets)

    def describe(self, data: Loaded) -> str:
        """Return the sizes of the data, and what is compared."""
        # Molecules alone have a changed test set.
        noun = "molecules" if data.data.extra_tests else "rows"
        return self.described(data.data, f"{noun}, target {data.data.target!r}")

    def _prediction_setup(self, data: Any) -> PredictionSetup:
        return partial(function_values, *mean_and_std(data)), trim_tokens, data.max_tokens

    def model(self, method: Method, data: Any, seed: int) -> nn.Module:
        """Return a new model."""
        return RegressionModel(super().model(method, data, seed), LaplaceLikelihood())

    def _objective(self, method: Method, model: nn.Module, data: Any) -> Objective:
        """Return the loss, and the metrics of the validation part, the score first.

        The thesis selects by "validation accuracy", which regression has not.
        """
        assert isinstance(model, RegressionModel)
        weight, scale = penalty_of(method, self.settings), mean_and_std(data)
        loss = partial(regression_loss, data.layout, scale, model.likelihood, weight)
        return loss, lambda values, targets: {"score": -mae(values.mean(1), targets)}

    def _to_stored(
        self, model: nn.Module, data: Any, outputs: tuple[Tensor, ...]
    ) -> NumberPredictions:
        assert isinstance(model, RegressionModel)
        scale = mean_and_std(data)[1] * model.likelihood.scale.detach().double().cpu()
        return NumberPredictions(outputs[0].T.contiguous(), scale, outputs[1])

    def measure(self, row: Row, runs: Sequence[Mapping[str, NumberPredictions]]) -> Measured:
        """Return metrics and predictions to plot, an entry a seed or one for an ensemble."""
        groups = self.together(row, runs)
        entries = [{name: mixture([r[name] for r in runs]) for name in runs[0]} for runs in groups]
        return [evaluate_numbers(entry) for entry in entries], entries, ()


def mean_and_std(data: Any) -> tuple[float, float]:
    """Return mean and standard deviation of the targets to learn."""
    return float(data.train.targets.mean()), float(data.train.targets.std())


def function_values(mean: float, std: float, outputs: Float[Tensor, "s n 1"]) -> tuple[Tensor]:
    """Return function values in the targets' unit, a row for each input."""
    return (mean + std * outputs[..., 0].T.double(),)


def regression_loss(
    layout: TokenLayout,
    mean_std: tuple[float, float],
    likelihood: LaplaceLikelihood,
    weight: Weight | None,
    model: nn.Module,
    batch: Batch,
    step: Step,
) -> LossParts:
    """Return the negative log likelihood of the standardised targets plus the weighted penalty.

    The eigenvectors in the tokens get new signs in each training batch, see
    `molecules.flip_signs`; validation and test have them as they come.
    """
    tokens, targets = batch
    mean, std = mean_std
    tokens = flip_signs(trim_tokens(tokens), layout, step.generator)
    output = model(tokens, generator=step.generator)
    standardised = ((targets - mean) / std).to(output.logits.dtype)
    nll = -likelihood.log_prob(output.logits, standardised).mean()
    return penalised(nll, output.penalty, weight, step, scale=std * likelihood.scale)


def mixture(members: Sequence[NumberPredictions]) -> tuple[LaplaceMixture, Tensor]:
    """Return the distribution of one model, or of the members of an ensemble, and true values."""
    distribution = LaplaceMixture([m.samples for m in members], [m.scale for m in members])
    return distribution, members[0].targets
