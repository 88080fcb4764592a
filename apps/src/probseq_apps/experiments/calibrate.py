"""`probseq calibrate`: which predictions of a classifier can be trusted."""

import json
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import transforms
from torchvision.models import get_model

from probseq.batches import output_kind
from probseq.calibrated import FILE, Calibrated, describe, in_words, shorten
from probseq.calibration import calibrate
from probseq.errors import require
from probseq.metrics import calibration_bins, evaluate
from probseq.metrics.plots import reliability_diagram
from probseq_apps.data.image_folders import list_classes
from probseq_apps.data.names import DataError, reading
from probseq_apps.data.pictures import as_displayed
from probseq_apps.data.tables import Marks, csv_header, read_rows
from probseq_apps.report.report import Report
from probseq_apps.report.tables import Table
from probseq_apps.settings.calibrate import CalibrateSettings

_OUTPUTS = ("logits", "probabilities", "probs")
_LABELS = "label", "labels"
# Steps of an image processor of transformers, and the values that they take.
_STEPS = {
    "do_resize": ("size", "resample"),
    "do_center_crop": ("crop_size",),
    "do_rescale": ("rescale_factor",),
    "do_normalize": ("image_mean", "image_std"),
}


class Examples(NamedTuple):
    """Inputs, or a model's outputs, and labels."""

    inputs: Any  # texts, paths of images, or outputs as an array
    labels: list[str]  # as they stand in the data
    classes: tuple[str, ...]  # in the order of the outputs where the file has it, else sorted
    unused: str = ""  # what was left out of a folder


class Opened(NamedTuple):
    """A model with what it says of itself."""

    model: Any
    prepare: Callable[[list[Any]], Any]  # of a batch of pictures or texts
    preparation: str  # in words; "" where nothing says it
    classes: tuple[str, ...] = ()


def calibrate_command(settings: CalibrateSettings) -> None:
    """Calibrate a model or its stored outputs, print the decision and write the report."""
    source = settings.logits or settings.data
    assert source is not None
    read = read_outputs if settings.logits else read_examples
    examples = read(source, settings.separator)
    images = settings.logits is None and source.is_dir()
    table = source.suffix != ".npz" and not source.is_dir()
    for name, read_by in (("mean", images), ("max_length", not images), ("separator", table)):
        if not read_by and getattr(settings, name) != getattr(CalibrateSettings, name):
            raise DataError(f"{name} must be left out: it does not change how {source} is read")
    opened = [open_model(name, examples, settings) for name in settings.model]
    lines = [f"{n}: {each.preparation}" for n, each in zip(settings.model, opened, strict=True)]
    classes, order = class_order(settings, examples, opened)
    if any(each[2:4] != opened[0][2:4] for each in opened):
        raise DataError("models must be of the same classes and preparation to be one ensemble")
    count = f"{source}: {len(examples.labels):,} held-out examples{examples.unused}"
    lines = [count, *lines, order]
    numbers, changes = numbered(examples.labels, classes), Counter[str]()
    if opened:
        models: Any = [each.model for each in opened]
        held_out: Any = batches(examples, numbers, opened[0], settings.batch_size, changes)
    else:
        models, held_out = torch.as_tensor(examples.inputs), numbers
    output = int(settings.output) if settings.output.isdigit() else settings.output or None
    calibrated = calibrate(
        models,
        held_out,
        error_rate=settings.error_rate,
        coverage=settings.coverage,
        level=settings.level,
        classes=classes,
        output=output,
        structure="kronecker" if settings.laplace else None,
        seed=settings.seed,
    )
    lines += [f"{count} images {change}" for change, count in changes.items()]
    folder = settings.output_dir
    calibrated.save(folder)
    measured = _test(settings, calibrated, classes, opened, examples)
    argument = ("", ", model", ", *models")[min(len(calibrated.models), 2)]
    argument += "" if output is None else f", output={output!r}"
    served = f'calibrated = probseq.load_calibrated("{folder}"{argument})'
    text = [*lines, "", *describe(calibrated.facts), *measured.lines, "", served]
    page = _report(settings, calibrated, text, measured).write(folder)
    print("\n".join([*text, page.rpartition("\n")[2]]))


