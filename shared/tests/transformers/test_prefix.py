"""Blocks before the first random layer run once for all samples, and change no sample."""

import pytest
import torch
from torch import nn

from probseq.transformers.calls import state_of
from probseq.transformers.prefix import open_blocks, shared_prefix


class Block(nn.Module):
    """Mixes tokens; counts its calls and what went through it."""

    def __init__(self, inplace=False):
        super().__init__()
        self.linear, self.inplace, self.rows = nn.Linear(4, 4), inplace, 0

    def forward(self, x, cache=None):
        self.rows += len(x)
        if cache is not None:
            cache.append(len(x))
        return self.linear(x) + x.mean(1, keepdim=True)


class Noise(nn.Module):
    def forward(self, x):
        state_of(self).reached(len(x))
        return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(1))


class Model(nn.Module):
    """Three blocks, the first of which is called twice, noise, and one more block."""

    def __init__(self, change=False, caches=False, tuples=False):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last, self.noise = nn.ModuleList([Block()]), Noise()
        self.change, self.caches, self.cache = change, caches, []

    def forward(self, x):
        given = {"cache": self.cache} if self.caches else {}
        for block in (self.blocks[0], *self.blocks):
            x = block(x, **given)
            if self.change:
                x += 1.0
        return self.last[0](self.noise(x))


def rows(model):
    return [block.rows for block in (*model.blocks, *model.last)]


def run(model, x, samples=3):
    folded, undo = x.repeat(samples, 1, 1), open_blocks(model)
    try:
        with shared_prefix(model, lambda: model(x), [model.noise], samples):
            return model(folded)
    finally:
        for one in undo:
            one()


def block():
    return nn.Sequential(nn.Linear(4, 4))


@pytest.fixture
def x():
    return torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))


def test_samples_are_those_of_a_whole_run_and_the_prefix_is_computed_once(x):
    model = Model().eval()
    expected = model(x.repeat(3, 1, 1))
    model = Model().eval()
    assert torch.equal(run(model, x), expected)
    assert rows(model) == [4, 2, 2, 6]  # the first block is called twice
    assert torch.equal(model(x.repeat(3, 1, 1)), expected)  # and nothing stays behind
    assert {type(part) for part in model.modules()} == {
        Model,
        Block,
        Noise,
        nn.ModuleList,
        nn.Linear,
    }


def test_gradients_flow_through_what_is_shared(x):
    one, two = Model().eval(), Model().eval()
    one(x.repeat(3, 1, 1)).square().sum().backward()
    run(two, x).square().sum().backward()
    for whole, shared in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(shared.grad, whole.grad)


@pytest.mark.parametrize("kind", ["change", "caches"])
def test_blocks_with_side_effects_run_for_all_samples(x, kind):
    model = Model(**{kind: True}).eval()
    expected = model(x.repeat(3, 1, 1))
    model = Model(**{kind: True}).eval()
    assert torch.equal(run(model, x), expected)
    assert rows(model) == [16, 8, 8, 6]  # once for the batch, to look, and then for all samples


def test_training_mode_tokens_before_the_batch_and_inference_tensors_run_as_a_whole(x):
    model = Model().train()
    run(model, x)
    assert rows(model) == [12, 6, 6, 6]
    model = Model().eval()
    model.other = nn.MultiheadAttention(4, 2)
    run(model, x)
    assert rows(model) == [12, 6, 6, 6]
    model = Model().eval()
    with torch.inference_mode():
        assert torch.equal(run(model, x), Model().eval()(x.repeat(3, 1, 1)))


def test_a_refused_call_leaves_the_model(x):
    model = Model().eval()
    with pytest.raises(RuntimeError, match="shapes"):
        run(model, x[..., :3])
    assert {type(part) for part in model.modules()} == {
        Model,
        Block,
        Noise,
        nn.ModuleList,
        nn.Linear,
    }
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


class Around(nn.Module):
    """What ``before`` gives goes through noise, and ``after``; some of them may be the same."""

    def __init__(self, before, *blocks):
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.noise = nn.ModuleList(blocks), Noise()
        self.before = before

    def forward(self, x):
        return self.noise(self.before(self.blocks, x))


class Added(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Identity()

    def forward(self, x):
        x += 1.0
        return 2.0 * x


class Swapped(Added):
    def forward(self, x):
        return x.transpose(0, 1)


def tokens_first(blocks, x):
    return blocks[0](x.transpose(0, 1)).transpose(0, 1)


def inside_tokens_first(blocks, x):
    x = blocks[0](x)  # (tokens, batch, dim)
    return torch.cumsum(x, 0).transpose(0, 1)  # mixes tokens


AROUND = {
    "tokens before the batch": lambda: Around(tokens_first, block()),
    "a block that swaps them": lambda: Around(inside_tokens_first, Swapped()),
    "a table without a batch": lambda: Around(
        lambda blocks, x: x + blocks[0](torch.ones(1, 5, 4)), block()
    ),
    "an input changed in place": lambda: Around(
        lambda blocks, x: (y := 3.0 * x) + blocks[0](y), Added()
    ),
}


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", AROUND)
def test_what_has_no_batch_first_or_changes_its_input_is_not_shared(kind, batch):
    model, x = AROUND[kind]().eval(), torch.randn(batch, 5, 4)
    expected = model(x.repeat(3, 1, 1))
    torch.testing.assert_close(run(model, x), expected)


def test_a_block_that_is_called_behind_the_noise_too_runs_there(x):
    model = Around(lambda blocks, x: blocks[0](x), block()).eval()
    model.forward = lambda x: model.blocks[0](model.noise(model.blocks[0](x)))
    expected = model(x.repeat(3, 1, 1))
    torch.testing.assert_close(run(model, x), expected)


def test_hooks_act_once_and_see_all_samples(x):
    model, seen = Model().eval(), []
    model.blocks[2].register_forward_hook(lambda module, args, output: 2.0 * output)
    model.blocks[1].linear.register_forward_hook(lambda module, args, _: seen.append(len(args[0])))
    expected = model(x.repeat(3, 1, 1))
    torch.testing.assert_close(run(model, x), expected)
    assert seen == [6, 2, 6]  # a whole run; to look; and then for all samples
