"""`probseq regress`: predict a property of molecules, measure how sure and how right, compare."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq import metrics
from probseq.graphs import TokenLayout, flip_signs, trim_tokens
from probseq.transformers import TransformerOutput
from probseq_apps.data.molecules import GraphData, load_molecules
from probseq_apps.engine import distributed
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import load_groups, save_groups
from probseq_apps.engine.fit import fit
from probseq_apps.engine.trainer import Batch, LossParts, Step
from probseq_apps.experiment import Experiment, Job, Results
from probseq_apps.experiments.classify import (
    PREDICTIONS,
    RUNS,
    described,
    facts,
    identity,
    method_jobs,
    penalty_of,
    run_folder,
    tensors,
    trained_seconds,
)
from probseq_apps.folder import RunFolder
from probseq_apps.methods.build import build, max_tokens
from probseq_apps.methods.predict import Predictor
from probseq_apps.options import Options
from probseq_apps.report.classify import MethodResult
from probseq_apps.report.regress import Predicted, is_constant, regress_report
from probseq_apps.settings.classify import RegressSettings
from probseq_apps.settings.methods import METHODS, parse_row, trained_methods
from sgpa import LaplaceLikelihood

SWAPPED = "ood/swapped-edges"
# Probabilities of the central intervals of thesis Eq. 4.20: 0.05, 0.15, ..., 0.95.
LEVELS = tuple((2 * k + 1) / 20 for k in range(10))


class RegressionModel(nn.Module):
    """A transformer and the likelihood of its output, trained as one (thesis B.3.2)."""

    def __init__(self, transformer: nn.Module, likelihood: LaplaceLikelihood) -> None:
        super().__init__()
        self.transformer = transformer
        self.likelihood = likelihood

    def forward(
        self,
        tokens: Float[Tensor, "n t w"],
        *,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> TransformerOutput:
        """Return the output, in units of the targets' standard deviation."""
        return self.transformer(tokens, generator=generator, num_samples=num_samples)


class NumberPredictions(NamedTuple):
    """What a model says about a test set, in the targets' own unit.

    The predictive distribution of target n is the mixture (1/S) Σ_s Laplace(samples[s, n], scale).

    Attributes:
        samples: function values f, one row a Monte Carlo sample.
        scale: b of the likelihood.
        targets: true values.
    """

    samples: Float[Tensor, "s n"]
    scale: Float[Tensor, ""]
    targets: Float[Tensor, " n"]


# One for a single model, several for an ensemble, whose distribution is the mixture of theirs.
Members = Sequence[NumberPredictions]