def read_outputs(path: Path, separator: str) -> Examples:
    """Read stored outputs and labels, of an .npz or of a CSV with a column a class."""
    if path.suffix == ".npz":
        with reading(path, "an .npz of outputs and labels"):
            try:
                with np.load(path) as file:
                    arrays = {name: file[name] for name in file.files}
            except (ValueError, EOFError, zipfile.BadZipFile) as error:  # numpy would unpickle
                raise DataError(
                    f"{path} is damaged, or holds Python's objects in place of numbers and plain "
                    "text: save numpy.array(labels, dtype=str)"
                ) from error
        name = next((each for each in _OUTPUTS if each in arrays), None)
        if name is None or "labels" not in arrays:
            raise DataError(f"{path} must hold logits and labels, and has {', '.join(arrays)}")
        if name != "logits" and "prob" not in output_kind(torch.as_tensor(arrays[name])):
            raise DataError(f"{path}: {name} must be rows of at least 0 that sum to 1")
        names, labels = tuple(map(str, arrays.get("classes", ()))), arrays["labels"]
        labels = labels.astype(int) if labels.dtype == bool else labels
        return Examples(arrays[name], [str(each) for each in labels.tolist()], names)
    marks = Marks(separator)
    classes = tuple(head for head in csv_header(path, marks) if head != "label")
    if "" in classes:
        raise DataError(f"{path} must name its columns, one a class, and has one without a name")
    columns = [_LABELS, *((name, "outputs, a column a class") for name in classes)]
    rows = read_rows(path, columns, lambda y, *cells: (y, [*map(float, cells)]), marks=marks)
    return Examples(np.array([cells for _, cells in rows]), [label for label, _ in rows], classes)


def read_examples(path: Path, separator: str) -> Examples:
    """List the images of a folder with a folder a class, or read a CSV of texts."""
    if path.is_dir():
        listing, unused = list_classes(path)
        files, labels = map(list, zip(*listing, strict=True))
        return Examples(files, labels, tuple(sorted(set(labels))), f"; {unused}" if unused else "")
    columns, marks = (("text", "texts"), _LABELS), Marks(separator)
    rows = read_rows(path, columns, lambda text, label: (text, label), marks=marks)
    labels = [label for _, label in rows]
    classes = tuple(sorted(set(labels), key=_by_value))
    return Examples([text for text, _ in rows], labels, classes)


def _by_value(label: str) -> tuple[float, str]:
    try:
        return float(label), label
    except ValueError:
        return float("inf"), label


def class_order(
    settings: CalibrateSettings, examples: Examples, opened: Sequence[Opened]
) -> tuple[tuple[str, ...] | None, str]:
    """Return the classes in the order of the outputs, and a line that says where it comes from."""
    classes, source = settings.classes, "--classes"
    if not classes and opened and opened[0].classes:
        classes, source = opened[0].classes, "the model's id2label or label_names"
    elif not classes:
        source = "the file's" if settings.logits else "an alphabetical order, which is a guess"
        classes = examples.classes
    present, named = set(examples.labels), defaultdict[float, list[str]](list)
    for each in sorted(present.union(classes)):
        named[_by_value(each)[0]].append(each)
    if same := [names for value, names in named.items() if len(names) > 1 and value < float("inf")]:
        raise DataError(f"labels {' and '.join(same[0])} are equal as numbers: write them alike")
    numbers, unknown = all(each.isdigit() for each in present), sorted(present.difference(classes))
    if settings.classes and numbers and unknown:
        raise DataError("classes must name the labels, and they are numbers: leave --classes out")
    if not classes or (unknown and numbers):
        return None, "classes: the numbers of the labels are those of the outputs"
    if unknown:
        raise DataError(
            f"classes must name all labels: {', '.join(classes[:10])}, by {source}, do not have "
            f"{', '.join(unknown[:5])}; --classes names them in the order of the outputs"
        )
    return classes, f"classes, by {source}: {shorten(classes)}"


def numbered(labels: Sequence[str], classes: tuple[str, ...] | None) -> list[int]:
    """Return the numbers of labels."""
    allowed = set(classes) if classes else {each for each in labels if each.isdigit()}
    if wrong := sorted(set(labels) - allowed):
        needed = ", ".join(classes[:10]) if classes else "whole numbers, or named by --classes"
        raise DataError(f"labels must be {needed}, got {', '.join(wrong[:5])}")
    number = {name: index for index, name in enumerate(classes or ())}
    return [number[each] if classes else int(each) for each in labels]


def batches(
    examples: Examples, numbers: Sequence[int], opened: Opened, size: int, changes: Counter[str]
) -> Iterator[tuple[Any, list[int]]]:
    """Yield prepared inputs and labels; count what was done to images before."""
    for start in range(0, len(numbers), size):
        inputs: Any = examples.inputs[start : start + size]
        if isinstance(inputs[0], Path):
            inputs = [_picture(path, changes) for path in inputs]
        yield opened.prepare(inputs), list(numbers[start : start + size])


def _each(prepare: Callable[[Any], Any]) -> Callable[[list[Any]], Any]:
    """Return what prepares a batch as a function does each of it."""

    def prepare_all(inputs: list[Any]) -> Any:
        rows = [prepare(each) for each in inputs]
        return torch.stack(rows) if isinstance(rows[0], Tensor) else rows

    return prepare_all


