"""Targets of the fuzz suite that are made of annotations."""

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fuzzing.annotations import derive
from fuzzing.arguments import PASSES
from probseq.settings import Bound, Count, Settings, Share

# Checkers of annotations look at random items.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")


class Sizes(Settings):
    depth: Count
    share: Share = 0.5
    even: Annotated[int, Bound("even", lambda value: value % 2 == 0)] = 2


@dataclass
class Pair:
    first: Sizes
    kind: Literal["a", "b"]


class Layer(nn.Module):
    def __init__(self, dim: int, sizes: Sizes | None = None) -> None:
        super().__init__()
        self.linear, self.sizes = nn.Linear(dim, dim), sizes

    def forward(self, x: Float[Tensor, "*batch tokens dim"]) -> Tensor:
        return self.linear(x)


def scored(
    logits: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    mask: Bool[Tensor, " batch"] | None,
    pairs: Sequence[Pair],
    option: object = None,
) -> float:
    """Return zero; the name is said: NaN and infinity in a tensor reach the result."""
    return 0.0


def called(function: Callable[[], float], count: int) -> float:
    return count * function()


def table(*things, **options):
    public = types.ModuleType("public")
    public.__dict__.update({thing.__name__: thing for thing in things})
    public.__all__ = [thing.__name__ for thing in things]
    return {str(target): target for target in derive([public], {}, **options)}


def drawn(target, calls=60):
    """Draw good arguments."""
    seen = []

    @settings(max_examples=calls, derandomize=True, database=None, deadline=None)
    @given(st.fixed_dictionaries(dict(target.arguments)))
    def run(arguments):
        seen.append(arguments)

    run()
    return seen


def test_shapes_dtypes_bounds_and_values_are_those_of_the_annotations():
    for arguments in drawn(table(scored)["scored"]):
        logits, labels, mask = (arguments[name] for name in ("logits", "labels", "mask"))
        assert logits.is_floating_point()
        assert logits.shape[:1] == labels.shape
        assert 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[1]
        assert mask is None or (mask.dtype == torch.bool and mask.shape == labels.shape)
        assert arguments["option"] is None
        for pair in arguments["pairs"]:
            assert pair.kind in ("a", "b")
            assert pair.first.depth >= 1
            assert 0 <= pair.first.share <= 1
            assert pair.first.even % 2 == 0


def test_methods_get_instances_and_optional_axes_come_and_go():
    targets = table(Layer)
    assert set(targets) == {"Layer", "Layer.forward"}
    arguments = drawn(targets["Layer.forward"])
    assert {one["x"].ndim for one in arguments} == {2, 3}
    assert all(one["self"].linear.weight.dtype == one["x"].dtype for one in arguments)
    assert {one["self"].sizes is None for one in arguments} == {True, False}


def test_what_is_documented_may_pass_nan_and_only_that():
    assert table(scored)["scored"].non_finite == PASSES
    assert table(Layer)["Layer.forward"].non_finite == ""
    assert table(scored, words={"scored": ""})["scored"].non_finite == ""


def test_what_an_annotation_does_not_say_needs_an_entry():
    with pytest.raises(TypeError, match="called needs an entry for function"):
        table(called)
    entries = {"*": {"function": st.just(float)}, "called": {"count": st.just(7)}}
    (arguments,) = drawn(table(called, entries=entries)["called"], 1)
    assert arguments == {"function": float, "count": 7}
