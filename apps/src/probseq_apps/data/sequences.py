"""Sequences of vectors with a class each: speakers, and sequences of one's own.

A file ``.npz``, as ``numpy.savez`` writes it, has

- ``values``: (N, T, C), padded behind each sequence with anything, where ``lengths`` are given, or
  with NaN; or (R, C), the frames of all sequences one after the other, with ``lengths``,
- ``labels`` (N,): numbers or names,
- ``lengths`` (N,): number of frames of each sequence,
- ``test`` (N,), may be missing: true of those to test on.

A CSV or TSV has a row a frame: the columns ``id`` of the sequence, ``time``, the label's, and all
others are channels.

Splits are fixed: where the test part is given, 30% of each class of the other sequences are for
validation, else 60/20/20 of each class. ``speakers`` are the Japanese vowels of Kudo, Toyama and
Shimbo (1999; UCI, CC BY 4.0), from the package aeon: nine men, 270 utterances and 370 to test on,
of 7 to 29 frames of 12 cepstral coefficients. Letters: T frames of a sequence at most, C channels.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from probseq.checks import parse_number
from probseq_apps.data.columns import StampColumn
from probseq_apps.data.names import DataError, reading, user_path
from probseq_apps.data.parts import Part, Parts, few_rows, number_classes, stratified
from probseq_apps.data.tables import csv_header, read_rows

_SPEAKERS = Path(__file__).with_name("speakers.npz")
_VALIDATION = 0.3  # of the sequences that are not for testing
_NPZ = "sequences, an .npz of values (N, T, C) or (R, C), labels (N,) and lengths (N,), no objects"


@dataclass(frozen=True, eq=False)
class SequenceData(Parts[Part]):
    """Sequences (N, T, C), NaN behind the last frame of each."""

    @property
    def max_length(self) -> int:
        """Most frames T of a sequence."""
        return self.train.inputs.shape[1]

    @property
    def input_dim(self) -> int:
        """Width of a prepared frame."""
        return self.train.inputs.shape[2] + 1

    @cached_property
    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel, over the frames of the training part."""
        frames = self.train.inputs[is_frame(self.train.inputs)].double()
        std = frames.std(0, correction=0)
        return frames.mean(0).float(), torch.where(std > 0, std, 1.0).float()

    def prepared(self, x: Float32[Tensor, "n t c"]) -> Float32[Tensor, "n s d"]:
        """Normalise sequences, zeros for padding, as long as the longest of them.

        A channel of ones is added: a frame that is the mean in all channels is no padding.
        """
        mean, std = (each.to(x.device) for each in self.statistics)
        frame = is_frame(x)
        frame = frame[:, : int(frame.sum(1).max())]
        x = (x[:, : frame.shape[1]] - mean) / std
        return torch.cat([x.nan_to_num(0.0), frame.unsqueeze(-1).to(x)], -1)


def is_frame(x: Float32[Tensor, "n t c"]) -> Tensor:
    """Return (N, T), true at frames and false at padding."""
    return ~x[..., 0].isnan()


def load_sequences(name: str, label_column: str) -> SequenceData:
    """Load ``speakers``, or ``sequences:FILE``, an .npz or a table."""
    path = user_path(name)
    if path is not None and path.suffix.lower() != ".npz":
        arrays = _read_table(path, label_column)
    else:
        arrays = _read_npz(path or _SPEAKERS)
    with reading(path, _NPZ):
        inputs, labels, test = _padded(**arrays)
    classes, targets = number_classes(labels.tolist(), name)
    whole = Part(inputs, targets)
    if test is None:
        rows = stratified(targets, 0.2, classes)
    else:
        others = (~test).nonzero().flatten()
        held = few_rows(targets[others], round(_VALIDATION * len(others)), name)
        is_held = torch.isin(torch.arange(len(others)), held)
        rows = (others[~is_held], others[held], test.nonzero().flatten())
    return SequenceData(name, *map(whole.rows, rows), class_names=classes)


def _read_npz(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"{path} does not exist or is no file")
    with reading(path, _NPZ), np.load(path, allow_pickle=False) as arrays:
        fields = ("values", "labels", "lengths", "test")
        if missing := [field for field in fields[:2] if field not in arrays]:
            raise ValueError(f"{', '.join(missing)} must be there, got {', '.join(arrays)}")
        return {field: arrays.get(field) for field in fields}


