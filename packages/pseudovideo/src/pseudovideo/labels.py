"""Classes of what is learned and drawn, and classifier-free guidance (Ho & Salimans 2022).

A model of K classes knows the tokens 0..K−1, and where it was trained with `label_dropout` the
token K, which says nothing of the class.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from probseq.checks import check_integers, check_not_negative
from probseq.pretrained import Pretrained
from pseudovideo.corruptions.counter import counter_normal
from pseudovideo.sampling import draw_seed
from pseudovideo.spec import ClassSpec

# The stream of random numbers that classes are drawn from, and the names that an error lists.
_CLASSES, _LISTED = -1, 10


class Classes(NamedTuple):
    """The classes of n samples, and how strongly they are asked for."""

    # Class of each sample; None of a model without classes
    labels: Int64[Tensor, " n"] | None = None
    # g of f = f_u + g (f_c − f_u), with what the network says of the class, f_c, and without it,
    # f_u. 1 is f_c and 0 is f_u, each by one evaluation.
    guidance: float = 1.0
    none: int = 0  # the token that says nothing of the class

    def select(self, numbers: Int64[Tensor, " b"]) -> "Classes":
        """Return the classes of some samples."""
        return self if self.labels is None else self._replace(labels=self.labels[numbers])

    @property
    def guided(self) -> bool:
        """True where there are two evaluations, made as one batch of twice the size."""
        return self.labels is not None and self.guidance not in (0.0, 1.0)

    @property
    def tokens(self) -> Int64[Tensor, " m"] | None:
        """Labels for the network: the classes, then where guided as often the token of none."""
        if self.labels is None or self.guidance == 1.0:
            return self.labels
        none = torch.full_like(self.labels, self.none)
        return torch.cat([self.labels, none]) if self.guided else none

    def duplicate_for_guidance(self, x: Shaped[Tensor, "b ..."]) -> Shaped[Tensor, "m ..."]:
        """Return the network's input for `tokens`."""
        return torch.cat([x, x]) if self.guided else x

    def apply_guidance(self, output: Float[Tensor, "m ..."]) -> Float[Tensor, "b ..."]:
        """Return f_u + g (f_c − f_u) of the network's output for `tokens`."""
        if not self.guided:
            return output
        conditional, free = output.chunk(2)
        return free + self.guidance * (conditional - free)


NO_CLASSES = Classes()
"""Of models without classes."""


def sample_classes(
    spec: ClassSpec,
    n: int,
    labels: Int64[Tensor, " n"] | None,
    guidance: float,
    *,
    generator: torch.Generator | None,
    device: torch.device,
) -> Classes:
    """Return the classes of samples; None draws those of a model with classes (`draw_labels`)."""
    check_guidance(spec, guidance)
    if labels is None and spec.num_classes is not None:
        labels = draw_labels(spec, n, seed=draw_seed(generator))
    # On the CPU, where labels out of range are seen: on a GPU they would end the process.
    check_labels(labels.cpu() if isinstance(labels, Tensor) else labels, spec, n)
    placed = None if labels is None else labels.to(device)
    return Classes(placed, float(guidance), spec.num_classes or 0)


def draw_labels(spec: ClassSpec, n: int, *, seed: int) -> Int64[Tensor, " n"]:
    """Return the classes of n samples, each class as likely as it is among the training images.

    A label depends on the seed and on its place alone: of fewer samples the first are the same.
    They are on the CPU; the model must have classes.
    """
    counts = torch.tensor(spec.class_counts or (1,) * (spec.num_classes or 0), dtype=torch.float64)
    ends = counts.cumsum(0)
    normal = counter_normal(torch.arange(n), 1, seed=seed, epoch=_CLASSES)[:, 0]
    # Φ of a normal number is evenly spread: class k where c_0 + … + c_{k-1} <= u < c_0 + … + c_k.
    uniform = torch.special.ndtr(normal.double()) * ends[-1]
    return torch.searchsorted(ends, uniform, right=True)


def class_numbers(spec: ClassSpec, asked: Sequence[str]) -> Int64[Tensor, " k"]:
    """Return the labels of classes by name, or by number where no class is named by a number."""
    names = spec.names
    if not names:
        raise ValueError(f"labels must be left out for a model without classes, got {asked[0]}")
    numbers = {name: number for number, name in enumerate(names)}
    numbered = any(name.isdecimal() for name in names)  # "0" is no class of those named 1, 2 and 7
    if not numbered:
        numbers |= {str(number): number for number in range(len(names))}
    for name in asked:
        if name not in numbers:
            listed = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
            by_number = "" if numbered else f" or by number (0..{len(names) - 1})"
            raise ValueError(
                f"labels must be classes of the model, by name ({listed}){by_number}, got {name!r}"
            )
    return torch.tensor([numbers[name] for name in asked], dtype=torch.int64)


def check_guidance(spec: ClassSpec, guidance: float) -> None:
    """Refuse guidance that a model was not trained for."""
    check_not_negative(guidance=guidance)
    if guidance != 1.0 and not spec.label_dropout:
        raise ValueError(
            "guidance must be 1 for a model that was not trained with label_dropout, and so knows "
            f"nothing without a label, got {guidance}"
        )


def check_labels(
    labels: Int64[Tensor, " n"] | None, spec: ClassSpec, count: int, *, none: bool = False
) -> None:
    """Refuse labels that are not the model's.

    Values are looked at on the CPU only, where that costs no synchronisation; if `none`, the token
    that says nothing is one of them, where the model knows it.
    """
    if spec.num_classes is None:
        if labels is not None:
            shape = tuple(getattr(labels, "shape", labels))
            raise ValueError(
                f"labels must be None for a model of num_classes=None, got some of shape {shape}"
            )
        return
    last = spec.num_classes - 1 + int(none and spec.label_dropout > 0)
    is_tensor = isinstance(labels, Tensor)
    if not is_tensor or labels.shape != (count,) or labels.dtype != torch.int64:
        got = f"{labels.dtype} of shape {tuple(labels.shape)}" if is_tensor else repr(labels)
        raise ValueError(
            f"labels must be int64 of shape ({count},) in 0..{last} for a model of "
            f"num_classes={spec.num_classes}, got {got}"
        )
    check_integers(0, last, labels=labels)


def dropped_labels(
    labels: Int64[Tensor, " n"] | None,
    model: Pretrained,
    count: int,
    generator: torch.Generator | None,
) -> Int64[Tensor, " n"] | None:
    """Return the tokens to train with: each is, with probability `label_dropout`, that of none.

    There must be `count` labels. In eval mode none is dropped.
    """
    spec: ClassSpec = model.config
    check_labels(labels, spec, count)
    if labels is None or not (model.training and spec.label_dropout):
        return labels
    device = labels.device if generator is None else generator.device
    chance = torch.rand(count, generator=generator, device=device).to(labels.device)
    return labels.masked_fill(chance < spec.label_dropout, spec.num_classes or 0)
