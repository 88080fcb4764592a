"""A method's layers in the place of other libraries': calls, masks, penalties, and back."""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from probseq.testing.drop_in import first_tensor
from probseq.transformers import AttentionOutput, SoftmaxAttention, remove_attention
from probseq.transformers.exchange import collect_penalties, exchange_attention

DIM, HEADS = 16, 2
KINDS = (
    *("MultiheadAttention", "Attention", "ViTAttention", "BertSelfAttention"),
    "DistilBertSelfAttention",
)
SEPARATE = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))
MASK = torch.arange(6) < torch.tensor([[6], [2], [4]])


def tokens(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def encoder():
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    # True: hidden.
    return model, {"src": tokens(3, 6, DIM), "src_key_padding_mask": ~MASK}


def sequence_first():
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 32)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model, {"src": tokens(6, 3, DIM), "src_key_padding_mask": ~MASK}


def timm_vit():
    timm = pytest.importorskip("timm")
    sizes = dict(img_size=8, patch_size=4, embed_dim=DIM, depth=2, num_heads=HEADS, num_classes=3)
    return timm.models.VisionTransformer(**sizes), {"x": tokens(3, 3, 8, 8)}


def config(name, **changes):
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=DIM, num_hidden_layers=2, num_attention_heads=HEADS)
    sizes |= dict(intermediate_size=32, vocab_size=20, max_position_embeddings=16, pad_token_id=0)
    return transformers, getattr(transformers, name)(**(sizes | changes))


def transformers_vit():
    transformers, settings = config("ViTConfig", image_size=8, patch_size=4)
    return transformers.ViTForImageClassification(settings), {"pixel_values": tokens(3, 3, 8, 8)}


def bert():
    transformers, settings = config("BertConfig")
    ids = torch.randint(3, 20, (3, 6), generator=torch.Generator().manual_seed(1)) * MASK
    given = {"input_ids": ids, "attention_mask": MASK.long()}
    return transformers.BertForSequenceClassification(settings), given


def distilbert():
    transformers, settings = config("DistilBertConfig", dim=DIM, n_layers=2, n_heads=HEADS)
    given = bert()[1]
    return transformers.DistilBertForSequenceClassification(settings), given


CASES = [encoder, sequence_first, timm_vit, transformers_vit, bert, distilbert]


def new(case):
    torch.manual_seed(0)
    model, given = case()
    model.eval()
    # Ours has no biases in the projections of queries, keys and values.
    for module in model.modules():
        for name in ("qkv", *sum(SEPARATE, ())):
            if isinstance(layer := getattr(module, name, None), nn.Linear):
                nn.init.zeros_(layer.bias)
        if isinstance(module, nn.MultiheadAttention):
            nn.init.zeros_(module.in_proj_bias)
    return model, given


def weights(old):
    """The old layer's weights as softmax attention has them."""
    for names in (
        ("q_proj", "k_proj", "v_proj"),
        ("query", "key", "value"),
        ("q_lin", "k_lin", "v_lin"),
    ):
        if all(isinstance(getattr(old, name, None), nn.Linear) for name in names):
            qkv = torch.cat([getattr(old, name).weight for name in names])
            break
    else:
        qkv = old.in_proj_weight if hasattr(old, "in_proj_weight") else old.qkv.weight
    outs = [getattr(old, n) for n in ("out_proj", "proj", "o_proj", "out_lin") if hasattr(old, n)]
    out = (outs[0].weight, outs[0].bias) if outs else (torch.eye(DIM), torch.zeros(DIM))
    return {"to_qkv.weight": qkv, "to_out.0.weight": out[0], "to_out.0.bias": out[1]}