def _read_table(path: Path, label_column: str) -> dict[str, Any]:
    """Read a row a frame: sequences in the order of their first rows, frames in that of time."""
    header = csv_header(path)
    channels = [each for each in header if each not in ("id", "time", label_column)]
    if not channels:
        raise DataError(f"{path} needs columns beside id, time and {label_column}: {header}")
    stamps, sequences = StampColumn("time"), dict[str, dict[float, list[float]]]()
    label_of = dict[str, str]()

    def parse(name: str, time: str, label: str, *cells: str) -> None:
        if (label := label.strip()).lower() in ("", "nan") or not name.strip():
            raise ValueError("the id or the label is missing")
        if label_of.setdefault(name, label) != label:
            raise ValueError(
                f"sequence {name!r} must have one label, got {label_of[name]!r} and {label!r}"
            )
        frames, at = sequences.setdefault(name, {}), stamps.parse(time)
        if at in frames:
            raise ValueError(f"sequence {name!r} must have one frame at a time, got two at {time}")
        frames[at] = [parse_number(cell) for cell in cells]

    columns = [("id", "sequences"), ("time", "order of frames"), (label_column, "labels")]
    read_rows(path, [*columns, *((channel, "channel") for channel in channels)], parse)
    if not sequences:
        raise DataError(f"{path} holds no sequences")
    frames = [each[at] for each in sequences.values() for at in sorted(each)]
    lengths = np.array([len(each) for each in sequences.values()])
    labels = np.array([label_of[name] for name in sequences])
    return {"values": np.array(frames), "labels": labels, "lengths": lengths, "test": None}


def _padded(
    values: NDArray[Any], labels: NDArray[Any], lengths: NDArray[Any] | None, test: Any
) -> tuple[Tensor, NDArray[Any], Tensor | None]:
    """Return sequences (N, T, C) with NaN for padding, labels, and which are for testing."""
    count, flat = len(labels), values.ndim == 2
    if values.ndim not in (2, 3) or values.dtype.kind not in "fiu" or 0 in values.shape:
        raise ValueError(f"values are {values.dtype} of shape {values.shape}")
    if lengths is None:
        if flat:
            raise ValueError("values of shape (R, C) need lengths")
        # One more than the place of the last frame that holds a number.
        lengths = (np.isfinite(values).any(-1) * np.arange(1, values.shape[1] + 1)).max(-1)
    lengths = np.asarray(lengths, dtype=np.float64)
    consistent = lengths.sum() == len(values) if flat else len(values) == count
    whole = np.isin(lengths, np.arange(1, values.shape[0 if flat else 1] + 1)).all()
    if not (consistent and whole) or labels.shape != (count,) or lengths.shape != (count,):
        raise ValueError(
            f"labels of shape {labels.shape} and lengths of shape {lengths.shape}, from "
            f"{lengths.min():g} to {lengths.max():g}, do not describe values of shape "
            f"{values.shape}"
        )
    labels = np.char.strip(labels.astype(str))
    if np.isin(np.char.lower(labels), ("", "nan")).any():
        raise ValueError("labels must not be missing")
    lengths = lengths.astype(np.int64)
    frame = np.arange(lengths.max()) < lengths[:, None]
    frames = (values if flat else values[:, : lengths.max()][frame]).astype(np.float32)
    if not np.isfinite(frames).all():
        raise ValueError("frames must be finite: leave out those where a number is missing")
    padded = np.full((*frame.shape, frames.shape[-1]), np.nan, dtype=np.float32)
    padded[frame] = frames
    mask = None if test is None else torch.from_numpy(test.astype(np.bool_))
    if mask is not None and (mask.shape != (count,) or mask.all() or not mask.any()):
        raise ValueError(f"test must be true of some of the {count} sequences, not of all")
    return torch.from_numpy(padded), labels, mask


# How much there is of each at the five severities: standard deviations, or a share of the frames.
_AMOUNTS = {
    "frame_noise": (0.1, 0.2, 0.4, 0.7, 1.0),
    "dropped_frames": (0.1, 0.2, 0.35, 0.5, 0.7),
    "channel_gain": (0.1, 0.25, 0.5, 0.75, 1.0),
    "truncation": (0.1, 0.25, 0.4, 0.55, 0.7),
}


def corrupt_sequences(
    x: Float32[Tensor, "n t c"], name: str, severity: int, *, scale: Tensor, seed: int
) -> Float32[Tensor, "n t c"]:
    """Return corrupted sequences; `scale` (C,) is the standard deviation of each channel.

    ``frame_noise`` is Gaussian; ``channel_gain`` adds a Gaussian constant to each channel, as a
    filter does to cepstral coefficients; ``dropped_frames`` are missing anywhere, ``truncation``
    at the end, and one frame is left at least.
    """
    generator, amount = torch.Generator().manual_seed(seed), _AMOUNTS[name][severity - 1]
    if name == "frame_noise":
        return x + amount * scale * torch.randn(x.shape, generator=generator)
    if name == "channel_gain":
        return x + amount * scale * torch.randn(len(x), 1, x.shape[2], generator=generator)
    frame, (count, length) = is_frame(x), x.shape[:2]
    counts = ((1 - amount) * frame.sum(1)).round().clamp(min=1).long()[:, None]
    steps = torch.arange(float(length)).expand(count, -1)
    order = torch.rand(count, length, generator=generator) if name == "dropped_frames" else steps
    # The first in this order remain, and close up in their old one.
    remains = torch.where(frame, order, torch.inf).argsort(1).argsort(1) < counts
    closed = torch.where(remains, steps, torch.inf).argsort(stable=True)
    closed = x.gather(1, closed.unsqueeze(-1).expand_as(x))
    return torch.where((steps < counts).unsqueeze(-1), closed, torch.nan)