class Regress(Experiment[GraphData]):
    """Methods of regression on molecules, or rows of numbers."""

    kind = command = "regress"
    parts = RUNS

    def __init__(self, settings: RegressSettings) -> None:
        self.settings = settings
        self.jobs = method_jobs(settings)

    def load(self, options: Options) -> GraphData:
        """Read the molecules, or rows."""
        settings = self.settings
        distributed.join(distributed.resolve_device(settings.training.device))
        if options.download:
            raise ValueError("download must be off: data are read from files of one's own")
        return load_molecules(
            settings.data, data_dir=options.data_dir, **settings.reading.to_dict()
        )

    def check(self, data: GraphData) -> None:
        """Raise if the settings don't fit the data."""
        for name in trained_methods(self.settings.method):
            build(METHODS[name], self.settings, data, seed=0)

    def describe(self, data: GraphData) -> str:
        """Return the sizes of the data, and what is compared."""
        # Molecules alone have a changed test set.
        what = "molecules" if data.extra_tests else "rows"
        return described(data, f"{what}, target {data.target!r}", self.settings)

    def run(self, job: Job, data: GraphData, at: RunFolder) -> dict[str, Any]:
        """Train a method, from where it stopped, and store its predictions."""
        settings, folder, method = self.settings, run_folder(at, job), METHODS[job.row]
        targets = data.train.targets
        mean, std = float(targets.mean()), float(targets.std())
        transformer = build(method, settings, data, seed=derive_seed(job.seed, "weights"))
        model = RegressionModel(transformer, LaplaceLikelihood())
        predictor = Predictor(
            method,
            trim_tokens,
            partial(function_values, mean, std),
            settings.evaluation.num_samples,
            max_tokens(settings, data) - (settings.model.pooling == "cls"),
        )
        fit(
            model,
            tensors(data.train),
            settings.training.train_config(seed=job.seed),
            folder,
            loss=partial(
                regression_loss,
                data.layout,
                (mean, std),
                model.likelihood,
                penalty_of(method, settings),
            ),
            score=partial(regression_score, predictor),
            held_out=tensors(data.validation),
            label=job.row,
            metadata={"experiment": self.kind, **identity(job.row, method, settings)},
        )
        if distributed.is_main():
            sets = {"test": partial(tensors, data.test)}
            swapped = data.extra_tests.get("swapped")  # of molecules
            if settings.evaluation.ood and swapped is not None:
                sets[SWAPPED] = partial(tensors, swapped)
            device = distributed.resolve_device(settings.training.device)
            found = predictor.sets(model, sets, device=device, seed=job.seed)
            scale = std * model.likelihood.scale.detach().double().cpu()
            groups = {
                name: NumberPredictions(values.T.contiguous(), scale, truth)._asdict()
                for name, (values, truth) in found.items()
            }
            save_groups(folder / PREDICTIONS, groups)
        return {"seconds": trained_seconds(folder)}

    def report(self, data: GraphData, results: Results, at: RunFolder) -> str:
        """Evaluate the stored predictions and write the report."""
        settings = self.settings
        measured: dict[str, MethodResult] = {}
        shown: dict[str, list[dict[str, Predicted]]] = {}
        for name in settings.method:
            row = parse_row(name)
            jobs = [Job(row.base, seed) for seed in settings.seeds]
            runs = [self._stored(job, data, at) for job in jobs]
            together = [runs] if "ensemble" in row.additions else [[run] for run in runs]
            entries = [{n: [run[n] for run in some] for n in some[0]} for some in together]
            shown[name] = [{n: predicted(found) for n, found in e.items()} for e in entries]
            measured[name] = MethodResult(
                row.title,
                [evaluate_numbers(entry) for entry in entries],
                [results[job]["seconds"] for job in jobs],
            )
        report = regress_report(
            measured,
            shown,
            settings=settings.to_dict(),
            data=facts(data) | {"target": data.target, "notes": list(data.notes)},
            recipe=at.recipe,
        )
        return report.write(at.path)

    def _stored(self, job: Job, data: GraphData, at: RunFolder) -> dict[str, NumberPredictions]:
        """Return stored predictions, made anew if they were deleted."""
        path = run_folder(at, job) / PREDICTIONS
        if not path.exists():
            self.run(job, data, at)
        return {name: NumberPredictions(**fields) for name, fields in load_groups(path).items()}


def function_values(mean: float, std: float, outputs: Float[Tensor, "s n 1"]) -> tuple[Tensor]:
    """Return function values in the targets' unit, a row for each input."""
    return (mean + std * outputs[..., 0].T.double(),)


