"""`probseq calibrate`: calibrate models of other libraries, and what each way is worth."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from probseq.corruptions import half_corrupted
from probseq.errors import BoundWarning
from probseq.laplace import laplace_layers, last_linear, linear_inputs
from probseq.metrics import (
    Predictions,
    class_predictions,
    ensemble,
    evaluate_sets,
    held_out_nll,
)
from probseq.metrics.post_hoc import search_temperature
from probseq.transformers import active_dropout, repeat_samples, sample_predictions
from probseq_apps.baselines.heads import Head, choose_head, linear_probes, mlp_heads
from probseq_apps.data.names import CORRUPTION_GROUPS, DataError, data_kind
from probseq_apps.data.parts import Part, permutation
from probseq_apps.data.sets import ClassData, load_data, with_labels
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import load_groups, save_groups
from probseq_apps.experiment import Job, Results, RunFolder, Workflow
from probseq_apps.experiments.classify import make_test_sets
from probseq_apps.experiments.comparison import WITHOUT_ATTENTION, TestSet
from probseq_apps.experiments.pretrained import Pretrained, open_model, tokenizer_of, weights_hash
from probseq_apps.options import Options
from probseq_apps.report.calibrate import Calibration, calibrate_report
from probseq_apps.settings.calibrate import CalibrateSettings, parse_calibration
from sgpa import Calibrated, calibrate
from sgpa.beyond.calibration import check_attention

CALIBRATED = "calibrated"
_SAVED = (f"{CALIBRATED}/calibration.json", f"{CALIBRATED}/deviation.npz")
# Training inputs at least, on whose queries the inducing inputs are put.
_CALIBRATION = 64
# Rows that `sgpa.calibrate` measures, and its names of them.
_CANDIDATES = {
    "model": "as it is",
    "model+ts": "temperature",
    "deviation": "deviation",
    "deviation+ts": "deviation and temperature",
    "tuned": "tuned deviation",
    "tuned+ts": "tuned deviation and temperature",
}
# Rows that need nothing of a model but what goes into its last layer; those that train a head.
_HEADS, _NEW_HEADS = ("kflla", "probe", "heads"), ("probe", "heads")
# What a model may lack that a variant needs.
_NO_HEAD = "a model has no trained head"
_NO_LINEAR_LAYER = "the logits of a model do not come from a linear layer"
_LACKS = {
    "mcd": "a model has no dropout that changes what it predicts",
    **dict.fromkeys(
        ("deviation", "deviation+ts", "tuned", "tuned+ts"),
        "the attention of a model is none that can have a deviation",
    ),
}
# Logits (samples, inputs, classes) of a prepared batch, of one variant or several.
Predict = Callable[[Any], Sequence[Tensor]]


class Candidates(NamedTuple):
    """Data, the sets to predict, and the hashes of the weights that are calibrated."""

    data: ClassData
    sets: dict[str, TestSet]
    weights: list[str]


def jobs(settings: CalibrateSettings) -> list[Job]:
    """Return a job for each model."""
    return [Job("model", number) for number in range(len(settings.model))]


def load(settings: CalibrateSettings, options: Options) -> Candidates:
    """Read the data, and that out of distribution; note which weights are calibrated."""
    fit = settings.fit
    distributed.resolve_device(fit.device)
    weights = [weights_hash(name) for name in settings.model]
    reading, length = settings.reading, None
    if data_kind(settings.data) == "text":
        reading = replace(reading, tokenizer=str(tokenizer_of(settings.model[0])))
        length = settings.max_length
    where: Any = {"data_dir": options.data_dir, "download": options.download}
    data = load_data(settings.data, reading, max_length=length, **where)
    data = with_labels(data, reading.train_size, reading.label_noise)
    if len(data.validation) < 2:
        raise ValueError(f"calibration needs validation data, and {data.name!r} has none")
    validation = _drawn(data.validation, fit.validation_size)
    if fit.validation_corruptions:
        changed = half_corrupted(validation.inputs, fit.validation_corruptions)
        validation = replace(validation, inputs=changed)
    data = replace(data, test=_drawn(data.test, fit.test_size), validation=validation)
    sets = make_test_sets(data, settings.evaluation, options)
    return Candidates(
        data, {n: part for n, part in sets.items() if n != WITHOUT_ATTENTION}, weights
    )


def config(settings: CalibrateSettings, loaded: Candidates) -> dict[str, Any]:
    """Return settings, and the hashes of the weights."""
    return {"settings": settings.to_dict(), "weights": loaded.weights}


def check(settings: CalibrateSettings, loaded: Candidates) -> None:
    """Raise if a model cannot be read or calibrated, or does not take the data."""
    data, variants = loaded.data, variants_of(settings)
    for name in settings.model:
        opened = _open(settings, name, data)
        if not opened.has_head and not set(variants) & set(_NEW_HEADS):
            raise ValueError(
                f"model {name!r} has no trained head: method must have probe or heads, got "
                f"{', '.join(settings.method)}"
            )
        if all(variant in _CANDIDATES and variant[:5] != "model" for variant in variants):
            check_attention(opened.model, settings.fit.layers)
        some = data.test.inputs[:2].to(_device(settings))
        with torch.no_grad():
            logits = _logits(opened.model, opened.prepare(some))
        if logits.shape != (len(some), data.num_classes):
            raise ValueError(
                f"model {name!r} must tell {data.num_classes} classes of {data.name!r} "
                f"apart, and gives outputs of shape {tuple(logits.shape)} for {len(some)}"
            )


def describe(settings: CalibrateSettings, loaded: Candidates) -> str:
    """Return the sizes of the data, and what is compared."""
    data, count = loaded.data, len(settings.model)
    sizes = f"{len(data.validation):,} validation, {len(data.test):,} test examples"
    models = f"{count} model{'' if count == 1 else 's'}"
    return f"{data.name}: {sizes}; {models}, {len(settings.method)} methods"


def calibrate_model(
    settings: CalibrateSettings, loaded: Candidates, job: Job, at: RunFolder
) -> dict[str, Any]:
    """Fit everything for one model, and store what it then predicts."""
    folder, start, data = at.path / job.name, perf_counter(), loaded.data
    folder.mkdir(exist_ok=True)
    opened = _open(settings, settings.model[job.seed], data)
    variants = variants_of(settings)
    candidates, missing, chosen = dict[str, dict[str, float]](), dict[str, str](), None
    if opened.has_head:
        candidates, missing, chosen = _fit_variants(settings, opened, loaded, job, folder)
    else:
        missing = {name: _NO_HEAD for name in variants if name not in _NEW_HEADS}
    if heads := [name for name in _HEADS if name in variants and name not in missing]:
        try:
            layer, _ = last_linear(opened.model, _batches(settings, opened, data.validation))
        except ValueError:
            missing |= dict.fromkeys(heads, _NO_LINEAR_LAYER)
        else:
            seed = derive_seed(job.seed, "heads")
            predict, losses = _fit_heads(settings, heads, opened, layer, data, seed)
            _store(settings, folder, heads, predict, opened.prepare, loaded.sets, 0)
            candidates |= {name: {"nll": value} for name, value in losses.items()}
    seconds = round(perf_counter() - start, 3)
    return {"seconds": seconds, "candidates": candidates, "kept": chosen, "missing": missing}


def report(settings: CalibrateSettings, loaded: Candidates, results: Results, at: RunFolder) -> str:
    """Evaluate the stored predictions and write the report."""
    data, all_jobs = loaded.data, jobs(settings)
    outcomes = [results[job] for job in all_jobs]
    missing: dict[str, str] = {}
    for outcome in outcomes:
        missing |= outcome["missing"]
    variants = [name for name in variants_of(settings) if name not in missing]
    for job in all_jobs:
        files = [f"{name}.npz" for name in variants]
        files += _SAVED if results[job]["kept"] else ()
        if not all((at.path / job.name / name).exists() for name in files):
            calibrate_model(settings, loaded, job, at)  # deleted: made anew
    measured = {
        name: _measure(name, [at.path / job.name for job in all_jobs], outcomes)
        for name in settings.method
        if _variant_of(name) not in missing
    }
    notes = list(data.notes)
    notes += [f"left out, since {lack}: {name}" for name, lack in sorted(missing.items())]
    if not measured:
        raise DataError(f"method must have one that the models can take: {'; '.join(notes)}")
    facts = {"name": data.name, "classes": data.num_classes, "notes": notes}
    facts |= {part: len(getattr(data, part)) for part in ("train", "validation", "test")}
    seeds = [job.seed for job in all_jobs]
    return calibrate_report(
        measured,
        [(f"{job.name}/{CALIBRATED}", row) for job in all_jobs if (row := results[job]["kept"])],
        settings={**settings.to_dict(), "seeds": seeds},
        data=facts,
        recipe=at.recipe,
    ).write(at.path)


WORKFLOW = Workflow(
    kind="calibrate",
    command="calibrate",
    one_process="what it trains is few numbers; --workers does several models at a time",
    folders=("model-seed*",),
    jobs=jobs,
    load=load,
    config=config,
    check=check,
    describe=describe,
    run=calibrate_model,
    report=report,
)


def _fit_variants(
    settings: CalibrateSettings, opened: Pretrained, loaded: Candidates, job: Job, folder: Path
) -> tuple[dict[str, dict[str, float]], dict[str, str], str]:
    """Choose deviation and temperature, and store what the model predicts with each.

    Returns:
        The candidates by row, why rows are left out, and the row that is the best.
    """
    data = loaded.data
    calibrated = _calibrated(settings, opened, data, derive_seed(job.seed, "calibrate"))
    calibrated.save(folder / CALIBRATED)
    chosen = next(row for row, name in _CANDIDATES.items() if name == calibrated.chosen)
    candidates: dict[str, dict[str, float]] = {
        row: dict(zip(("deviation", "temperature", "nll"), candidate[:3], strict=True))
        for row, name in _CANDIDATES.items()
        if (candidate := calibrated.candidates.get(name))
    }
    missing: dict[str, str] = {}
    for variant in (name for name in variants_of(settings) if name not in _HEADS):
        some = data.validation.inputs[: settings.fit.batch_size].to(_device(settings))
        predict = _predict(settings, variant, calibrated, opened, opened.prepare(some))
        if predict is None:
            missing[variant] = _LACKS[variant]
        else:
            seed = derive_seed(job.seed, variant)
            _store(settings, folder, [variant], predict, opened.prepare, loaded.sets, seed)
    calibrated.use(_CANDIDATES["model"])
    return candidates, missing, chosen


def variants_of(settings: CalibrateSettings) -> list[str]:
    """Return what predictions are stored of; a temperature may go with another deviation."""
    return list(dict.fromkeys(map(_variant_of, settings.method)))


def _measure(
    name: str, folders: Sequence[Path], outcomes: Sequence[Mapping[str, Any]]
) -> Calibration:
    """Measure a row of the report by the stored predictions of all models."""
    row, variant = parse_calibration(name), _variant_of(name)
    runs = [
        {key: Predictions(**fields) for key, fields in load_groups(file).items()}
        for file in (folder / f"{variant}.npz" for folder in folders)
    ]
    if "ensemble" in row.additions:
        runs = [{key: ensemble([sets[key] for sets in runs]) for key in runs[0]}]
    tempered, temperatures = "ts" in row.additions, list[float]()
    known = [sets["validation"] for sets in runs]
    losses = [held_out_nll(p.log_probs, p.labels, tempered=tempered) for p in known]
    if name in outcomes[0]["candidates"]:
        losses = [outcome["candidates"][name]["nll"] for outcome in outcomes]
    if tempered:
        temperatures = [search_temperature(p.log_probs, p.labels) for p in known]
        pairs = zip(runs, temperatures, strict=True)
        runs = [{key: p.scaled(t) for key, p in sets.items()} for sets, t in pairs]
    metrics = [evaluate_sets(sets, CORRUPTION_GROUPS) for sets in runs]
    sigmas: list[float] = []
    if row.base in ("deviation", "tuned"):
        sigmas = [outcome["candidates"][variant]["deviation"] for outcome in outcomes]
    return Calibration(row.title, metrics, runs, losses, temperatures, sigmas)


def _device(settings: CalibrateSettings) -> torch.device:
    return distributed.resolve_device(settings.fit.device)


def _open(settings: CalibrateSettings, name: str, data: ClassData) -> Pretrained:
    bundled = settings.normalise == "model"
    opened = open_model(name, settings.arguments, data, bundled_scale=bundled)
    return opened._replace(model=opened.model.to(_device(settings)))


def _batches(
    settings: CalibrateSettings, opened: Pretrained, part: Part
) -> Iterator[tuple[Any, Tensor]]:
    size, device = settings.fit.batch_size, _device(settings)
    for inputs, labels in zip(part.inputs.split(size), part.targets.split(size), strict=True):
        yield opened.prepare(inputs.to(device)), labels.to(device)


def _calibrated(
    settings: CalibrateSettings, opened: Pretrained, data: ClassData, seed: int
) -> Calibrated:
    """Choose deviation and temperature."""
    fit = settings.fit
    tuned = any(name.startswith("tuned") for name in variants_of(settings))
    some = _drawn(data.train, max(2 * fit.batch_size, _CALIBRATION)).inputs
    more: dict[str, Any] = {"tuning_steps": fit.tuning_steps if tuned else 0}
    if not _deviates(settings, opened.model):
        more = {"deviations": (0.0,)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BoundWarning)  # the report marks them
        return calibrate(
            opened.model,
            opened.prepare(some.to(_device(settings))),
            _batches(settings, opened, data.validation),
            layers=fit.layers,
            num_inducing=fit.num_inducing,
            rho=fit.rho,
            num_samples=settings.evaluation.num_samples,
            seed=seed,
            **more,
        )


def _deviates(settings: CalibrateSettings, model: nn.Module) -> bool:
    """Whether a model's attention, as it was trained, can have a deviation."""
    try:
        check_attention(model, settings.fit.layers)
    except ValueError:
        return False
    return True


