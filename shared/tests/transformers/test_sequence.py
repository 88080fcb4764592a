"""The transformer over vectors, around any attention."""

import inspect

import pytest
import torch
from torch.testing import assert_close

from probseq.transformers import KernelAttention, SequenceTransformer, SoftmaxAttention
from small import small_transformer


def make(kind=SoftmaxAttention, *, positions=True, **changes):
    sizes = {"max_length": 7, "num_outputs": 5, "positions": positions}
    changes = {"dim": 4, "hidden_dim": 6, **changes}
    return small_transformer("sequence", lambda index: kind(4, 2), sizes=sizes, **changes).eval()


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@torch.no_grad()
def test_vectors_of_a_lookup_table_give_the_text_transformer():
    # One-hot vectors through the linear layer are a lookup of its columns.
    model = make()
    text = small_transformer(
        *("text", lambda index: SoftmaxAttention(4, 2)),
        sizes={"vocab_size": 4, "max_length": 7, "num_classes": 5},
        **{"dim": 4, "hidden_dim": 6},
    )
    weights = model.state_dict()
    columns = weights["embed.weight"] + weights["embed.bias"][:, None]
    table = torch.cat([columns.new_zeros(1, 4), columns.T])
    del weights["embed.bias"]
    text.load_state_dict(weights | {"embed.weight": table})
    tokens = torch.tensor([[3, 1, 2, 1], [2, 3, 0, 0]])
    one_hot = torch.eye(4, dtype=torch.float64)[:, 1:][tokens]
    assert_close(model(one_hot).logits, text.eval()(tokens).logits)


@pytest.mark.parametrize("kind", [SoftmaxAttention, KernelAttention])
@torch.no_grad()
def test_padding_of_zeros_changes_nothing(kind):
    model, x = make(kind), draw(2, 3, 3)
    x[1, 1:] = 0
    padded = torch.nn.functional.pad(x, (0, 0, 0, 4))
    assert_close(model(padded).logits, model(x).logits)
    assert_close(model(x).logits[1:], model(x[1:, :1]).logits)


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
def test_with_a_mask_no_junk_at_padding_reaches_the_outputs_or_the_gradients(junk):
    model, x = make(), draw(2, 4, 3)
    mask = torch.tensor([[True] * 4, [True, False, True, False]])
    clean = model(x, mask)
    spoilt = model(x.masked_fill(~mask.unsqueeze(-1), junk), mask)
    assert_close(spoilt.logits, clean.logits)
    gradients = [
        torch.autograd.grad(out.logits.square().sum(), list(model.parameters()))
        for out in (clean, spoilt)
    ]
    assert_close(gradients[1], gradients[0])


@torch.no_grad()
def test_a_mask_shows_real_vectors_that_are_zero():
    model, x = make(), draw(1, 3, 3)
    x[0, 1] = 0
    everything = torch.ones(1, 3, dtype=torch.bool)
    hidden = torch.tensor([[True, False, True]])
    assert_close(model(x).logits, model(x, hidden).logits)
    assert not torch.allclose(model(x).logits, model(x, everything).logits)


@torch.no_grad()
def test_order_matters_with_positions_alone():
    x = draw(1, 5, 3)
    for positions in (True, False):
        model = make(positions=positions)
        same = torch.allclose(model(x).logits, model(x.flip(1)).logits)
        assert same is not positions
    assert make(positions=False).positions is None
    assert "positions" not in make(positions=False).state_dict()


def test_inputs_and_masks_that_make_no_sense_are_refused():
    forward = inspect.unwrap(SequenceTransformer.forward)
    model, good = make(), draw(2, 4, 3)
    for x in (good[0], good[:0], draw(1, 8, 3), good[..., :2]):
        with pytest.raises(ValueError, match=r"shape \(batch, 1 to 7, input_dim=3\), got \("):
            forward(model, x)
    with pytest.raises(ValueError, match=r"x must be of a floating dtype, got torch\.int64"):
        forward(model, good.long())
    for mask in (torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 4)):
        with pytest.raises(ValueError, match=r"mask must be boolean of shape \(2, 4\), got"):
            forward(model, good, mask)
    good[1] = 0
    with pytest.raises(ValueError, match=r"mask hides every token of sequences \[1\]"):
        forward(model, good)
