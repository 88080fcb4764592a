"""Vision and text transformers around any attention."""

import inspect

import pytest
import torch
from torch.testing import assert_close

from probseq.transformers import (
    KernelAttention,
    SoftmaxAttention,
    TextTransformer,
    VisionTransformer,
)
from small import small_transformer


def attention(index):
    return SoftmaxAttention(4, 2)


def make_vision(**changes):
    sizes = {"image_size": 6, "channels": 3, "num_classes": 5}
    changes = {"dim": 4, "hidden_dim": 6, **changes}
    return small_transformer("vision", attention, sizes=sizes, **changes).eval()


def make_text(make_attention=attention, **changes):
    sizes = {"vocab_size": 9, "max_length": 7, "num_classes": 5}
    changes = {"dim": 4, "hidden_dim": 6, **changes}
    return small_transformer("text", make_attention, sizes=sizes, **changes).eval()


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("pooling", ["mean", "sequence", "cls", "flatten"])
@torch.no_grad()
def test_vision_equals_a_loop_over_patches(pooling):
    model, images = make_vision(pooling=pooling), draw(2, 3, 6, 6)
    weight, bias = model.embed.weight.flatten(1), model.embed.bias
    for b in range(2):
        patches = [
            images[b, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].flatten()
            for i in range(3)
            for j in range(3)
        ]
        x = [weight @ patch + bias + model.positions[0, i] for i, patch in enumerate(patches)]
        if pooling == "cls":
            x = [model.class_token[0, 0], *x]
        x = torch.stack(x)
        encoded, _ = model.encoder(x[None])
        pooled = model.head.pooling(model.head.norm(encoded))
        assert_close(model(images).logits[b], model.head.linear(pooled)[0])


@pytest.mark.parametrize("pooling", ["mean", "sequence", "cls", "flatten"])
@torch.no_grad()
def test_text_equals_a_loop_over_tokens(pooling):
    model = make_text(pooling=pooling)
    tokens = torch.tensor([[3, 8, 1, 5], [2, 7, 0, 0]])
    for b, n in enumerate((4, 2)):
        x = [model.embed.weight[t] + model.positions[0, i] for i, t in enumerate(tokens[b, :n])]
        if pooling == "cls":
            x = [model.class_token[0, 0], *x]
        encoded, _ = model.encoder(torch.stack(x)[None])
        pooled = model.head.pooling(model.head.norm(encoded))
        assert_close(model(tokens).logits[b], model.head.linear(pooled)[0])


def test_a_short_training_tells_images_apart_that_differ_in_the_order_of_their_patches():
    # One bright patch in each image, and classes that are its place: the mean over tokens does not
    # show it, positions must.
    places = torch.arange(9)
    images = torch.eye(9).view(9, 1, 3, 3).repeat(1, 3, 1, 1)
    images = images.repeat_interleave(2, -1).repeat_interleave(2, -2)
    model = small_transformer(
        *("vision", lambda index: SoftmaxAttention(32, 2)),
        sizes={"image_size": 6, "channels": 3},
        **{"dim": 32, "hidden_dim": 32, "dropout": 0.0},
    ).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images).logits, places % 3).backward()
        optimizer.step()
    # .24 here; .63 where positions start at .02 times a normal draw.
    assert torch.nn.functional.cross_entropy(model(images).logits, places % 3) < 0.45


@pytest.mark.parametrize("kind", ["vision", "text"])
@torch.no_grad()
def test_samples_share_no_dropout_mask_not_even_behind_the_embeddings(kind):
    model = make_vision() if kind == "vision" else make_text()
    inputs = draw(1, 3, 6, 6) if kind == "vision" else torch.tensor([[1, 2, 3]])
    # Only the embeddings' dropout is active: all else is deterministic.
    model.encoder.dropout.p = 0.5
    model.encoder.dropout.train()
    logits = model(inputs, num_samples=4).logits
    for s in range(1, 4):
        assert not torch.allclose(logits[0], logits[s])


@torch.no_grad()
def test_padding_and_trailing_length_change_no_logit_of_text():
    for make in (attention, lambda index: KernelAttention(4, 2)):
        model = make_text(make)
        short = torch.tensor([[3, 8, 1], [2, 0, 0]])
        padded = torch.nn.functional.pad(short, (0, 4))
        assert_close(model(padded).logits, model(short).logits)
        alone = model(torch.tensor([[2]])).logits
        assert_close(model(short).logits[1:], alone)


@torch.no_grad()
def test_an_explicit_mask_overrides_the_padding_id():
    model = make_text()
    tokens = torch.tensor([[3, 8, 1, 4]])
    mask = torch.tensor([[True, True, False, False]])
    assert_close(model(tokens, mask).logits, model(tokens[:, :2]).logits)


def test_the_embedding_of_padding_is_never_trained():
    model = make_text().train()
    model(torch.tensor([[3, 8, 0]])).logits.sum().backward()
    assert not model.embed.weight.grad[0].any()
    assert model.embed.weight.grad[3].any()


def test_images_of_another_shape_are_refused():
    forward = inspect.unwrap(VisionTransformer.forward)
    model = make_vision()
    for shape in ((2, 3, 6, 5), (2, 1, 6, 6), (3, 6, 6), (0, 3, 6, 6)):
        with pytest.raises(ValueError, match=r"images must have shape .*\(>=1, 3, 6, 6\), got"):
            forward(model, draw(*shape))
    with pytest.raises(ValueError, match=r"images must be of a floating dtype, got torch\.uint8"):
        forward(model, torch.zeros(2, 3, 6, 6, dtype=torch.uint8))


def test_tokens_and_masks_that_make_no_sense_are_refused():
    forward = inspect.unwrap(TextTransformer.forward)
    model, good = make_text(), torch.tensor([[1, 2], [3, 0]])
    for tokens in (good[0], good[:0], torch.ones(1, 8, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"tokens must have shape \(batch, 1 to 7\), got"):
            forward(model, tokens)
    with pytest.raises(ValueError, match=r"tokens must be whole numbers .* got torch\.float32"):
        forward(model, good.float())
    for tokens, found in (([[1, 9]], "1 to 9"), ([[-1, 2]], "-1 to 2")):
        with pytest.raises(ValueError, match=f"tokens must be from 0 to 8, got {found}"):
            forward(model, torch.tensor(tokens))
    for mask in (torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 2)):
        with pytest.raises(ValueError, match=r"mask must be boolean of shape \(2, 2\), got"):
            forward(model, good, mask)
    with pytest.raises(ValueError, match=r"mask hides every token of sequences \[1\]"):
        forward(model, torch.tensor([[1, 2], [0, 0]]))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("pooling", ["mean", "sequence", "cls", "flatten"])
def test_no_parameter_is_unused_in_training(pooling, norm):
    for shared_norm in (True, False):
        changes = {"pooling": pooling, "norm": norm, "shared_norm": shared_norm}
        for model, inputs in (
            (make_vision(**changes), draw(2, 3, 6, 6)),
            (make_text(**changes), torch.tensor([[1, 2, 3, 4, 5, 6, 7]])),
        ):
            model.train()(inputs).logits.square().sum().backward()
            unused = [name for name, p in model.named_parameters() if p.grad is None]
            assert not unused


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_backbones_with_softmax_attention_work_in_half_precision(dtype):
    model = small_transformer(
        "vision", lambda index: SoftmaxAttention(8, 2), hidden_dim=8, pooling="sequence"
    )
    model, images = model.float().eval(), draw(2, 1, 4, 4).float()
    expected = model(images).logits
    found = model.to(dtype)(images.to(dtype)).logits
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.05)