class Penalised(nn.Module):
    """Softmax attention with a penalty of a fixed number."""

    stochastic = True

    def __init__(self, dim, num_heads):
        super().__init__()
        self.inner, self.size = SoftmaxAttention(dim, num_heads), nn.Parameter(torch.tensor(0.25))

    def forward(self, x, mask=None, *, generator=None, **named):
        values, _ = self.inner(x, mask)
        return AttentionOutput(values, self.size)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_softmax_attention_with_the_old_weights_gives_the_old_outputs(case):
    model, given = new(case)
    expected, text = first_tensor(model(**given)), str(model)
    olds = [m for m in model.modules() if type(m).__name__ in KINDS]
    assert len(olds) == 2
    made = iter(olds)

    def make(dim, heads):
        layer = SoftmaxAttention(dim, heads)
        layer.load_state_dict(weights(next(made)))
        return layer

    exchange_attention(model, make, layers="all")
    assert not any(type(m).__name__ in KINDS for m in model.modules())
    found = first_tensor(model(**given))
    if case is sequence_first:
        expected, found = expected.transpose(0, 1), found.transpose(0, 1)
    if case in (encoder, sequence_first):
        expected, found = expected[MASK], found[MASK]
    assert_close(found, expected)
    remove_attention(model)
    assert str(model) == text
    assert [m for m in model.modules() if type(m).__name__ in KINDS] == olds


@pytest.mark.parametrize("case", CASES)
def test_penalties_are_collected_once_a_layer_and_have_gradients(case):
    model, given = new(case)
    exchange_attention(model, Penalised, layers="all")
    model(**given)  # outside: nothing is kept
    with collect_penalties(model) as penalties:
        model(**given)
        total = torch.stack(penalties).sum()
    assert float(total.detach()) == 0.5
    total.backward()
    sizes = [m.size for m in model.modules() if isinstance(m, Penalised)]
    assert [float(size.grad) for size in sizes] == [1.0, 1.0]
    assert len(penalties) == 2


@pytest.mark.parametrize("case", CASES)
def test_new_layers_train_and_the_old_ones_are_not_among_the_parameters(case):
    model, given = new(case)
    old = sum(p.numel() for p in model.parameters())
    exchange_attention(model.train(), SoftmaxAttention)
    biases = {
        encoder: 3,
        sequence_first: 3,
        timm_vit: 3,
        transformers_vit: 3,
        bert: 3,
        distilbert: 3,
    }
    if case is not bert:  # whose output weights are outside of the layer
        assert sum(p.numel() for p in model.parameters()) == old - biases[case] * DIM
    first_tensor(model(**given)).square().mean().backward()
    (new_layer,) = (m for m in model.modules() if isinstance(m, SoftmaxAttention))
    assert all(p.grad is not None for p in new_layer.parameters())
    copied = copy.deepcopy(model)
    remove_attention(copied)
    assert any(isinstance(m, SoftmaxAttention) for m in model.modules())
    assert not any(isinstance(m, SoftmaxAttention) for m in copied.modules())


def test_what_cannot_be_exchanged_is_refused_and_changes_nothing():
    transformers, settings = config("GPT2Config", n_embd=DIM, n_layer=2, n_head=HEADS)
    model = transformers.GPT2LMHeadModel(settings)
    text = str(model)
    with pytest.raises(ValueError, match="a GPT2Attention, cannot be exchanged"):
        exchange_attention(model, SoftmaxAttention)
    assert str(model) == text
    with pytest.raises(ValueError, match="the model itself, a MultiheadAttention, cannot be"):
        exchange_attention(nn.MultiheadAttention(DIM, HEADS), SoftmaxAttention)
    model, given = new(encoder)
    with pytest.raises(ValueError, match="make must return an attention module, got Linear"):
        exchange_attention(model, lambda dim, heads: nn.Linear(dim, dim))
    with (
        pytest.raises(ValueError, match="model must have an exchanged layer"),
        collect_penalties(model),
    ):
        pass
    exchange_attention(model, SoftmaxAttention, layers="all")
    causal = nn.Transformer.generate_square_subsequent_mask(6)
    with pytest.raises(ValueError, match=r"attention must be to all|the mask must be one"):
        model(given["src"], mask=causal)


def exchanged(batch_first=True):
    """Attention of torch, and softmax attention with its weights in the same place."""
    torch.manual_seed(0)
    old = nn.MultiheadAttention(DIM, HEADS, batch_first=batch_first).eval()
    nn.init.zeros_(old.in_proj_bias)
    return old, exchange_attention(nn.Sequential(old), with_weights_of(old))[0].eval()