def _predict(
    settings: CalibrateSettings, variant: str, calibrated: Calibrated, opened: Pretrained, some: Any
) -> Predict | None:
    """Return how a variant predicts that is no head; None where the model lacks what it needs.

    The model has the variant's deviation then. On some inputs two draws of dropout must differ.
    """
    model, samples = opened.model, settings.evaluation.num_samples
    if variant == "mcd":
        calibrated.use(_CANDIDATES["model"])
        with torch.random.fork_rng(), torch.no_grad():
            dropping = active_dropout(model)
            if torch.equal(*_dropped_out(dropping, some, 2)):
                return None
        return lambda inputs: [_dropped_out(dropping, inputs, samples)]
    name = _CANDIDATES[variant]
    if variant != "model" and not _deviates(settings, model):
        return None
    calibrated.use(name)
    if not calibrated.candidates[name].state:
        return lambda inputs: [_logits(model, inputs)[None]]
    generator = torch.Generator(_device(settings)).manual_seed(0)
    draws: dict[str, Any] = {"num_samples": samples, "generator": generator}

    def draw(network: nn.Module, *inputs: Any, **named: Any) -> Any:
        return sample_predictions(network, *inputs, **named, **draws)

    return lambda inputs: [_logits(model, inputs, draw)]


def _fit_heads(
    settings: CalibrateSettings,
    names: Sequence[str],
    opened: Pretrained,
    layer: str,
    data: ClassData,
    seed: int,
) -> tuple[Predict, dict[str, float]]:
    """Fit heads on what goes into a layer; return how they predict, and their losses."""
    model, losses, heads = opened.model, dict[str, float](), list[Head]()
    some = _drawn(data.train, settings.fit.head_size)
    (known, labels), (held, truth) = (
        map(torch.cat, zip(*last_linear(model, batches)[1], strict=True))
        for batches in (_batches(settings, opened, part) for part in (some, data.validation))
    )
    examples: Any = (known, labels, data.num_classes)
    linear: Any = model.get_submodule(layer)
    for name in names:
        candidates: Iterable[Head] = {
            "kflla": lambda: map(_one_sample, laplace_layers(linear, [(known, labels)])),
            "probe": lambda: linear_probes(*examples),
            "heads": lambda: mlp_heads(*examples, seed=seed),
        }[name]()
        choice = choose_head(candidates, held, truth)
        heads.append(choice.head)
        losses |= {name: choice.nll, f"{name}+ts": choice.tempered_nll}

    def predict(inputs: Any) -> list[Tensor]:
        features = linear_inputs(model, layer, inputs)
        return [head(features) for head in heads]

    return predict, losses


