"""Sparse GPs beside the attention of torch's, torchvision's, timm's and transformers' models."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from probseq.testing.drop_in import DropInSuite, first_tensor
from probseq.testing.instruments import constant_noise
from probseq.transformers import deviations, held_functions, remove_attention, sample_predictions
from sgpa import replace_attention

MASK = torch.arange(6) < torch.tensor([[6], [2], [4]])


def tokens(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Residual(DropInSuite):
    def replace(self, model, **options):
        options = {"num_inducing": 8, "rho": 0.1, **options}  # away from the prior
        if options.get("calibration") is None:
            with pytest.warns(UserWarning, match="without calibration data"):
                return replace_attention(model, **options)
        return replace_attention(model, **options)

    def at_prior(self, model):
        return replace_attention(model, num_inducing=8, rho=1.0, calibration=self.inputs())

    def silence(self, process):
        process.set_deviation(0.0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
class TestEncoder(Residual):
    def model(self):
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        return nn.TransformerEncoder(layer, 2)

    def inputs(self):
        # True: hidden.
        return {"src": tokens(3, 6, 16), "src_key_padding_mask": ~MASK}

    def run(self, model):
        # What a layer computes at padding depends on whether its fast path is open.
        return super().run(model)[MASK]

    @torch.no_grad()
    def test_nested_tensors_come_back_with_the_old_attention(self):
        model = self.new()
        assert model.use_nested_tensor
        self.replace(model, layers="last", calibration=self.inputs())
        assert not model.use_nested_tensor
        remove_attention(model)
        assert model.use_nested_tensor

    @torch.no_grad()
    def test_hidden_tokens_change_nothing(self):
        model, inputs = self.changed(), self.inputs()
        junk = {**inputs, "src": inputs["src"].masked_fill(~MASK[..., None], 9.0)}
        for noise in (0.0, 1.0):
            with constant_noise(noise):
                assert_close(model(**junk)[MASK], model(**inputs)[MASK])


class TestTorchvisionViT(Residual):
    def model(self):
        vit = pytest.importorskip("torchvision.models.vision_transformer")
        model = vit.VisionTransformer(8, 4, 2, 2, 16, 32, num_classes=3)
        nn.init.normal_(model.heads.head.weight)  # zero as it comes
        return model

    def inputs(self):
        return {"x": tokens(3, 3, 8, 8)}


class TestTorchvisionSwin(Residual):
    def model(self):
        swin = pytest.importorskip("torchvision.models.swin_transformer")
        return swin.SwinTransformer([2, 2], 8, [2], [2], [2, 2], num_classes=3)

    def inputs(self):
        return {"x": tokens(3, 3, 16, 16)}


class TestTimm(Residual):
    options = {}  # noqa: RUF012

    def model(self):
        timm = pytest.importorskip("timm")
        sizes = dict(img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=3)
        return timm.models.VisionTransformer(**sizes, **self.options)

    def inputs(self):
        return {"x": tokens(3, 3, 8, 8)}


class TestTimmWithNormalisedQueries(TestTimm):
    options = {"qk_norm": True}  # noqa: RUF012


def config(name, **changes):
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    sizes |= dict(vocab_size=20, max_position_embeddings=16, pad_token_id=0)
    return transformers, getattr(transformers, name)(**(sizes | changes))


class TestTransformersViT(Residual):
    def model(self):
        transformers, settings = config("ViTConfig", image_size=8, patch_size=4)
        return transformers.ViTForImageClassification(settings)

    def inputs(self):
        return {"pixel_values": tokens(3, 3, 8, 8)}


class Text(Residual):
    def inputs(self):
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(3, 20, (3, 6), generator=generator)
        return {"input_ids": ids * MASK, "attention_mask": MASK.long()}

    @torch.no_grad()
    def test_a_mapping_is_of_keywords(self):
        model, inputs = self.changed(), self.inputs()
        with constant_noise(1.0):
            whole = first_tensor(sample_predictions(model, inputs, num_samples=2))
            assert_close(whole, first_tensor(sample_predictions(model, **inputs, num_samples=2)))

    @torch.no_grad()
    def test_inducing_inputs_are_not_placed_on_padding(self):
        inputs = self.inputs()
        junk = {**inputs, "input_ids": torch.where(MASK, inputs["input_ids"], 7)}
        model = self.changed()
        placed = []
        for given in (inputs, junk):
            generator = torch.Generator().manual_seed(0)
            remove_attention(model)
            replace_attention(model, num_inducing=5, calibration=given, generator=generator)
            (process,) = deviations(model).values()
            placed.append(process.inducing_inputs.clone())
        assert_close(*placed)

    @torch.no_grad()
    def test_padding_changes_nothing(self):
        model, inputs = self.changed(), self.inputs()
        junk = {**inputs, "input_ids": torch.where(MASK, inputs["input_ids"], 7)}
        with constant_noise(1.0):
            first, second = (model(**given).logits for given in (inputs, junk))
        if first.ndim == 3:  # a decoder's tokens
            first, second = first[MASK], second[MASK]
        assert_close(first, second)


class TestBERT(Text):
    def model(self):
        transformers, settings = config("BertConfig")
        return transformers.BertForSequenceClassification(settings)


class TestRoBERTa(Text):
    def model(self):
        transformers, settings = config("RobertaConfig")
        return transformers.RobertaForSequenceClassification(settings)


class TestDistilBERT(Text):
    def model(self):
        transformers, settings = config("DistilBertConfig", dim=16, n_layers=2, n_heads=2)
        settings.hidden_dim = 32
        return transformers.DistilBertForSequenceClassification(settings)


class Decoder(Text):
    @torch.no_grad()
    def test_token_by_token_with_the_cache_is_the_whole_sequence(self, monkeypatch):
        # What single tokens draw for themselves is left out: the functions of a text stay.
        monkeypatch.setattr(
            "sgpa.beyond.process.residual_deviation", lambda w: torch.zeros_like(w[..., :1])
        )
        model, ids = self.changed(), self.inputs()["input_ids"].clamp(min=3)
        steps, cache = [], None
        with held_functions(model, generator=torch.Generator().manual_seed(0)):
            whole = model(input_ids=ids).logits
            for token in ids.split(1, dim=1):
                out = model(input_ids=token, past_key_values=cache, use_cache=True)
                steps.append(out.logits)
                cache = out.past_key_values
            with pytest.raises(ValueError, match="the batch must have 3 sequences"):
                model(input_ids=ids[:2])
        assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(model(input_ids=ids).logits, whole, rtol=1e-4, atol=1e-5)

    @pytest.mark.filterwarnings("ignore:.*attention mask")
    def test_beam_search_which_moves_texts_between_rows_is_refused_where_functions_are_held(self):
        model, ids = self.changed(), self.inputs()["input_ids"].clamp(min=3)
        given = {"max_new_tokens": 3, "pad_token_id": 0, "eos_token_id": 1}
        with held_functions(model):
            assert len(model.generate(ids, **given)) == 3
        for cached in (True, False):  # without a cache there is none to be reordered
            beams = {"num_beams": 2, "use_cache": cached, **given}
            with held_functions(model), pytest.raises(ValueError, match="not be used in beam sea"):
                model.generate(ids, **beams)
            assert len(model.generate(ids, **beams)) == 3
        cache = pytest.importorskip("transformers").DynamicCache()
        with held_functions(model):
            model(input_ids=ids, past_key_values=cache)
        cache.reorder_cache(torch.tensor([2, 1, 0]))  # afterwards
        assert type(remove_attention(model)) is type(self.model())

    @torch.no_grad()
    def test_a_cache_of_the_callers_sees_the_samples_and_nothing_else(self):
        cache = pytest.importorskip("transformers").DynamicCache
        model, ids = self.changed("last").double(), self.inputs()["input_ids"]
        torch.manual_seed(0)
        found = sample_predictions(model, num_samples=2, input_ids=ids, past_key_values=cache())
        torch.manual_seed(0)
        expected = model(ids.repeat(2, 1), past_key_values=cache())
        assert_close(found["logits"].flatten(0, 1), expected.logits)


class TestGPT2(Decoder):
    def model(self):
        transformers, settings = config("GPT2Config", n_embd=16, n_layer=2, n_head=2)
        return transformers.GPT2LMHeadModel(settings)


class TestLlama(Decoder):
    def model(self):
        transformers, settings = config("LlamaConfig", num_key_value_heads=1)
        return transformers.LlamaForCausalLM(settings)


@torch.no_grad()
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_deviation_starts_with_a_hundredth_of_the_variance_of_the_attention_s_output(batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    given = tokens(30, 8, 16)
    attention, seen = model.layers[-1].self_attn, []
    attention.register_forward_hook(lambda module, args, output: seen.append(output[0]))
    model(given)
    plain = seen[-1].flatten(0, 1).var(0).mean()
    replace_attention(model, num_inducing=8, calibration=given)
    attention.register_forward_hook(lambda module, args, output: seen.append(output[0]))
    with torch.no_grad():
        drawn = torch.stack([model(given) * 0 + seen[-1] for _ in range(100)])
    assert_close(drawn.var(0).mean(), 0.01 * plain, rtol=0.1, atol=0.0)


def test_multi_head_attention_deviates_as_the_residual_layer_does_in_all_its_forms():
    x = tokens(3, 5, 16).double()  # Cholesky factors enlarge what batches of other sizes round
    for options in ({}, {"batch_first": True}, {"bias": False}, {"kdim": 8, "vdim": 16}):
        torch.manual_seed(0)
        attention = nn.MultiheadAttention(16, 2, **options).double().eval()
        given = x if attention.batch_first else x.transpose(0, 1)
        key = given[..., : attention.kdim]
        plain = attention(given, key, given)[0]
        replace_attention(attention, num_inducing=8, calibration=(given, key, given))
        process = deviations(attention)[""]
        weight = (
            attention.q_proj_weight
            if attention.in_proj_weight is None
            else attention.in_proj_weight
        )
        queries = nn.functional.linear(
            x, weight[:16], None if attention.in_proj_bias is None else attention.in_proj_bias[:16]
        )
        heads = queries.unflatten(-1, (2, 8)).permute(2, 0, 1, 3)
        with constant_noise(1.0):
            drawn = process(heads)[0].permute(1, 2, 0, 3).flatten(2)
            found, weights = attention(given, key, given)
        expected = nn.functional.linear(drawn, attention.out_proj.weight)
        expected = plain + (expected if attention.batch_first else expected.transpose(0, 1))
        assert_close(found, expected)
        assert weights.shape == (3, 5, 5)
        with constant_noise(1.0):
            single = attention(x[0], x[0, :, : attention.kdim], x[0])[0]
            alone = found[0] if attention.batch_first else found[:, 0]
        assert_close(single, alone)


def test_models_without_known_attention_are_refused():
    with pytest.raises(ValueError, match="has none among its modules: Linear, Sequential"):
        replace_attention(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="model must have a deviation"):
        sample_predictions(nn.Linear(2, 2), torch.zeros(1, 2))


def test_heads_that_do_not_go_through_the_output_weights_alone_are_refused():
    timm = pytest.importorskip("timm")
    attention = timm.layers.Attention(16, 2, qk_norm=True, scale_norm=True, norm_layer=nn.LayerNorm)
    with pytest.raises(ValueError, match="cannot have a deviation: with its norm"):
        replace_attention(attention, calibration=tokens(3, 30, 16))


def test_cosine_attention_is_refused():
    swin = pytest.importorskip("torchvision.models.swin_transformer")
    model = swin.SwinTransformer(
        [2, 2], 8, [2], [2], [2, 2], num_classes=3,
        block=swin.SwinTransformerBlockV2, downsample_layer=swin.PatchMergingV2,
    )  # fmt: skip
    with pytest.raises(ValueError, match="with its logit_scale a head is not softmax attention"):
        replace_attention(model, calibration=tokens(3, 3, 16, 16))


def test_other_modules_that_are_called_attention_are_refused():
    # Values four times as wide as queries, each head's in a row; a projection with its own norm.
    formers = [
        (pytest.importorskip("timm.models.efficientformer"), {"dim": 16, "key_dim": 4}),
        (pytest.importorskip("timm.models.levit"), {"dim": 16, "key_dim": 4}),
    ]
    for former, sizes in formers:
        model = nn.Sequential(former.Attention(**sizes, num_heads=2))
        with pytest.raises(ValueError, match=r"modules: timm\.models\.\w+\.Attention"):
            replace_attention(model, calibration=tokens(3, 49, 16))


# Of an alias, which older versions know too.
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
def test_gradients_of_checkpointed_activations_are_those_of_the_draws():
    model = TestLlama().changed().train()
    given = {**TestLlama().inputs(), "use_cache": False}
    found = []
    for checkpointed in (False, True):
        if checkpointed:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(0)
        sample_predictions(model, num_samples=2, **given)["logits"].square().mean().backward()
        found.append([p.grad for p in model.parameters()])
    assert_close(found[1], found[0])
    # A generator of the caller's would not draw the same again.
    with pytest.raises(ValueError, match="generator must be None"):
        sample_predictions(model, generator=torch.Generator(), **given)
    with pytest.raises(ValueError, match="functions not held"), held_functions(model):
        model(**given)
    with torch.no_grad():
        sample_predictions(model, generator=torch.Generator(), **given)


def test_a_generator_is_refused_where_timm_checkpoints_in_evaluation_mode():
    model = TestTimm().changed().eval()
    model.set_grad_checkpointing(True)
    with pytest.raises(ValueError, match="generator must be None"):
        sample_predictions(model, generator=torch.Generator(), **TestTimm().inputs())


@torch.no_grad()
def test_samples_have_the_attention_maps_of_all_layers():
    suite = TestBERT()
    model = suite.changed("last")
    model.set_attn_implementation("eager")
    given = {**suite.inputs(), "output_attentions": True}
    plain = [each.shape for each in model(**given).attentions]
    found = sample_predictions(model, num_samples=2, **given)["attentions"]
    assert [each.shape[1:] for each in found] == plain
    assert_close(found[0], model(**given).attentions[0].expand(2, *plain[0]))


@torch.no_grad()
def test_a_model_that_changes_its_inputs_does_so_once_for_each_sample():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x):
            return self.encoder(x.mul_(2.0))

    torch.manual_seed(0)
    model, x = Model().eval(), tokens(3, 20, 16)
    replace_attention(model, num_inducing=8, calibration=x.clone())
    for process in deviations(model).values():
        process.set_deviation(0.0)
    given = x.clone()
    found = sample_predictions(model, given, num_samples=2)
    assert_close(given, x)
    assert_close(found[1], model.encoder(2.0 * x))


@pytest.mark.slow
def test_an_encoder_compiles_into_one_graph():
    # In a process of its own: the shape checks of a test session cannot be traced.
    code = """
import torch, sgpa
from probseq.transformers import penalty
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
x = torch.randn(3, 20, 16)
sgpa.replace_attention(model, layers="all", calibration=x, num_inducing=8)
compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
torch.manual_seed(1); expected = model(x)
torch.manual_seed(1); found = compiled(x)
assert torch.allclose(found, expected, atol=1e-5), (found - expected).abs().max()
(found.square().mean() + penalty(model)).backward()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_first_tensor_of_nested_outputs():
    assert first_tensor({"loss": None, "logits": (torch.ones(1),)}).item() == 1.0