def with_weights_of(old):
    def make(dim, heads):
        layer = SoftmaxAttention(dim, heads)
        layer.load_state_dict(weights(old))
        return layer

    return make


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("form", ["boolean", "float", "by place"])
@torch.no_grad()
def test_masks_of_torch_hide(batch_first, form):
    old, new = exchanged(batch_first)
    x, hidden = tokens(3, 6, DIM), ~MASK
    given = x if batch_first else x.transpose(0, 1)
    if form == "float":
        hidden = torch.zeros(3, 6).masked_fill(hidden, -torch.inf)
    args, named = (), {"key_padding_mask": hidden}
    if form == "by place":
        args, named = (hidden,), {}
    one, other = (attention(given, given, given, *args, **named)[0] for attention in (old, new))
    if not batch_first:
        one, other = one.transpose(0, 1), other.transpose(0, 1)
    assert_close(other[MASK], one[MASK])


@torch.no_grad()
def test_a_mask_between_tokens_is_not_taken_for_one_of_padding():
    old, new = exchanged()
    x = tokens(6, 6, DIM)  # as many sequences as tokens
    nothing = torch.zeros(6, 6, dtype=torch.bool)
    assert_close(new(x, x, x, attn_mask=nothing)[0], old(x, x, x, attn_mask=nothing)[0])
    for mask in (nothing.clone(), torch.zeros(6, 6)):
        mask[:, 3:] = True if mask.dtype == torch.bool else -torch.inf
        with pytest.raises(ValueError, match="the mask must be one of real tokens, the same"):
            new(x, x, x, attn_mask=mask)
    with pytest.raises(ValueError, match="one with a bias"):
        new(x, x, x, attn_mask=torch.full((6, 6), -0.5))
    with pytest.raises(ValueError, match=r"query, key and value must be one tensor.* got value"):
        new(x, x, x.clone())


@torch.no_grad()
def test_a_single_sequence_has_no_batch():
    for batch_first in (True, False):
        old, new = exchanged(batch_first)
        x = tokens(6, DIM)
        expected, found = (attention(x, x, x)[0] for attention in (old, new))
        assert found.shape == (6, DIM)
        assert_close(found, expected)
        hidden = torch.arange(6) > 3
        expected, found = (
            attention(x, x, x, key_padding_mask=hidden)[0] for attention in (old, new)
        )
        assert_close(found[:4], expected[:4])


def timm_attention():
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    old = timm.layers.Attention(DIM, HEADS).eval()
    return old, exchange_attention(nn.Sequential(old), with_weights_of(old))[0].eval()


@torch.no_grad()
def test_masks_of_timm_show():
    old, new = timm_attention()
    x, shown = tokens(3, 6, DIM), MASK[:, None, None].expand(3, 1, 6, 6)
    for mask in (shown, torch.zeros(3, 1, 6, 6).masked_fill(~shown, -torch.inf)):
        assert_close(new(x, attn_mask=mask)[MASK], old(x, attn_mask=mask)[MASK])
    x, square = tokens(6, 6, DIM), torch.ones(6, 6, dtype=torch.bool)
    assert_close(new(x, square), old(x, square))
    with pytest.raises(ValueError, match="the mask must be one of real tokens"):
        new(x, square.tril())


@torch.no_grad()
def test_a_halved_model_keeps_its_new_layers_in_full_precision():
    model, given = new(encoder)
    exchange_attention(model, SoftmaxAttention)
    expected = model(**given)
    found = model.bfloat16()(given["src"].bfloat16(), src_key_padding_mask=~MASK)
    assert found.dtype == torch.bfloat16
    assert_close(found.float()[MASK], expected[MASK], rtol=0.1, atol=0.1)
    (layer,) = (m for m in model.modules() if isinstance(m, SoftmaxAttention))
    assert {p.dtype for p in layer.parameters()} == {torch.float32}


def test_threads_collect_their_own_penalties():
    model, given = new(encoder)
    exchange_attention(model, Penalised, layers="all")

    def collect(number):
        with collect_penalties(model) as penalties:
            for _ in range(1 + number % 3):
                model(**given)
            return len(penalties)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(collect, range(24)))
    finally:
        sys.setswitchinterval(before)
    assert found == [2 * (1 + number % 3) for number in range(24)]