@torch.no_grad()
def _store(
    settings: CalibrateSettings,
    folder: Path,
    names: Sequence[str],
    predict: Predict,
    prepare: Callable[..., Any],
    sets: Mapping[str, TestSet],
    seed: int,
) -> None:
    """Predict all sets into a file for each variant, unless all are there."""
    files, device = [folder / f"{name}.npz" for name in names], _device(settings)
    if all(file.exists() for file in files):
        return
    stored = [dict[str, dict[str, Tensor]]() for _ in names]
    with log.bar(total=None, unit=" inputs") as bar, torch.random.fork_rng():
        torch.manual_seed(seed)  # dropout
        for name, test_set in sets.items():
            part = test_set if isinstance(test_set, Part) else test_set()
            bar.set_description_str(f"{', '.join(names)}: {name}")
            batches: list[list[tuple[Tensor, ...]]] = [[] for _ in names]
            for inputs in part.inputs.split(settings.fit.batch_size):
                logits = predict(prepare(inputs.to(device)))
                for rows, samples in zip(batches, logits, strict=True):
                    rows.append(tuple(one.cpu() for one in class_predictions(samples)))
                bar.update(len(inputs))
            for rows, of_variant in zip(batches, stored, strict=True):
                log_probs, energy = map(torch.cat, zip(*rows, strict=True))
                of_variant[name] = Predictions(log_probs, energy, part.targets.cpu())._asdict()
    for file, of_variant in zip(files, stored, strict=True):
        save_groups(file, of_variant)


