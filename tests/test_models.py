"""What works with what: each model of other libraries with each thing that can be done to it.

The table of the site's page is what this file finds. Where a deviation fits, it is put into the
attention itself, too: softmax attention is replaced by one that adds the deviation to each head.
"""

import copy
import importlib
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import sgpa
from probseq.laplace import laplace_model
from probseq.transformers import (
    SoftmaxAttention,
    active_dropout,
    exchange_attention,
    held_functions,
    remove_attention,
    sample_predictions,
)
from probseq.transformers.adapters import replace_attention
from probseq.transformers.layouts import find_attention

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of these libraries
]
PAGE = Path(__file__).parents[1] / "apps/docs/extend/models.md"
COLUMNS = ("deviation", "own layers", "held functions", "MC dropout", "temperature", "Laplace")
BATCH, TOKENS, CLASSES = 12, 7, 3


def images(size=32):
    return torch.randn(BATCH, 3, size, size, generator=torch.Generator().manual_seed(1))


def texts():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 20, (BATCH, TOKENS), generator=generator)
    ids[:, -1] = 2  # the end
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class Encoder(nn.Module):
    """Torch's own encoder, with dropout."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.head(self.encoder(x)[:, 0])


def torch_encoder():
    generator = torch.Generator().manual_seed(1)
    return Encoder(), torch.randn(BATCH, TOKENS, 16, generator=generator)


def torchvision_vit():
    module = importlib.import_module("torchvision.models.vision_transformer")
    model = module.VisionTransformer(32, 8, 2, 2, 16, 32, dropout=0.1, num_classes=CLASSES)
    nn.init.normal_(model.heads.head.weight)  # zero as it comes
    return model, images()


def torchvision_swin(**blocks):
    module = importlib.import_module("torchvision.models.swin_transformer")
    given = {name: getattr(module, value) for name, value in blocks.items()}
    sizes = {"num_classes": CLASSES, "dropout": 0.1, **given}
    return module.SwinTransformer([2, 2], 16, [2], [2], [2, 2], **sizes), images()


def torchvision_swin_v2():
    return torchvision_swin(block="SwinTransformerBlockV2", downsample_layer="PatchMergingV2")


def torchvision_resnet():
    module = importlib.import_module("torchvision.models.resnet")
    return module.ResNet(module.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES), images()


def of_timm(name, size=32, **sizes):
    timm = importlib.import_module("timm")
    return timm.create_model(name, num_classes=CLASSES, **sizes), images(size)


def plain(**more):
    return {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, **more}


def of_transformers(kind, task, inputs, **changes):
    transformers = importlib.import_module("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "num_labels": CLASSES, "pad_token_id": 0}
    sizes |= {"vocab_size": 20, "image_size": 32, "patch_size": 8} | changes
    config = transformers.AutoConfig.for_model(kind, **sizes)
    auto = getattr(transformers, f"AutoModelFor{task}Classification")
    if kind == "deit":  # the first of its two classes
        auto = transformers.DeiTForImageClassification
        return auto(config), inputs
    return auto.from_config(config), inputs


def vision(kind, **changes):
    return lambda: of_transformers(kind, "Image", images(), **changes)


def text(kind, **changes):
    return lambda: of_transformers(kind, "Sequence", texts(), **changes)


SMALL = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
SMALL |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
VISION = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32}
VISION |= {"intermediate_size": 32, "patch_size": 8}
T5 = {
    "decoder_start_token_id": 0,
    "eos_token_id": 2,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
}
SWIN = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (2, 2)}
SWIN |= {"num_heads": (2, 2), "proj_drop_rate": 0.1}
MODELS: dict[str, Callable[[], tuple[nn.Module, object]]] = {
    "torch: TransformerEncoder": torch_encoder,
    "torchvision: ViT": torchvision_vit,
    "torchvision: Swin": torchvision_swin,
    "torchvision: Swin v2": torchvision_swin_v2,
    "torchvision: ResNet": torchvision_resnet,
    "timm: ViT, DeiT": lambda: of_timm("vit_tiny_patch16_224", **plain(proj_drop_rate=0.1)),
    "timm: BEiT": lambda: of_timm(
        "beit_base_patch16_224", **plain(proj_drop_rate=0.1, init_values=None)
    ),
    "timm: EVA-02": lambda: of_timm("eva02_tiny_patch14_224", **plain(proj_drop_rate=0.1)),
    "timm: Swin": lambda: of_timm("swin_tiny_patch4_window7_224", **SWIN),
    "timm: Swin v2": lambda: of_timm("swinv2_tiny_window8_256", **SWIN),
    "timm: FastViT": lambda: of_timm("fastvit_sa12", 64),
    "timm: ConvNeXt": lambda: of_timm("convnext_atto"),
    "transformers: ViT": vision("vit", hidden_dropout_prob=0.1),
    "transformers: DeiT": vision("deit", hidden_dropout_prob=0.1),
    "transformers: DINOv2": vision("dinov2", mlp_ratio=2, hidden_dropout_prob=0.1),
    "transformers: BEiT": vision("beit", hidden_dropout_prob=0.1),
    "transformers: SigLIP": vision("siglip", vision_config=VISION),
    "transformers: BERT": text("bert"),
    "transformers: RoBERTa": text("roberta"),
    "transformers: XLM-R": text("xlm-roberta"),
    "transformers: ELECTRA": text("electra", embedding_size=16),
    "transformers: DistilBERT": text("distilbert", dim=16, n_layers=2, n_heads=2, hidden_dim=32),
    "transformers: ALBERT": text("albert", embedding_size=16, hidden_dropout_prob=0.1),
    "transformers: DeBERTa": text("deberta-v2"),
    "transformers: ModernBERT": text("modernbert", classifier_dropout=0.1),
    "transformers: GPT-2": text("gpt2", n_embd=16, n_layer=2, n_head=2),
    "transformers: Llama": text("llama", num_key_value_heads=1),
    "transformers: Mistral": text("mistral", num_key_value_heads=1),
    "transformers: Qwen2": text("qwen2", num_key_value_heads=1),
    "transformers: Qwen3": text("qwen3", num_key_value_heads=1, head_dim=8),
    "transformers: BART": text("bart", **SMALL, eos_token_id=2, forced_eos_token_id=2),
    "transformers: T5": text("t5", **T5),
}


def run(model, inputs):
    """The logits."""
    out = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    return out if isinstance(out, torch.Tensor) else out["logits"]


class Fixed(nn.Module):
    """A deviation that is one function of the lengths of pairs of a query, which rotary positions
    leave as they are.
    """

    def __init__(self, heads, query, value):
        super().__init__()
        generator = torch.Generator().manual_seed(heads + query)
        self.register_buffer("weight", torch.randn(heads, query // 2, value, generator=generator))

    def forward(self, queries, **_):
        return self.of_heads(queries)[None]

    def of_heads(self, queries):  # (heads, batch, tokens, width)
        pairs = torch.hypot(*queries.chunk(2, -1))
        return (pairs @ self.weight[:, None]).tanh()

    def place(self, *_, **__):
        pass


@contextmanager
def inside(module, fixed):
    """Let softmax attention in a module add a function of the queries to each head."""
    attend, calls = F.scaled_dot_product_attention, []

    def deviating(q, *args, **named):
        calls.append(q)
        more = fixed.of_heads(q.transpose(0, 1))
        return attend(q, *args, **named) + more.transpose(0, 1)

    with pytest.MonkeyPatch.context() as patch:
        forward = type(module).forward

        def of_module(self, *args, **named):
            if self is module:
                with pytest.MonkeyPatch.context() as inner:
                    inner.setattr(F, "scaled_dot_product_attention", deviating)
                    return forward(self, *args, **named)
            return forward(self, *args, **named)

        patch.setattr(type(module), "forward", of_module)
        yield calls


@torch.no_grad()
def deviates(model, inputs):
    given = {"num_inducing": 4, "initial_variance": 9.0, "calibration": inputs}
    sgpa.replace_attention(model, **given)
    drawn = [sampled(model, inputs, seed) for seed in (0, 0, 1)]
    assert drawn[0].shape == (3, BATCH, CLASSES)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0][0], drawn[0][1])
    remove_attention(model).double()
    if torch.is_tensor(inputs):
        inputs = inputs.double()
    before, module = run(model, inputs), list(find_attention(model).values())[-1]
    replace_attention(model, Fixed, calibration=inputs)
    fixed, change = module.deviation.process, run(model, inputs) - before
    remove_attention(model)
    with inside(module, fixed) as calls:
        expected = run(model, inputs) - before
    if calls:  # Swin of torchvision has its own softmax
        assert_close(change, expected, rtol=1e-6, atol=1e-6 * float(change.abs().max()))
    assert change.abs().max() > 0.0


def sampled(model, inputs, seed):
    given = {"num_samples": 3, "generator": torch.Generator().manual_seed(seed)}
    named = inputs if isinstance(inputs, Mapping) else {}
    out = sample_predictions(model, *(() if named else (inputs,)), **named, **given)
    return out if torch.is_tensor(out) else out["logits"]


@torch.no_grad()
def holds(model, inputs):
    sgpa.replace_attention(model, num_inducing=4, initial_variance=9.0, calibration=inputs)
    with pytest.MonkeyPatch.context() as patch:
        # What tokens draw for themselves is left out: the functions stay.
        target = "sgpa.beyond.process.residual_deviation"
        patch.setattr(target, lambda w: torch.zeros_like(w[..., :1]))
        with held_functions(model):
            one, two = run(model, inputs), run(model, inputs)
        assert torch.equal(one, two)
        assert not torch.equal(run(model, inputs), one)


@torch.no_grad()
def exchanges(model, inputs):
    before = run(model, inputs)
    exchange_attention(model, SoftmaxAttention)
    found = run(model, inputs)
    assert found.isfinite().all()
    assert not torch.allclose(found, before)
    assert_close(run(remove_attention(model), inputs), before)


@torch.no_grad()
def drops(model, inputs):
    model = active_dropout(model)
    if torch.equal(run(model, inputs), run(model, inputs)):
        raise ValueError("model has no dropout")


def tempered(model, inputs):
    found = sgpa.calibrate(model, inputs, [(inputs, labels())], deviations=(0.0,))
    assert found(inputs).shape == (BATCH, CLASSES)


def laplace(model, inputs):
    found = laplace_model(model, [(inputs, labels())])
    with torch.no_grad():
        assert not torch.allclose(run(found, inputs), run(model, inputs))


def labels():
    return torch.arange(BATCH) % CLASSES


TRIED = (deviates, exchanges, holds, drops, tempered, laplace)


def tried(name):
    """Whether each thing works with a model; what does not is refused by a ValueError."""
    cells = []
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    for attempt in TRIED:
        torch.manual_seed(0)
        try:
            attempt(copy.deepcopy(model).eval(), inputs)
        except ValueError:
            cells.append("-")
        else:
            cells.append("yes")
    return f"| {name} | {' | '.join(cells)} |"


@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_the_site_says_what_works(name):
    pytest.importorskip(name.partition(":")[0])
    row = tried(name)
    assert row in PAGE.read_text(encoding="utf-8").splitlines(), row