def regression_loss(
    layout: TokenLayout,
    mean_std: tuple[float, float],
    likelihood: LaplaceLikelihood,
    weight: Callable[[float], float] | None,
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
    scale = std * likelihood.scale
    if weight is None:
        return LossParts(nll, {"nll": nll, "scale": scale})
    penalty = output.penalty.float()
    loss = nll + weight(step.progress) * penalty
    return LossParts(loss, {"nll": nll, "penalty": penalty, "scale": scale})


def regression_score(
    predictor: Predictor, model: RegressionModel, batches: Iterable[Batch]
) -> float:
    """Return the negative mean absolute error of the mean prediction.

    The thesis selects by "validation accuracy", which regression has not.
    """
    found = [(predictor.batch(model, tokens)[0].mean(1), targets) for tokens, targets in batches]
    means, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
    return -float(metrics.mae(means, targets))


# -- Measuring numbers: flat names, `test/mae`, `ood/swapped-edges/variance/auroc` ----------------


def predictive_mean(members: Members) -> Float[Tensor, " n"]:
    """Return the mean over members and samples."""
    return torch.stack([member.samples.mean(0) for member in members]).mean(0)


def predictive_variance(members: Members) -> Float[Tensor, " n"]:
    """Return the variance of the mixture: the mean of the variances plus the variance of the means.

    A member's own is var_s f + 2 b².
    """
    means = torch.stack([member.samples.mean(0) for member in members])
    within = [
        metrics.laplace_predictive_variance(member.samples, member.scale) for member in members
    ]
    return torch.stack(within).mean(0) + means.var(0, correction=0)


def function_variance(members: Members) -> Float[Tensor, " n"]:
    """Return the predictive variance without the noise 2 b², which is the same for all inputs.

    It ranks them as the predictive variance does, and is comparable between seeds.
    """
    noise = torch.stack([2.0 * member.scale.square() for member in members]).mean()
    return (predictive_variance(members) - noise).clamp(min=0.0)


def log_density(members: Members) -> Float[Tensor, " n"]:
    """Return the log density of the true values under the mixture over members and samples."""
    each = [
        metrics.laplace_log_prob(member.samples, member.targets, member.scale) for member in members
    ]
    return torch.logsumexp(torch.stack(each), 0) - math.log(len(members))


def interval_coverage(members: Members, levels: Sequence[float]) -> list[float]:
    """Return the share of the true values inside the central intervals of given probabilities.

    The mixture's distribution function F is known, so no quantile is estimated: y lies between the
    quantiles (1 - c)/2 and (1 + c)/2 where 2 |F(y) - 1/2| ≤ c.
    """
    each: list[Tensor] = []
    for member in members:
        z = (member.targets - member.samples) / member.scale
        tail = 0.5 * torch.exp(-z.abs())
        each.append(torch.where(z < 0.0, tail, 1.0 - tail).mean(0))
    central = 2.0 * (torch.stack(each).mean(0) - 0.5).abs()
    return [float((central <= level).double().mean()) for level in levels]


def coverage_error(members: Members) -> float:
    """Return the mean distance of coverage and probability of central intervals (Eq. 4.20)."""
    found = interval_coverage(members, LEVELS)
    return sum(abs(c - level) for c, level in zip(found, LEVELS, strict=True)) / len(LEVELS)


def predicted(members: Members) -> Predicted:
    """Return what plots show of the predictions of one set."""
    levels = (0.0, *LEVELS, 1.0)
    return Predicted(
        members[0].targets,
        predictive_mean(members),
        predictive_variance(members),
        function_variance(members),
        dict(zip(levels, interval_coverage(members, levels), strict=True)),
    )


def evaluate_numbers(sets: Mapping[str, Members]) -> dict[str, float | None]:
    """Compute all metrics of one model or ensemble on `test`, and on `ood/NAME` to tell from it.

    None stands where a metric is not defined: the predictive variance of a deterministic method is
    the same everywhere and tells nothing apart.
    """
    test = sets["test"]
    mean, targets = predictive_mean(test), test[0].targets
    values: dict[str, float | None] = {
        "test/mae": float(metrics.mae(mean, targets)),
        "test/rmse": float(metrics.rmse(mean, targets)),
        "test/nll": -float(log_density(test).mean()),
        "test/coverage-ece": coverage_error(test),
    }
    inside = predictive_variance(test)
    for name, outside in sets.items():
        if name.startswith("ood/"):
            scores = predictive_variance(outside)
            flat = is_constant(torch.cat([inside, scores]))
            for metric, value in metrics.ood_metrics(inside, scores).items():
                key = f"{name}/variance/{metric.replace('_', '-')}"
                values[key] = None if flat else float(value)
    return values