def _one_sample(head: Callable[[Tensor], Tensor]) -> Head:
    return lambda features: head(features)[None]


def _variant_of(name: str) -> str:
    """Return what a row's predictions are stored as, before any temperature."""
    row = parse_calibration(name)
    joint = row.base in ("deviation", "tuned") and "ts" in row.additions
    return f"{row.base}+ts" if joint else row.base


def _drawn(part: Part, size: int | None) -> Part:
    """Return rows drawn at random, in their order, the same in each run; None: all of them."""
    return part if size is None else part.rows(permutation(len(part))[:size].sort().values)


def _logits(model: nn.Module, inputs: Any, call: Callable[..., Any] | None = None) -> Tensor:
    call = call or (lambda network, *arguments, **named: network(*arguments, **named))
    output = call(model, **inputs) if isinstance(inputs, Mapping) else call(model, inputs)
    if isinstance(output, Tensor):
        return output
    return output["logits"] if isinstance(output, Mapping) else output.logits


def _dropped_out(model: nn.Module, inputs: Any, samples: int) -> Tensor:
    if isinstance(inputs, Mapping):
        inputs = {name: repeat_samples(value, samples) for name, value in inputs.items()}
    else:
        inputs = repeat_samples(inputs, samples)
    return _logits(model, inputs).unflatten(0, (samples, -1))
