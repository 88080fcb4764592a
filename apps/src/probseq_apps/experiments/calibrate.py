"""`probseq calibrate`: models of other libraries made honest, and what each way is worth."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

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
from probseq_apps.data.sets import load_data
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import load_groups, save_groups
from probseq_apps.experiment import Job, Results, RunFolder
from probseq_apps.experiment_classes import Experiment
from probseq_apps.experiments.classify import make_test_sets
from probseq_apps.experiments.comparison import WITHOUT, Loaded
from probseq_apps.experiments.pretrained import Pretrained, open_model, tokenizer_of, weights_hash
from probseq_apps.options import Options
from probseq_apps.report.calibrate import Calibration, calibrate_report
from probseq_apps.settings.calibrate import parse_calibration
from sgpa import Calibrated, calibrate
from sgpa.calibration import check_attention

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
# Rows that need nothing of a model but what goes into its last layer.
_HEADS = ("kflla", "probe", "heads")
# What a model may lack that a variant needs.
_LACKS = {
    "mcd": "a model has no dropout that changes what it predicts",
    **dict.fromkeys(_HEADS, "the logits of a model do not come from a linear layer"),
    **dict.fromkeys(
        ("deviation", "deviation+ts", "tuned", "tuned+ts"),
        "the attention of a model is none that can have a deviation",
    ),
}
# Logits (samples, inputs, classes) of a prepared batch, of one variant or several.
Predict = Callable[[Any], Sequence[Tensor]]


class Calibrate(Experiment[Loaded[Any]]):
    """Ways to calibrate one or several models of one data set; a job is a model."""

    kind = command = "calibrate"
    parts = ("model-seed*",)

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.jobs = [Job("model", number) for number in range(len(settings.model))]
        # What predictions are stored of; a temperature may go with another deviation.
        self.variants = list(dict.fromkeys(map(_variant_of, settings.method)))
        self.device = torch.device("cpu")

    def load(self, options: Options) -> Loaded:
        """Read the data, and that out of distribution; note which weights are calibrated."""
        settings, fit = self.settings, self.settings.fit
        self.device = distributed.resolve_device(fit.device)
        self.config["weights"] = [weights_hash(name) for name in settings.model]
        given: dict[str, Any] = {**settings.reading.to_dict(), "max_length": None}
        if data_kind(settings.data) == "text":
            given["max_length"] = settings.max_length
            given["tokenizer"] = str(tokenizer_of(settings.model[0]))
        where: Any = {"data_dir": options.data_dir, "download": options.download}
        data = load_data(settings.data, **where, **given)
        if len(data.validation) < 2:
            raise ValueError(f"calibration needs validation data, and {data.name!r} has none")
        validation = _drawn(data.validation, fit.validation_size)
        if fit.validation_corruptions:
            changed = half_corrupted(validation.inputs, fit.validation_corruptions)
            validation = replace(validation, inputs=changed)
        data = replace(data, test=_drawn(data.test, fit.test_size), validation=validation)
        sets = make_test_sets(data, settings.evaluation, options)
        sets = {name: part for name, part in sets.items() if name != WITHOUT}
        return Loaded(data, sets, data)

    def check(self, data: Loaded) -> None:
        """Raise if a model cannot be read or calibrated, or does not take the data."""
        whole = data.data
        for name in self.settings.model:
            found = self._open(name, whole)
            if all(variant in _CANDIDATES and variant[:5] != "model" for variant in self.variants):
                check_attention(found.model, self.settings.fit.layers)
            some = whole.test.inputs[:2].to(self.device)
            with torch.no_grad():
                logits = _logits(found.model, found.prepare(some))
            if logits.shape != (len(some), whole.num_classes):
                raise ValueError(
                    f"model {name!r} must tell {whole.num_classes} classes of {whole.name!r} "
                    f"apart, and gives outputs of shape {tuple(logits.shape)} for {len(some)}"
                )

    def describe(self, data: Loaded) -> str:
        """Return the sizes of the data, and what is compared."""
        whole, count = data.data, len(self.jobs)
        sizes = f"{len(whole.validation):,} validation, {len(whole.test):,} test examples"
        models = f"{count} model{'' if count == 1 else 's'}"
        return f"{whole.name}: {sizes}; {models}, {len(self.settings.method)} methods"

    def run(self, job: Job, data: Loaded, at: RunFolder) -> Mapping[str, Any]:
        """Fit everything for one model, and store what it then predicts."""
        folder, start = at.path / job.name, perf_counter()
        folder.mkdir(exist_ok=True)
        found = self._open(self.settings.model[job.seed], data.data)
        calibrated = self._calibrated(found, data.data, derive_seed(job.seed, "calibrate"))
        calibrated.save(folder / CALIBRATED)
        chosen = calibrated.chosen
        candidates = {
            row: dict(zip(("deviation", "temperature", "nll"), own[:3], strict=True))
            for row, name in _CANDIDATES.items()
            if (own := calibrated.candidates.get(name))
        }
        missing, heads = list[str](), [name for name in _HEADS if name in self.variants]
        for variant in (name for name in self.variants if name not in heads):
            some = data.data.validation.inputs[: self.settings.fit.batch_size].to(self.device)
            predict = self._predict(variant, calibrated, found, found.prepare(some))
            if predict is None:
                missing.append(variant)
            else:
                seed = derive_seed(job.seed, variant)
                self._store(folder, [variant], predict, found.prepare, data, seed)
        calibrated.use(_CANDIDATES["model"])
        if heads:
            try:
                layer, _ = last_linear(found.model, self._batches(found, data.data.validation))
            except ValueError:
                missing += heads
            else:
                seed = derive_seed(job.seed, "heads")
                predict, losses = self._fit_heads(heads, found, layer, data.data, seed)
                self._store(folder, heads, predict, found.prepare, data, 0)
                candidates |= {name: {"nll": value} for name, value in losses.items()}
        kept = next(row for row, name in _CANDIDATES.items() if name == chosen)
        seconds = round(perf_counter() - start, 3)
        return {"seconds": seconds, "candidates": candidates, "kept": kept, "missing": missing}

    def report(self, data: Loaded, results: Results, at: RunFolder) -> str:
        """Evaluate the stored predictions and write the report."""
        whole, found = data.data, [results[job] for job in self.jobs]
        missing = {name for own in found for name in own["missing"]}
        kept = [*_SAVED, *(f"{name}.npz" for name in self.variants if name not in missing)]
        for job in self.jobs:
            if not all((at.path / job.name / name).exists() for name in kept):
                self.run(job, data, at)  # deleted: made anew
        measured: dict[str, Calibration] = {}
        for name in self.settings.method:
            row, variant = parse_calibration(name), _variant_of(name)
            if variant in missing:
                continue
            files = [at.path / job.name / f"{variant}.npz" for job in self.jobs]
            runs = [
                {key: Predictions(**fields) for key, fields in load_groups(file).items()}
                for file in files
            ]
            if "ensemble" in row.additions:
                runs = [{key: ensemble([sets[key] for sets in runs]) for key in runs[0]}]
            tempered, temperatures = "ts" in row.additions, list[float]()
            known = [sets["validation"] for sets in runs]
            losses = [held_out_nll(p.log_probs, p.labels, tempered=tempered) for p in known]
            if name in found[0]["candidates"]:
                losses = [own["candidates"][name]["nll"] for own in found]
            if tempered:
                temperatures = [search_temperature(own.log_probs, own.labels) for own in known]
                pairs = zip(runs, temperatures, strict=True)
                runs = [{key: own.scaled(t) for key, own in sets.items()} for sets, t in pairs]
            metrics = [evaluate_sets(sets, CORRUPTION_GROUPS) for sets in runs]
            drawn = row.base in ("deviation", "tuned")
            sigmas = [own["candidates"][variant]["deviation"] for own in found] if drawn else []
            measured[name] = Calibration(row.title, metrics, runs, losses, temperatures, sigmas)
        notes = list(whole.notes)
        notes += [f"left out, since {_LACKS[name]}: {name}" for name in sorted(missing)]
        if not measured:
            raise DataError(f"method must have one that the models can take: {'; '.join(notes)}")
        facts = {"name": whole.name, "classes": whole.num_classes, "notes": notes}
        facts |= {part: len(getattr(whole, part)) for part in ("train", "validation", "test")}
        seeds = [job.seed for job in self.jobs]
        report = calibrate_report(
            measured,
            [(f"{job.name}/{CALIBRATED}", results[job]["kept"]) for job in self.jobs],
            settings={**self.settings.to_dict(), "seeds": seeds},
            data=facts,
            recipe=at.recipe,
        )
        return report.write(at.path)

    def _open(self, name: str, data: Any) -> Pretrained:
        own_scale = self.settings.normalise == "model"
        found = open_model(name, self.settings.arguments, data, own_scale=own_scale)
        return found._replace(model=found.model.to(self.device))

    def _batches(self, found: Pretrained, part: Part) -> Iterator[tuple[Any, Tensor]]:
        size = self.settings.fit.batch_size
        for inputs, labels in zip(part.inputs.split(size), part.targets.split(size), strict=True):
            yield found.prepare(inputs.to(self.device)), labels.to(self.device)

    def _calibrated(self, found: Pretrained, data: Any, seed: int) -> Calibrated:
        """Choose deviation and temperature."""
        fit = self.settings.fit
        tuned = any(name.startswith("tuned") for name in self.variants)
        some = _drawn(data.train, max(2 * fit.batch_size, _CALIBRATION)).inputs
        more: dict[str, Any] = {"tuning_steps": fit.tuning_steps if tuned else 0}
        if not self._deviates(found.model):
            more = {"tried": (0.0,)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BoundWarning)  # the report marks them
            return calibrate(
                found.model,
                found.prepare(some.to(self.device)),
                self._batches(found, data.validation),
                layers=fit.layers,
                num_inducing=fit.num_inducing,
                rho=fit.rho,
                num_samples=self.settings.evaluation.num_samples,
                seed=seed,
                **more,
            )

    def _deviates(self, model: nn.Module) -> bool:
        """Whether a model's attention, as it was trained, can have a deviation."""
        try:
            check_attention(model, self.settings.fit.layers)
        except ValueError:
            return False
        return True

    def _predict(
        self, variant: str, calibrated: Calibrated, found: Pretrained, some: Any
    ) -> Predict | None:
        """Return how a variant predicts that is no head; None where the model lacks what it needs.

        The model has the variant's deviation then. On some inputs two draws of dropout must differ.
        """
        model, samples = found.model, self.settings.evaluation.num_samples
        if variant == "mcd":
            calibrated.use(_CANDIDATES["model"])
            with torch.random.fork_rng(), torch.no_grad():
                if torch.equal(*_dropped_out(model, some, 2)):
                    return None
            return lambda inputs: [_dropped_out(model, inputs, samples)]
        name = _CANDIDATES[variant]
        if variant != "model" and not self._deviates(model):
            return None
        calibrated.use(name)
        if not calibrated.candidates[name].state:
            return lambda inputs: [_logits(model, inputs)[None]]
        generator = torch.Generator(self.device).manual_seed(0)
        given: dict[str, Any] = {"num_samples": samples, "generator": generator}

        def draw(own: nn.Module, *inputs: Any, **named: Any) -> Any:
            return sample_predictions(own, *inputs, **named, **given)

        return lambda inputs: [_logits(model, inputs, draw)]

    def _fit_heads(
        self, names: Sequence[str], found: Pretrained, layer: str, data: Any, seed: int
    ) -> tuple[Predict, dict[str, float]]:
        """Fit heads on what goes into a layer; return how they predict, and their losses."""
        model, losses, heads = found.model, dict[str, float](), list[Head]()
        some = _drawn(data.train, self.settings.fit.head_size)
        (known, labels), (held, truth) = (
            map(torch.cat, zip(*last_linear(model, self._batches(found, part))[1], strict=True))
            for part in (some, data.validation)
        )
        given: Any = (known, labels, data.num_classes)
        linear: Any = model.get_submodule(layer)
        for name in names:
            candidates: Iterable[Head] = {
                "kflla": lambda: map(_one_sample, laplace_layers(linear, [(known, labels)])),
                "probe": lambda: linear_probes(*given),
                "heads": lambda: mlp_heads(*given, seed=seed),
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
        self,
        folder: Path,
        names: Sequence[str],
        predict: Predict,
        prepare: Callable[..., Any],
        data: Loaded,
        seed: int,
    ) -> None:
        """Predict all sets into a file for each variant, unless all are there."""
        files = [folder / f"{name}.npz" for name in names]
        if all(file.exists() for file in files):
            return
        stored = [dict[str, dict[str, Tensor]]() for _ in names]
        with log.bar(total=None, unit=" inputs") as bar, torch.random.fork_rng():
            torch.manual_seed(seed)  # dropout
            for name, given in data.sets.items():
                part = given if isinstance(given, Part) else given()
                bar.set_description_str(f"{', '.join(names)}: {name}")
                batches: list[list[tuple[Tensor, ...]]] = [[] for _ in names]
                for inputs in part.inputs.split(self.settings.fit.batch_size):
                    logits = predict(prepare(inputs.to(self.device)))
                    for own, rows in zip(batches, logits, strict=True):
                        own.append(tuple(one.cpu() for one in class_predictions(rows)))
                    bar.update(len(inputs))
                for own, sets in zip(batches, stored, strict=True):
                    log_probs, energy = map(torch.cat, zip(*own, strict=True))
                    sets[name] = Predictions(log_probs, energy, part.targets.cpu())._asdict()
        for file, sets in zip(files, stored, strict=True):
            save_groups(file, sets)


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
    call = call or (lambda own, *given, **named: own(*given, **named))
    found = call(model, **inputs) if isinstance(inputs, Mapping) else call(model, inputs)
    if isinstance(found, Tensor):
        return found
    return found["logits"] if isinstance(found, Mapping) else found.logits


def _dropped_out(model: nn.Module, inputs: Any, samples: int) -> Tensor:
    if isinstance(inputs, Mapping):
        inputs = {name: repeat_samples(value, samples) for name, value in inputs.items()}
    else:
        inputs = repeat_samples(inputs, samples)
    with active_dropout(model):
        return _logits(model, inputs).unflatten(0, (samples, -1))
