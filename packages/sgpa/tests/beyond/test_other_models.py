"""Deviations beside attention: in threads, compiled, wrapped, behind LoRA, and of any shape."""

import copy
import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from probseq.testing.instruments import constant_noise
from probseq.transformers import (
    Layout,
    deviations,
    held_functions,
    remove_attention,
    sample_predictions,
)
from sgpa import calibrate, load_calibrated, replace_attention

MANY = 40


def draws(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Classifier(nn.Module):
    """An encoder of three layers, positions, and a head."""

    def __init__(self, batch_first=True):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.positions, self.head = nn.Embedding(9, 16), nn.Linear(16, 3)
        self.batch_first = batch_first

    def forward(self, x, positions=None):
        if positions is not None:
            x = x + self.positions(positions)
        return self.head(self.encoder(x).mean(int(self.batch_first)))


def changed(model=None, calibration=None, **options):
    """A classifier with a wide deviation in its last layer."""
    given = {"num_inducing": 8, "initial_variance": 9.0, "rho": 0.1, **options}
    given["calibration"] = draws(20, 5, 16) if calibration is None else calibration
    generator = torch.Generator().manual_seed(0)
    model = Classifier().eval() if model is None else model
    return replace_attention(model, generator=generator, **given)


def in_threads(work, count=MANY):
    """What a function of a number gives in eight threads, which change at every chance."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(work, range(count)))
    finally:
        sys.setswitchinterval(before)


def test_threads_get_the_answers_that_they_would_get_alone():
    model = changed()

    @torch.no_grad()
    def answer(number):
        generator = torch.Generator().manual_seed(number)
        x = draws(1 + number % 3, 5, 16, seed=number)
        return sample_predictions(model, x, num_samples=4, generator=generator)

    alone = [answer(number) for number in range(MANY)]
    for found, expected in zip(in_threads(answer), alone, strict=True):
        assert torch.equal(found, expected)


def test_threads_hold_their_functions_apart(monkeypatch):
    # What tokens draw for themselves is left out: the functions stay.
    monkeypatch.setattr(
        "sgpa.beyond.process.residual_deviation", lambda w: torch.zeros_like(w[..., :1])
    )
    model, x = changed(), draws(2, 5, 16)

    @torch.no_grad()
    def answers(number):
        with held_functions(model, generator=torch.Generator().manual_seed(number)):
            return [model(x) for _ in range(3)]

    alone = [answers(number)[0] for number in range(MANY)]
    for found, expected in zip(in_threads(answers), alone, strict=True):
        assert all(torch.equal(each, expected) for each in found)
    assert not torch.equal(alone[0], alone[1])


@pytest.mark.slow
def test_compiled_models_deviate_as_they_do_uncompiled():
    # In a process of its own: the shape checks of a test session cannot be traced.
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch, sgpa
from test_other_models import Classifier, changed, draws
from probseq.transformers import *

def compiled(model):
    return torch.compile(model, backend="eager")

def outside(model):
    return compiled(model)

def called(model):
    model = compiled(model)
    with torch.no_grad():
        model(x)
    return model

def in_place(model):
    model.compile(backend="eager")
    return model

def a_layer(model):
    model.encoder.layers[2] = compiled(model.encoder.layers[2])
    return model

def an_attention(model):
    layer = model.encoder.layers[2]
    layer.self_attn = compiled(layer.self_attn)
    return model

def answers(model):
    found = []
    for sigma in (0.0, 1.0, 10.0):
        for process in deviations(model).values():
            process.set_deviation(sigma)
        generator = torch.Generator().manual_seed(0)
        found.append(sample_predictions(model, x, num_samples=3, generator=generator))
    return found

# Factors of Cholesky enlarge what compiled and shared computations round in another order.
def held(model):
    with held_functions(model, generator=torch.Generator().manual_seed(0)):
        return model(x)

x, data = draws(4, 5, 16).double(), draws(20, 5, 16).double()
new = lambda: Classifier().double().eval()
plain = new()(x)
expected = answers(other := changed(new(), data))
assert not torch.allclose(expected[0], expected[1], atol=1e-3)
with torch.no_grad():
    for put in (outside, called, in_place, a_layer, an_attention):
        model = put(new())
        found = answers(changed(model, data))
        one, two = (held(each) for each in (model, other))
        torch.testing.assert_close(one, two, msg=lambda text: put.__name__ + text)
        torch.testing.assert_close(found, expected, msg=lambda text: put.__name__ + text)
        remove_attention(model)
        torch.testing.assert_close(model(x), plain, msg=lambda text: put.__name__ + text)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


class Around(nn.Module):
    """A wrapper of the module that it holds under a name."""

    def __init__(self, module, name):
        super().__init__()
        self.add_module(name, module)
        self.name = name

    def forward(self, *args, **named):
        return getattr(self, self.name)(*args, **named)


class OfPeft(Around):
    __module__ = "peft.peft_model"


WRAPPERS = {
    "DataParallel": nn.DataParallel,
    "PEFT": lambda model: OfPeft(OfPeft(model, "model"), "base_model"),
    "compiled": lambda model: torch.compile(model, backend="eager"),
}


@pytest.mark.filterwarnings("ignore::probseq.errors.BoundWarning")  # labels are not the model's
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_was_saved_loads_onto_a_wrapper_and_back(wrapper, tmp_path):
    wrap, x = WRAPPERS[wrapper], draws(30, 5, 16)
    given = {"num_inducing": 8, "num_samples": 3, "deviations": (3.0,)}
    model = Classifier().eval()
    found = calibrate(model, x, [(x, torch.arange(30) % 3)], **given)
    found.use("deviation")
    found.save(tmp_path)
    loaded = load_calibrated(tmp_path, wrap(Classifier()))
    assert deviations(loaded.model).keys() == deviations(model).keys()
    if wrapper != "compiled":  # the shape checks of a test session cannot be traced
        one, other = (m(x, generator=torch.Generator().manual_seed(0)) for m in (found, loaded))
        assert_close(one, other)
    loaded.save(tmp_path)
    assert load_calibrated(tmp_path, remove_attention(model)).chosen == "deviation"


def test_a_model_with_deviations_is_stored_as_it_is():
    model, x, content = changed(), draws(2, 5, 16), io.BytesIO()
    torch.save(model, content)
    content.seek(0)
    again = torch.load(content, weights_only=False)
    for other in (again, copy.deepcopy(model)):
        one, two = (
            sample_predictions(each, x, generator=torch.Generator().manual_seed(0))
            for each in (model, other)
        )
        assert torch.equal(one, two)
        remove_attention(other)
        assert {type(m) for m in other.modules()} == {type(m) for m in Classifier().modules()}
    assert deviations(model)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_deviations_of_blocks_that_are_attention_are_taken_away_in_any_order(order):
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.MultiheadAttention(16, 2) for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                x = layer(query=x, key=x, value=x)[0]
            return x

    model = Layers().eval()
    for layer in order:
        changed(model, draws(20, 5, 16), layers=[layer])
    assert list(deviations(model)) == ["layers.0", "layers.1"]
    remove_attention(model)
    assert [type(layer) for layer in model.layers] == [nn.MultiheadAttention] * 2


class Lora(nn.Module):
    """A layer and a product of rank two beside it, which is part of what the layer computes."""

    def __init__(self, base, inputs, outputs):
        super().__init__()
        self.base_layer, self.in_features, self.out_features = base, inputs, outputs
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x))

    def merged(self):
        layer, more = copy.deepcopy(self.base_layer), self.up.weight @ self.down.weight
        layer.weight.data += more if isinstance(layer, nn.Linear) else more.mT
        return layer


def vit_attention():
    return pytest.importorskip("timm").layers.Attention(16, 2, qkv_bias=True), "qkv", "proj"


def of_transformers(name, **settings):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name, **settings))
    return next(m for m in model.modules() if type(m).__name__.endswith("Attention"))


def gpt2_attention():
    return of_transformers("gpt2", n_embd=16, n_head=2, n_layer=1, vocab_size=9), "c_attn", "c_proj"


def dinov2_attention():
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "image_size": 28}
    attention = of_transformers("dinov2", **sizes)
    if not hasattr(attention, "q_proj"):
        pytest.skip("this version of transformers names its projections differently")
    return attention, "q_proj", "o_proj"


@torch.no_grad()
@pytest.mark.parametrize("case", [vit_attention, gpt2_attention, dinov2_attention])
def test_what_stands_in_a_projection_counts(case):
    torch.manual_seed(0)
    (adapted, *names), x = case(), draws(4, 5, 16).double()
    adapted.eval()
    for name in names:
        layer = getattr(adapted, name)
        shape = layer.weight.shape if isinstance(layer, nn.Linear) else layer.weight.mT.shape
        nn.init.normal_(layer.bias)
        setattr(adapted, name, Lora(layer, shape[1], shape[0]))
    merged = copy.deepcopy(adapted.double())
    for name in names:
        setattr(merged, name, getattr(adapted, name).merged())
    outputs = []
    for attention in (merged, adapted):
        changed(attention, draws(20, 5, 16).double())
        with constant_noise(1.0):
            out = attention(x)
        outputs.append(out if isinstance(out, torch.Tensor) else out[0])
    assert_close(outputs[1], outputs[0])
    remove_attention(adapted)
    plain = adapted(x)
    assert not torch.allclose(outputs[1], plain if torch.is_tensor(plain) else plain[0], atol=0.1)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_quantised_projections_are_called():
    attention, x = vit_attention()[0].eval(), draws(4, 5, 16)
    quantised = torch.ao.quantization.quantize_dynamic(attention, {nn.Linear})
    plain = quantised(x)
    changed(quantised, draws(20, 5, 16))
    (process,) = deviations(quantised).values()
    queries = quantised.qkv(x)[..., :16].unflatten(-1, (2, 8)).permute(2, 0, 1, 3)
    with constant_noise(1.0):
        drawn = process(queries)[0].permute(1, 2, 0, 3).flatten(2)
        found = quantised(x)
    assert_close(found, plain + quantised.proj(drawn) - quantised.proj(torch.zeros(1, 16)))


def test_a_halved_model_keeps_its_deviation_in_full_precision():
    model, x = changed(), draws(4, 5, 16)
    expected = sample_predictions(model, x, generator=torch.Generator().manual_seed(0))
    (process,) = deviations(model).values()
    before = process.inducing_inputs.clone()
    model.bfloat16()
    assert torch.equal(process.inducing_inputs, before)
    generator = torch.Generator().manual_seed(0)
    found = sample_predictions(model, x.bfloat16(), generator=generator)
    assert found.dtype == torch.bfloat16
    assert_close(found.float(), expected, rtol=0.0, atol=0.1)
    assert {p.dtype for p in model.double().parameters()} == {torch.float64}


# -- Shapes ---------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 4, 5])
def test_what_is_for_all_inputs_is_not_repeated(batch):
    model, x = changed(), draws(batch, 5, 16)
    positions = torch.arange(5)
    found = [
        sample_predictions(
            model, x, positions=each, num_samples=3, generator=torch.Generator().manual_seed(0)
        )
        for each in (positions.expand(1, 5), positions.expand(batch, 5))
    ]
    assert found[0].shape == (3, batch, 3)
    assert torch.equal(found[0], found[1])


@torch.no_grad()
@pytest.mark.parametrize(("batch", "tokens"), [(4, 5), (64, 2), (5, 5)])
def test_tokens_before_the_batch_are_refused_and_not_repeated_as_if_they_were_inputs(batch, tokens):
    model = changed(Classifier(batch_first=False).eval(), draws(5, 20, 16))
    with pytest.raises(ValueError, match="inputs must have the batch as their first axis: 4 samp"):
        sample_predictions(model, draws(tokens, batch, 16), num_samples=4)


def test_other_first_axes_are_refused():
    model = changed()
    with pytest.raises(ValueError, match=r"first axis, got shapes \{'0': \(4, 5, 16\), 'pos.*\(5"):
        sample_predictions(model, draws(4, 5, 16), positions=torch.arange(5))
    model.head = nn.Flatten(0)
    model.forward = lambda x: model.encoder(x).mean((0, 1))
    with pytest.raises(ValueError, match=r"model must return .* shape \(16,\) for 3 samples of 4"):
        sample_predictions(model, draws(4, 5, 16), num_samples=3)


# -- What is known --------------------------------------------------------------------------------


class Own(nn.Module):
    """Softmax attention of somebody's own."""

    layout = Layout("to_qkv", "to_out", fused=True, heads="count")

    def __init__(self):
        super().__init__()
        self.to_qkv, self.to_out, self.count = nn.Linear(16, 48), nn.Linear(16, 16), 2

    def forward(self, tokens):
        q, k, v = self.to_qkv(tokens).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.to_out(mixed.transpose(1, 2).flatten(2))


@torch.no_grad()
def test_a_layout_of_ones_own_makes_a_class_known():
    torch.manual_seed(0)
    model, x = nn.Sequential(Own()), draws(4, 5, 16)
    plain = model(x)
    changed(model, draws(20, 5, 16))
    process = deviations(model)["0"]
    heads = model[0].to_qkv(x)[..., :16].unflatten(-1, (2, 8)).permute(2, 0, 1, 3)
    with constant_noise(1.0):
        drawn = process(heads)[0].permute(1, 2, 0, 3).flatten(2)
        found = model(x)
    assert_close(found, plain + drawn @ model[0].to_out.weight.mT)


def test_a_layout_that_names_what_is_not_there_is_refused(monkeypatch):
    for layout, message in (
        (Layout("to_q", "to_out", heads="count"), "must have what its layout names, .* no 'to_q'"),
        (Layout("to_qkv", "to_out", fused=True), "Own must have a number of heads: num_heads"),
    ):
        monkeypatch.setattr(Own, "layout", layout)
        with pytest.raises(ValueError, match=message):
            changed(nn.Sequential(Own()))


class Reversed(nn.MultiheadAttention):
    def forward(self, query, key, value, **named):
        return super().forward(query.flip(1), key, value, **named)


class Pooled(nn.Module):
    """Attention of one learned query to all tokens."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.query = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x):
        return self.attention(self.query.expand(len(x), -1, -1), x, x)[0][:, 0]


def test_what_is_another_attention_is_refused_by_name():
    with pytest.raises(ValueError, match="none among its modules: Reversed"):
        changed(nn.Sequential(Reversed(16, 2)))
    with pytest.raises(ValueError, match="layers must be without attention, whose queries are the"):
        changed(Pooled())
    model = Classifier()
    attention = model.encoder.layers[2].self_attn
    attention.forward = attention.forward
    with pytest.raises(ValueError, match=r"self_attn, a Multihead.*its forward was set on it"):
        changed(model)
    model = changed().eval()
    model.forward = lambda x: x[:, 0]
    with pytest.raises(ValueError, match="model must call its attention layers"):
        sample_predictions(model, draws(4, 5, 16))


def test_other_modules_of_timm_that_are_called_attention_are_refused_by_name():
    timm = pytest.importorskip("timm")
    # Channels before places; heads that are not side by side.
    fastvit, nest = timm.models.fastvit.Attention(32, head_dim=16), timm.models.nest.Attention(16)
    for attention, name in ((fastvit, "fastvit"), (nest, "nest")):
        with pytest.raises(ValueError, match=rf"modules: timm\.models\.{name}\.Attention"):
            changed(nn.Sequential(attention))


@torch.no_grad()
def test_the_bias_of_beits_queries_counts():
    timm = pytest.importorskip("timm")
    attention, x = (
        timm.models.beit.Attention(16, 2, qkv_bias=True).double(),
        draws(4, 5, 16).double(),
    )
    nn.init.normal_(attention.q_bias)
    plain = attention(x)
    changed(attention, draws(20, 5, 16).double())
    (process,) = deviations(attention).values()
    queries = nn.functional.linear(x, attention.qkv.weight[:16], attention.q_bias)
    with constant_noise(1.0):
        drawn = process(queries.unflatten(-1, (2, 8)).permute(2, 0, 1, 3))[0]
        found = attention(x)
    assert_close(found, plain + drawn.permute(1, 2, 0, 3).flatten(2) @ attention.proj.weight.mT)