def _picture(path: Path, changes: Counter[str]) -> Image.Image:
    with reading(path, "an image"), Image.open(path) as file:
        image, changed = as_displayed(file, "RGB")
    changes.update(changed)
    return image


def open_model(name: str, examples: Examples, settings: CalibrateSettings) -> Opened:
    """Open a model; how inputs are prepared comes from its folder, its function, or flags."""
    kind, _, tail = name.partition(":")
    folder = Path(name).expanduser()
    if folder.is_dir():
        opened = _of_folder(folder, examples, settings)
    elif kind in ("timm", "torchvision"):
        architecture, _, file = tail.partition("+")
        make = _timm().create_model if kind == "timm" else get_model
        with reading(name, f"a model of {kind}, as {kind}:NAME+FILE"):
            state = _state(Path(file).expanduser())
            # As many classes as the last bias or weight has rows.
            last = next(value for value in reversed(state.values()) if value.ndim in (1, 2))
            model = make(architecture, num_classes=len(last))
            model.load_state_dict(state)
        opened = Opened(model, list, "")
    elif tail:
        with reading(name, "a model, as MODULE:FUNCTION"):
            sys.path.insert(0, "")  # a file in this folder, as python has it
            result = getattr(import_module(kind), tail)()
        model, prepare = result if isinstance(result, tuple) else (result, None)
        words = "prepared by its own function" if prepare else ""
        opened = Opened(model, _each(prepare) if prepare else list, words)
    else:
        raise DataError(
            f"model {name!r} must be a folder, timm:NAME+FILE, torchvision:NAME+FILE or "
            "MODULE:FUNCTION"
        )
    images = isinstance(examples.inputs[0], Path)
    if images and settings.mean:
        opened = _by_flags(opened, settings)
    if not opened.preparation and images:
        raise DataError(
            f"model {name!r} must come with the preparation of its images, and nothing says it: "
            "give --mean, --std and --size as in training, or a MODULE:FUNCTION that returns it"
        )
    if not isinstance(opened.model, nn.Module):
        raise DataError(f"model {name!r} must be of torch: of others store outputs, for --logits")
    return opened._replace(preparation=opened.preparation or "texts as they are")


def _of_folder(folder: Path, examples: Examples, settings: CalibrateSettings) -> Opened:
    with reading(folder / "config.json", "the configuration of a model"):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "architecture" in config:
        timm = _timm()
        with reading(folder, "a model of timm"):
            model = timm.create_model(f"local-dir:{folder}", pretrained=True)
        stored = config.get("pretrained_cfg", {})
        names = tuple(config.get("label_names") or stored.get("label_names") or ())
        if not {"mean", "std", "input_size"} <= stored.keys():
            return Opened(model, list, "", names)  # timm would guess
        values = timm.data.resolve_model_data_config(model)
        keys = ("input_size", "mean", "std", "crop_pct", "interpolation")
        words = f"images by its pretrained_cfg: RGB from 0 to 1, {_in_words(values, keys)}"
        return Opened(model, _each(timm.data.create_transform(**values)), words, names)
    library = require("transformers", extra="pretrained", distribution="probseq-apps")
    images = isinstance(examples.inputs[0], Path)
    auto = getattr(library, f"AutoModelFor{'Image' if images else 'Sequence'}Classification")
    with reading(folder, "a model of transformers"):
        model, info = auto.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise DataError(f"{folder} must hold a trained classifier, and lacks {missing}")
    if (problem := model.config.problem_type) not in (None, "single_label_classification"):
        raise DataError(f"{folder} must be a classifier of one label an input, and is {problem}")
    names = tuple(model.config.id2label[i] for i in sorted(model.config.id2label))
    names = () if all(each.startswith("LABEL_") for each in names) else names
    if not images:
        with reading(folder, "a folder with its tokenizer"):
            tokenizer = library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        length = min(settings.max_length, tokenizer.model_max_length)
        words = f"texts by its {type(tokenizer).__name__}, padding {tokenizer.padding_side}"
        cut = f"cut at {length} tokens on the {tokenizer.truncation_side}"
        options = {"truncation": True, "max_length": length, "padding": True}
        tokens = partial(tokenizer, return_tensors="pt", **options)
        return Opened(model, lambda texts: dict(tokens(texts)), f"{words}, {cut}", names)
    if not (folder / "preprocessor_config.json").is_file():
        return Opened(model, list, "", names)
    with reading(folder, "a folder with its image processor"):
        processor = library.AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    values = processor.to_dict()
    keys = [key for step, each in _STEPS.items() if values.get(step) for key in each]
    words = f"images by its preprocessor_config.json: RGB, {_in_words(values, keys)}"
    return Opened(model, lambda x: processor(x, return_tensors="pt")["pixel_values"], words, names)


