"""`probseq regress`: predict a property of molecules, measure how sure and how right, compare."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from probseq.metrics import LaplaceMixture, evaluate_numbers, mae
from probseq.transformers import Predictor
from probseq_apps.data.graphs import TokenLayout, flip_signs, trim_tokens
from probseq_apps.data.molecules import GraphData, load_molecules
from probseq_apps.engine import distributed
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import save_groups
from probseq_apps.engine.trainer import Batch, LossParts, TrainStep
from probseq_apps.experiment import Job, Results, RunFolder, Workflow
from probseq_apps.experiments import comparison
from probseq_apps.methods.build import build
from probseq_apps.options import Options
from probseq_apps.report.classify import MethodResult, methods_report
from probseq_apps.report.set_plots import NumberSets, number_figures
from probseq_apps.settings.classify import RegressSettings
from probseq_apps.settings.methods import TrainedMethod, resolve
from sgpa import LaplaceLikelihood, RegressionModel

SWAPPED = "ood/swapped-edges"


class NumberPredictions(NamedTuple):
    """Predictions of a test set in the unit of the targets: a mixture of Laplace distributions."""

    samples: Float[Tensor, "s n"]  # function values f, one row a Monte Carlo sample
    scale: Float[Tensor, ""]  # b of the likelihood
    targets: Float[Tensor, " n"]  # true values


def load(settings: RegressSettings, options: Options) -> comparison.Loaded[GraphData]:
    """Read the molecules."""
    distributed.join(distributed.resolve_device(settings.training.device))
    if options.download:
        raise ValueError("download must be off: data are read from files of one's own")
    data = load_molecules(settings.data, settings.reading, data_dir=options.data_dir)
    sets: dict[str, comparison.TestSet] = {"test": data.test}
    if settings.evaluation.ood:
        sets[SWAPPED] = data.extra_tests["swapped"]
    return comparison.Loaded(data, sets, data)


def describe(settings: RegressSettings, loaded: comparison.Loaded[GraphData]) -> str:
    """Return the sizes of the data, and what is compared."""
    noun = f"molecules, target {loaded.data.target!r}"
    return comparison.describe_data(settings, loaded.data, noun)


def build_method(
    trained: TrainedMethod[RegressSettings], data: GraphData, seed: int
) -> tuple[RegressionModel, comparison.Objective, Predictor]:
    """Return a method's new model, its loss and metrics of validation, and what predicts."""
    network = build(trained, data, seed=seed)
    model, weight = RegressionModel(network, LaplaceLikelihood()), trained.penalty_weight
    # The thesis selects by "validation accuracy", which regression has not.
    objective = comparison.Objective(
        partial(regression_loss, data.layout, mean_and_std(data), model.likelihood, weight),
        lambda values, targets: {"score": -mae(values.mean(1), targets)},
    )
    return model, objective, make_predictor(trained, data)


def train_method(
    settings: RegressSettings, loaded: comparison.Loaded[GraphData], job: Job, at: RunFolder
) -> dict[str, Any]:
    """Train a method, from where it stopped, and store its predictions."""
    trained, folder, data = resolve(job.row, settings), comparison.run_folder(at, job), loaded.data
    seed = derive_seed(job.seed, "weights")
    model, objective, predictor = build_method(trained, data, seed)
    comparison.fit_method(
        model,
        trained,
        data,
        folder,
        objective=objective,
        predictor=predictor,
        config=trained.settings.training.train_config(seed=job.seed),
        label=trained.base,
        experiment="regress",
    )
    result: dict[str, Any] = {"seconds": comparison.training_seconds(folder)}
    if distributed.is_main():
        noise_scale = mean_and_std(data)[1] * model.likelihood.scale.detach().double().cpu()
        stored: dict[str, dict[str, Tensor]] = {}
        outputs = comparison.predict_sets(
            model, predictor, loaded.sets, trained.settings, seed=job.seed
        )
        for name, (values, targets) in outputs.items():
            predictions = NumberPredictions(values.T.contiguous(), noise_scale, targets)
            stored[name] = predictions._asdict()
        save_groups(folder / comparison.PREDICTIONS, stored)
        result |= comparison.measured_penalty(model, trained, predictor, data, seed=job.seed)
    return result


def report(
    settings: RegressSettings, loaded: comparison.Loaded[GraphData], results: Results, at: RunFolder
) -> str:
    """Evaluate the stored predictions and write the report."""
    measured: dict[str, MethodResult] = {}
    plotted: dict[str, list[NumberSets]] = {}
    for name in settings.method:
        row = settings.row(name)
        jobs_of_row, stored = comparison.stored_runs(row, settings, at)
        runs = [{n: NumberPredictions(**f) for n, f in sets.items()} for sets in stored]
        plotted[name] = [
            {set_name: mixture([sets[set_name] for sets in members]) for set_name in members[0]}
            for members in comparison.ensembles(row, settings, runs)
        ]
        metrics = [evaluate_numbers(sets) for sets in plotted[name]]
        measured[name] = comparison.row_result(row, jobs_of_row, results, metrics)
    train, test = loaded.data.train.targets, loaded.data.test.targets
    errors = (test - train.mean()).double()
    chance = {"mae": float(errors.abs().mean()), "rmse": float(errors.square().mean().sqrt())}
    target = loaded.data.target
    by_title = {result.row.short_title: plotted[name] for name, result in measured.items()}
    return methods_report(
        "regress",
        comparison.same_metrics(measured),
        f"examples; the target is `{target}`, and errors are in its unit",
        story=("coverage",),
        figures=partial(number_figures, by_title, target),
        **comparison.report_fields(settings, loaded, at, target=target, chance=chance),
    ).write(at.path)


WORKFLOW = Workflow(
    kind="regress",
    command="regress",
    folders=comparison.FOLDERS,
    longer=comparison.LONGER,
    jobs=comparison.jobs,
    load=load,
    check=comparison.check_methods,
    describe=describe,
    run=train_method,
    report=report,
)


def make_predictor(trained: TrainedMethod[RegressSettings], data: GraphData) -> Predictor:
    """Return what predicts function values with a method."""
    method, reduce = trained.method, partial(function_values, *mean_and_std(data))
    samples = trained.settings.evaluation.num_samples if method.sampled else None
    return Predictor(reduce, trim_tokens, samples, method.test_dropout, data.max_tokens)


def mean_and_std(data: GraphData) -> tuple[float, float]:
    """Return mean and standard deviation of the targets to learn."""
    return float(data.train.targets.mean()), float(data.train.targets.std())


def function_values(mean: float, std: float, outputs: Float[Tensor, "s n 1"]) -> tuple[Tensor]:
    """Return function values in the targets' unit, a row for each input."""
    return (mean + std * outputs[..., 0].T.double(),)


def regression_loss(
    layout: TokenLayout,
    mean_std: tuple[float, float],
    likelihood: LaplaceLikelihood,
    weight: comparison.Weight | None,
    model: nn.Module,
    batch: Batch,
    step: TrainStep,
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
    return comparison.penalised(nll, output.penalty, weight, step, scale=std * likelihood.scale)


def mixture(members: Sequence[NumberPredictions]) -> tuple[LaplaceMixture, Tensor]:
    """Return the distribution of one model, or of the members of an ensemble, and true values."""
    distribution = LaplaceMixture([m.samples for m in members], [m.scale for m in members])
    return distribution, members[0].targets
