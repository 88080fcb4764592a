"""Examples of the sets of a task, and what guesses reach."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from probseq.metrics import SHIFTED
from probseq_apps.data.images import ImageData
from probseq_apps.data.parts import Part
from probseq_apps.data.sets import ClassData as Data
from probseq_apps.data.texts import TextData
from probseq_apps.experiments import comparison
from probseq_apps.report.report import EXAMPLES
from pseudovideo.pixels import to_unit
from pseudovideo.plots import save_rows

_EXAMPLES, _LETTERS = 8, 8  # images in a row, and letters of their classes


def chance_of(data: Data) -> dict[str, float]:
    """Return what the shares of the classes in the training part reach in the test part."""
    counts = 1 + data.train.targets.bincount(minlength=data.num_classes).double()
    labels = data.test.targets
    nll = F.nll_loss((counts / counts.sum()).log().expand(len(labels), -1), labels)
    return {"accuracy": float((labels == counts.argmax()).double().mean()), "nll": float(nll)}


def draw_examples(loaded: comparison.Loaded[Data], folder: Path) -> list[Path]:
    """Draw test examples of some classes as they are, shifted, and some of no class.

    Sequences are grey, a column a frame and a row a channel, black at two deviations below its mean
    and white at two above it, and behind the end.
    """
    data = loaded.fully_labelled
    if isinstance(data, TextData):
        return []
    firsts = {int(label): row for row, label in reversed([*enumerate(data.test.targets)])}
    labels = sorted(firsts)[:_EXAMPLES]
    chosen = torch.tensor([firsts[label] for label in labels])
    names = [name for name in loaded.sets if name.startswith(tuple(f"{kind}/" for kind in SHIFTED))]
    names = ["test", *names[-1:], *(name for name in loaded.sets if name.startswith("ood/"))]
    rows: dict[str, Tensor] = {}
    for name in names:
        source = loaded.sets[name]
        images = (source if isinstance(source, Part) else source()).inputs
        kind, _, title = name.partition("/")
        label = {"test": "test", "ood": f"OOD: {title}"}.get(
            kind, f"shifted: {title.replace('/', ', severity ')}"
        )
        images = images[chosen.clamp(max=len(images) - 1)]
        if isinstance(data, ImageData):
            rows[label] = to_unit(images)
        else:
            mean, std = data.statistics
            standard = (images - mean) / std
            rows[label] = (0.5 + standard / 4).nan_to_num(1.0).clamp(0, 1).mT[:, None]
    heads = [data.class_names[label][:_LETTERS] for label in labels]
    return [save_rows([*rows], [*rows.values()], folder / f"{EXAMPLES}.png", heads)]
