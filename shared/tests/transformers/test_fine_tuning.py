"""Fine-tuning: against a plain loop, with the lower blocks computed once, in all libraries."""

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from probseq.laplace import LaplaceLinear, laplace_model
from probseq.metrics import fit_temperature
from probseq.transformers import exchange_attention, fine_tune, remove_attention
from probseq.transformers.outputs import AttentionOutput


class Reader(nn.Module):
    """An encoder of torch, a norm and a head."""

    def __init__(self, depth=3, classes=3):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.5)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, classes)

    def forward(self, tokens, mask=None):
        hidden = self.encoder(tokens, src_key_padding_mask=mask)
        return {"logits": self.head(self.norm(hidden.mean(1)))}


def data(rows=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    tokens = torch.randn(rows, 5, 8, generator=generator)
    tokens[..., :3] += 2.0 * F.one_hot(labels, 3)[:, None]
    return tokens, labels


def make():
    torch.manual_seed(0)
    return Reader()


class Loader:
    """Counts how often it is read."""

    def __init__(self, *batches):
        self.batches, self.reads = batches, 0

    def __iter__(self):
        self.reads += 1
        return iter(self.batches)


def test_weights_and_temperature_are_those_of_a_plain_loop():
    (inputs, labels), held = data(), data(seed=1)
    tuned = fine_tune(make(), [(inputs, labels)], [held], steps=8, every=8)
    plain = make().eval().requires_grad_(False)
    last = [*plain.encoder.layers[-1].parameters(), *plain.norm.parameters()]
    groups = [{"params": last, "lr": 1e-4}, {"params": plain.head.parameters(), "lr": 1e-3}]
    for group in groups:
        group["params"] = [p.requires_grad_() for p in group["params"]]
    optimizer = torch.optim.Adam(groups)
    for _ in range(8):
        optimizer.zero_grad()
        F.cross_entropy(plain(inputs)["logits"], labels).backward()
        optimizer.step()
    for found in tuned.model.parameters():
        assert found.requires_grad
        assert found.grad is None
    # Not the weights: of the keys' bias gradients are round-off, which Adam makes steps of.
    log_probs = plain(held[0])["logits"].log_softmax(-1)
    assert tuned.temperature == pytest.approx(fit_temperature(log_probs, held[1]), rel=1e-3)
    assert_close(tuned(held[0]), (log_probs / tuned.temperature).log_softmax(-1), rtol=0, atol=1e-4)
    assert list(tuned.losses) == [0, 8]


def test_the_loaders_are_read_once_and_lower_blocks_run_once_for_each_batch():
    train, held = (Loader(data(20, seed=n), data(8, seed=n + 1)) for n in (0, 5))
    model, calls = make(), []
    before = [p.clone() for p in model.encoder.layers[:2].parameters()]
    model.encoder.layers[0].linear1.register_forward_hook(lambda *_: calls.append(1))
    tuned = fine_tune(model, train, held, steps=60, every=20, learning_rates=(1e-3, 1e-2))
    assert (train.reads, held.reads) == (1, 1)
    assert len(calls) <= 4 + 2  # a batch each, the look at the blocks and at the last layer
    assert all(map(torch.equal, model.encoder.layers[:2].parameters(), before))
    assert min(tuned.losses.values()) < tuned.losses[0] - 0.2
    whole = fine_tune(make(), train, held, frozen=False, steps=6, every=3)
    assert train.reads > 3
    assert not torch.equal(whole.model.encoder.layers[0].linear1.weight, before[0])


def test_the_best_step_by_validation_stays():
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs, labels = data()
    held = (inputs, (labels + 1) % 3)  # where training makes things worse
    tuned = fine_tune(
        model, [(inputs, labels)], [held], steps=20, every=5, learning_rates=(0.1, 0.1)
    )
    assert min(tuned.losses, key=tuned.losses.get) == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_laplace_is_that_of_the_fine_tuned_model():
    train, held = [data(), data(20, seed=3)], [data(30, seed=1)]
    tuned = fine_tune(make(), train, held, uncertainty="laplace", steps=10, every=5)
    assert isinstance(tuned.model.head, LaplaceLinear)
    plain = fine_tune(make(), train, held, steps=10, every=5).model
    expected = laplace_model(plain, train, validation=held)
    assert tuned.model.head.prior_precision == expected.head.prior_precision
    assert_close(tuned.model(held[0][0])["logits"], expected(held[0][0])["logits"])


class Costly(nn.Module):
    """Attention that draws, with a parameter and a penalty of a thousand nats and more."""

    stochastic = True

    def __init__(self, dim, heads):
        super().__init__()
        self.mix, self.cost = nn.Linear(dim, dim), nn.Parameter(torch.tensor(50.0))

    def forward(self, x, mask=None, *, token_map=None, generator=None, num_samples=None):
        noise = torch.randn(x.shape, generator=generator)
        return AttentionOutput(self.mix(x) + 0.1 * noise, self.cost.square())


def test_what_is_put_in_is_trained_and_pays_a_penalty_that_starts_below_the_loss():
    seen = []

    def put(model, calibration):
        seen.append(calibration)
        return exchange_attention(model, Costly)

    (inputs, labels), model = data(), make()
    given = {"uncertainty": put, "steps": 1, "every": 1, "learning_rates": (1e-3, 0.1)}
    # Two examples: 1 / N of the penalty would be 1250.
    tuned = fine_tune(model, [(inputs[:2], labels[:2])], [(inputs, labels)], **given)
    assert torch.equal(seen[0], inputs[:2])
    assert tuned.num_samples == 10
    one, other = (tuned(inputs, generator=torch.Generator().manual_seed(n)) for n in (0, 1))
    assert not torch.equal(one, other)
    gradient = []

    class Watched(Costly):
        def __init__(self, dim, heads):
            super().__init__(dim, heads)
            self.cost.register_hook(lambda g: gradient.append(float(g)))

    given |= {"uncertainty": lambda model, calibration: exchange_attention(model, Watched)}
    fine_tune(make(), [(inputs[:2], labels[:2])], [(inputs, labels)], **given)
    # d(w c²)/dc = 2 c w with w c² = the first loss
    assert 0 < gradient[0] < 2 * 5.0 / 50.0
    remove_attention(model)
    assert isinstance(model.encoder.layers[-1].self_attn, nn.MultiheadAttention)


def timm_model():
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=3, **sizes)