def _by_flags(opened: Opened, settings: CalibrateSettings) -> Opened:
    size, mean, std = cast("int", settings.size), settings.mean, settings.std
    steps = [transforms.Grayscale()] if len(mean) == 1 else []
    steps += [transforms.Resize(round(size / settings.crop)), transforms.CenterCrop(size)]
    steps += [transforms.ToTensor(), transforms.Normalize(mean, std)]
    values: dict[str, Any] = {"mean": mean, "std": std, "size": size, "crop": settings.crop}
    values["interpolation"], colour = "bilinear", "grey" if len(mean) == 1 else "RGB"
    words = f"images by your flags: {colour} from 0 to 1, {_in_words(values, values)}"
    return opened._replace(prepare=_each(transforms.Compose(steps)), preparation=words)


def _in_words(values: Mapping[str, Any], keys: Iterable[str]) -> str:
    words = {key: values[key] for key in keys if key in values}
    if words.get("resample") is not None:
        words["resample"] = Image.Resampling(words["resample"]).name.lower()
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in words.items())


def _timm() -> Any:
    return require("timm", extra="pretrained", distribution="probseq-apps")


def _state(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    state = torch.load(file, map_location="cpu", weights_only=True)
    # Checkpoints of timm and torchvision have more than weights, those of DDP a prefix.
    state = next((state[key] for key in ("state_dict", "model") if key in state), state)
    return {name.removeprefix("module."): value for name, value in state.items()}


class _Measured(NamedTuple):
    lines: list[str]
    numbers: dict[str, Any]
    bins: dict[str, Any]  # of the figure


def _test(
    settings: CalibrateSettings,
    calibrated: Calibrated,
    classes: tuple[str, ...] | None,
    opened: list[Opened],
    held_out: Examples,
) -> _Measured:
    """Measure the calibrated model on other data."""
    if settings.test is None:
        return _Measured([], {}, {})
    if settings.logits:
        examples = read_outputs(settings.test, settings.separator)
        names, shape = held_out.classes, held_out.inputs.shape[1:]
        if examples.inputs.shape[1:] != shape or (examples.classes or names) != names:
            order = ", ".join(names) or "as many"
            raise DataError(f"{settings.test} must have the outputs of {settings.logits}: {order}")
        pairs: Any = [(torch.as_tensor(examples.inputs), numbered(examples.labels, classes))]
    else:
        examples = read_examples(settings.test, settings.separator)
        numbers = numbered(examples.labels, classes)
        pairs = batches(examples, numbers, opened[0], settings.batch_size, Counter[str]())
    decided = list[tuple[Tensor, ...]]()
    for inputs, numbers in pairs:
        log_probs = calibrated(inputs)
        decision = calibrated.decide_from(log_probs)
        decided.append((log_probs.exp(), decision.accepted, decision.sets, torch.tensor(numbers)))
    probs, accepted, sets, labels = (torch.cat(e).cpu() for e in zip(*decided, strict=True))
    values = {name: value for name, value in evaluate(probs, labels).items() if value is not None}
    means = ", ".join(f"{name} {values[name]:z.3f}" for name in ("nll", "ece", "accuracy"))
    lines = [f"Test, {len(labels):,} examples: {means}."]
    if settings.error_rate is not None:
        wrong = (probs.argmax(-1) != labels)[accepted].double()
        values["accepted"] = float(accepted.double().mean())
        values["wrong"] = float(wrong.mean()) if len(wrong) else 0.0
        lines.append("Accepted: {accepted:.1%}, of which {wrong:.1%} are wrong.".format(**values))
    values["inside"] = float(sets.gather(1, labels[:, None]).double().mean())
    lines.append("Sets hold the class of {inside:.1%}.".format(**values))
    return _Measured(lines, values, {"calibrated": calibration_bins(probs, labels)})


def _report(
    settings: CalibrateSettings, calibrated: Calibrated, text: list[str], measured: _Measured
) -> Report:
    source = settings.logits or settings.data or Path()
    rows, bins = [in_words(row) for row in calibrated.facts["rows"]], measured.bins
    return Report(
        experiment="calibrate",
        recipe="none",
        settings=json.loads(json.dumps(settings.to_dict(), default=str)),
        data={"name": source.name, "notes": [line for line in text if line]},
        numbers={"calibration": calibrated.facts, "test": measured.numbers, "file": FILE},
        title="which predictions can be trusted",
        opening="Read, fitted and chosen was:",
        tables=[Table(["candidate", "NLL", "ECE", "accuracy", "NLL to as it is"], rows)],
        legend="Means over the third that chose, ± half of a 95 % interval.",
        figures=lambda: {"reliability": reliability_diagram(bins)} if bins else {},
    )