def resnet_model():
    return pytest.importorskip("timm").create_model("test_resnet", num_classes=3)


def torchvision_model():
    models = pytest.importorskip("torchvision").models
    sizes = {"num_layers": 3, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 16, "num_classes": 3}
    model = models.VisionTransformer(image_size=8, patch_size=4, **sizes)
    nn.init.normal_(model.heads.head.weight)
    return model


def dinov2_model():
    transformers = pytest.importorskip("transformers")
    config = transformers.Dinov2Config(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, image_size=8, patch_size=4,
        num_labels=3,
    )  # fmt: skip
    return transformers.Dinov2ForImageClassification(config)


def bert_model():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=12, num_labels=3,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def texts(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, 20, (rows, 6 + seed), generator=generator)
    tokens[:, 1] = 2 + torch.arange(rows) % 3
    mask = torch.arange(6 + seed) < torch.randint(3, 7, (rows, 1), generator=generator)
    return {"input_ids": tokens, "attention_mask": mask.long()}, torch.arange(rows) % 3


def images(rows, seed):
    labels = torch.arange(rows) % 3
    drawn = torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return drawn + 2.0 * F.one_hot(labels, 3)[:, :, None, None], labels


@pytest.mark.filterwarnings("ignore:the temperature 0.05 is a bound")  # these are easy
@pytest.mark.parametrize(
    ("build", "draw"),
    [
        (timm_model, images),
        (torchvision_model, images),
        (resnet_model, images),
        (dinov2_model, images),
        (bert_model, texts),
    ],
)
def test_models_of_all_libraries_are_trained_from_what_lower_blocks_gave(build, draw, monkeypatch):
    train, held = [draw(12, 0), draw(6, 1)], [draw(9, 2)]

    def tuned():
        torch.manual_seed(0)
        rates = (1e-2, 1e-2)
        return fine_tune(build(), train, held, steps=10, every=10, learning_rates=rates)

    found = tuned()
    # The same, with all blocks run at each step.
    monkeypatch.setattr("probseq.transformers.fine_tuning._Lower.record", lambda *_: None)
    expected = tuned()
    assert_close(found(held[0][0]), expected(held[0][0]), rtol=1e-3, atol=1e-4)
    assert found.losses[10] == pytest.approx(expected.losses[10], rel=1e-3)
    assert abs(found.losses[10] - found.losses[0]) > 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": []}, "train and validation must hold batches, got none"),
        ({"validation": []}, "train and validation must hold batches, got none"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"learning_rates": (0.0, 1.0)}, "learning_rates must be positive"),
        ({"uncertainty": "kepsvgp"}, "must be 'laplace', a function or None, got 'kepsvgp'"),
        ({"train": [(data()[0], data()[1] + 1)]}, "labels must be from 0 to 2"),
        ({"train": [(data()[0] * math.inf, data()[1])]}, "the loss must stay finite"),
        (
            {"model": nn.Sequential(nn.Linear(8, 3), nn.Flatten()), "uncertainty": "laplace"},
            r"model must end with an nn\.Linear",
        ),
    ],
)
def test_senseless_arguments_are_refused_and_gradients_come_back(changes, message):
    given = {"model": make(), "train": [data()], "validation": [data(seed=1)], **changes}
    with pytest.raises(ValueError, match=message):
        fine_tune(**given)
    assert all(parameter.requires_grad for parameter in given["model"].parameters())


@pytest.mark.slow
def test_a_compiled_model_is_trained_as_it_is_written():
    # In a process of its own: the shape checks of a test session cannot be traced.
    code = """
import torch
from torch import nn
from probseq.transformers import fine_tune

def new():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(64, 3)).eval()

x, y = torch.randn(40, 4, 16, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
expected = fine_tune(new(), [(x, y)], [(x, y)], steps=5, uncertainty="laplace")
for called in (False, True):
    model = torch.compile(new(), backend="eager")
    with torch.no_grad():
        model(x) if called else None
    found = fine_tune(model, [(x, y)], [(x, y)], steps=5, uncertainty="laplace")
    torch.testing.assert_close(found(x), expected(x))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
