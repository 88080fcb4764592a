"""`probseq calibrate` on tiny models of timm, torchvision and transformers, from local files."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

import probseq_apps.cli as cli
from probseq.corruptions import half_corrupted
from probseq.laplace import laplace_model, linear_inputs
from probseq.metrics.post_hoc import search_temperature
from probseq_apps.data.names import DataError
from probseq_apps.data.parts import Part
from probseq_apps.data.sets import load_data
from probseq_apps.data.settings import DataSettings
from probseq_apps.data.tokenizers import encode_texts
from probseq_apps.experiments.pretrained import _of_transformers, open_model
from sgpa import load_calibrated

timm = pytest.importorskip("timm", reason="timm is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
GIVEN = ["--arguments", *(f"{key}={value}" for key, value in SIZES.items()), "in_chans=1"]
FAST = ["--num-inducing", "8", "--num-samples", "3", "--tuning-steps", "3", "--data", "digits"]
FAST += ["--no-shift", "--threads", "1", "--quiet"]


def tiny(seed, **changes):
    """A timm ViT for digits, surer than it should be."""
    torch.manual_seed(seed)
    model = timm.create_model(
        "vit_tiny_patch16_224", **{**SIZES, "num_classes": 10, "in_chans": 1, **changes}
    )
    model.head.weight.data.mul_(40.0)
    return model.eval()


@pytest.fixture
def files(tmp_path):
    """Two models of timm, one as safetensors and one as a state dict."""
    save_file(tiny(0).state_dict(), tmp_path / "a.safetensors")
    torch.save(tiny(1).state_dict(), tmp_path / "b.pt")
    name = "timm:vit_tiny_patch16_224"
    return [f"{name}+{tmp_path}/a.safetensors", f"{name}+{tmp_path}/b.pt"]


def run(tmp_path, *words):
    return cli.main(["calibrate", *FAST, "--run-dir", str(tmp_path / "run"), *words])


@pytest.mark.slow
def test_models_of_timm_are_measured_as_by_hand_and_the_folder_predicts_the_same(tmp_path, files):
    rows = ["model", "model+ts", "deviation+ts", "tuned", "mcd", "kflla", "probe", "heads+ts"]
    rows += ["model+ts+ensemble"]
    assert run(tmp_path, "--model", *files, *GIVEN, "--method", *rows, "--normalise", "data") == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert list(report["methods"]) == [row for row in rows if row != "mcd"]
    left = "left out, since a model has no dropout that changes what it predicts: mcd"
    assert report["data"]["notes"][-1] == left
    data = load_data("digits")
    members = []
    for number, file in enumerate(files):
        model, prepare = open_model(file, tuple(GIVEN[1:]), data, bundled_scale=False)
        with torch.no_grad():
            known, test = (model(prepare(p.inputs)) for p in (data.validation, data.test))
        assert torch.equal(test, tiny(number)(prepare(data.test.inputs)))
        temperature = search_temperature(known.log_softmax(-1), data.validation.targets)
        scaled = (test / temperature).log_softmax(-1)
        found = {name: one["metrics"] for name, one in report["methods"].items()}
        expected = float(F.nll_loss(scaled, data.test.targets))
        assert found["model+ts"]["test/nll"]["values"][number] == pytest.approx(expected, rel=1e-4)
        expected = float(F.cross_entropy(test, data.test.targets))
        assert found["model"]["test/nll"]["values"][number] == pytest.approx(expected, rel=1e-4)
        members.append(test.log_softmax(-1).exp())
        folder = tmp_path / f"run/model-seed{number}"
        calibrated = load_calibrated(folder / "calibrated", model)
        if not calibrated.candidates[calibrated.chosen].deviation:
            stored = torch.from_numpy(np.load(folder / "model.npz")["test/log_probs"])
            own = calibrated.candidates[calibrated.chosen].temperature
            expected = (stored / own).log_softmax(-1)
            torch.testing.assert_close(calibrated(prepare(data.test.inputs)), expected)
    marked = "(a bound)" in (tmp_path / "run/report.html").read_text()
    temperatures = [t for one in report["methods"].values() for t in one["temperatures"]]
    assert marked == (20.0 in temperatures)
    losses = {name: one["validation/nll"]["mean"] for name, one in found.items()}
    assert report["recommended"] == min(losses, key=losses.get)
    assert losses["model+ts"] < losses["model"]
    by_hand = [
        -torch.from_numpy(np.load(tmp_path / f"run/model-seed{number}/model.npz")["test/log_probs"])
        .gather(-1, data.test.targets[:, None])
        .double()
        for number in range(2)
    ]
    of_model = float(torch.stack(by_hand).mean())
    assert f"the model as it is {of_model:.3f}" in (tmp_path / "run/report.md").read_text()
    names = report["settings"]["fit"]["validation_corruptions"]
    held = Part(half_corrupted(data.validation.inputs, names), data.validation.targets)
    crossed: list[float] = []
    for file in files:  # neither the prior precision nor the loss sees the other half
        model, prepare = open_model(file, tuple(GIVEN[1:]), data, bundled_scale=False)
        halves = [(prepare(held.inputs[k::2]), held.targets[k::2]) for k in (0, 1)]
        train = [(prepare(data.train.inputs), data.train.targets)]
        for chosen, (inputs, labels) in (halves, halves[::-1]):
            laplace = laplace_model(model, train, validation=[chosen])
            with torch.no_grad():
                crossed.append(float(F.cross_entropy(laplace(inputs), labels)))
    assert losses["kflla"] == pytest.approx(sum(crossed) / 4, rel=1e-3)
    (ensemble,) = found["model+ts+ensemble"]["test/accuracy"]["values"]
    votes = torch.stack(members).mean(0).argmax(-1)
    assert ensemble == pytest.approx(float((votes == data.test.targets).float().mean()))
    assert {path.stem for path in (tmp_path / "run/plots").iterdir()} == {
        "calibration",
        "reliability",
        "risk-coverage",
    }


@pytest.mark.slow
def test_a_run_goes_on_and_what_was_deleted_is_made_anew(tmp_path, files):
    words = ["--model", *files, *GIVEN, "--method", "model", "deviation", "--normalise", "data"]
    assert run(tmp_path, *words, "--workers", "2") == 0
    report = json.loads((tmp_path / "run/report.json").read_text())["methods"]
    # As if it had been killed in the second model; and a file of the first is lost.
    (tmp_path / "run/results/model-seed1.json").unlink()
    (tmp_path / "run/model-seed1/deviation.npz").unlink()
    (tmp_path / "run/model-seed0/model.npz").unlink()
    (tmp_path / "run/model-seed0/calibrated/deviation.npz").unlink()
    assert run(tmp_path, "--resume", *words) == 0
    assert (tmp_path / "run/model-seed0/calibrated/deviation.npz").exists()
    assert json.loads((tmp_path / "run/report.json").read_text())["methods"] == report
    assert run(tmp_path, "--overwrite", *words, "--workers", "1") == 0
    assert json.loads((tmp_path / "run/report.json").read_text())["methods"] == report


def test_other_weights_are_refused_when_a_run_goes_on(tmp_path, files, capsys):
    words = ["--model", files[0], *GIVEN, "--method", "model", "--normalise", "data"]
    assert run(tmp_path, *words) == 0
    assert run(tmp_path, "--resume", *words) == 0
    save_file(tiny(2).state_dict(), tmp_path / "a.safetensors")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run(tmp_path, "--resume", *words)
    assert "weights: ['" in capsys.readouterr().err


def test_a_folder_of_transformers_reads_texts_with_its_own_tokens(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<s>", "<pad>", "</s>", "good", "bad", "film", "<unk>"]
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.enable_padding(pad_id=1, pad_token="<pad>")
    config = transformers.RobertaConfig(
        vocab_size=7, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=20, num_labels=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.RobertaForSequenceClassification(config).eval()
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    lines = [
        f"{kind} film{' film' * (k % 5)} {k},{kind}" for k in range(60) for kind in ("good", "bad")
    ]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    name = f"csv:{tmp_path}/texts.csv"
    data = load_data(name, DataSettings(tokenizer=str(folder / "tokenizer.json")), max_length=10)
    found, prepare = open_model(str(folder), (), data, bundled_scale=True)
    text = ["good film film", "bad film"]
    encoded = tokenizer.encode_batch(text)
    prepared = prepare(encode_texts(data.vocab, text, 10))
    assert prepared["input_ids"].tolist() == [one.ids for one in encoded]
    assert prepared["attention_mask"].tolist() == [one.attention_mask for one in encoded]
    with torch.no_grad():
        assert torch.equal(found(**prepared).logits, model(**prepared).logits)
    rows = ["model", "model+ts", "deviation", "mcd+ts", "kflla"]
    words = ["--data", name, "--max-length", "10", "--method", *rows]
    assert run(tmp_path, "--model", str(folder), *words) == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert list(report["methods"]) == rows


def test_an_encoder_without_a_head_gets_the_heads_alone(tmp_path, capsys):
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        image_size=8, patch_size=4,
    )  # fmt: skip
    encoder, folder = transformers.ViTModel(config).eval(), tmp_path / "encoder"
    encoder.save_pretrained(folder)
    data = load_data("digits")
    opened = open_model(str(folder), (), data, bundled_scale=True)
    images = opened.prepare(data.test.inputs[:5])
    with torch.no_grad():
        features = linear_inputs(opened.model, "head", images)
        torch.testing.assert_close(features, encoder(images).last_hidden_state.mean(1))
    words = ["--data", "digits", "--validation-size", "100", "--test-size", "50"]
    assert run(tmp_path, "--model", str(folder), *words) == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert list(report["methods"]) == ["probe", "probe+ts", "heads", "heads+ts"]
    assert any("no trained head: model" in note for note in report["data"]["notes"])
    words += ["--method", "model", "kflla", "--run-dir", str(tmp_path / "other")]
    assert run(tmp_path, "--model", str(folder), *words) == 1
    assert "method must have probe or heads, got model, kflla" in capsys.readouterr().err


def test_a_mean_over_tokens_leaves_padding_out_and_missing_weights_are_named(tmp_path):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=7, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=20,
    )  # fmt: skip
    encoder = transformers.BertModel(config, add_pooling_layer=False).eval()
    encoder.save_pretrained(tmp_path)
    model = _of_transformers(transformers, "Sequence", tmp_path, 3)
    ids, mask = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 6]]), torch.ones(2, 4, dtype=torch.long)
    mask[0, 3] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    with torch.no_grad():
        features = linear_inputs(model.eval(), "head", batch)
        short = encoder(ids[:1, :3]).last_hidden_state.mean(1)
    torch.testing.assert_close(features[:1], short)
    weights = encoder.state_dict()
    del weights["encoder.layer.0.output.dense.weight"]
    encoder.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(DataError, match=r"lacks weights of Bert.*: bert.encoder.layer.0.output"):
        _of_transformers(transformers, "Sequence", tmp_path, 3)


def test_decoders_have_their_own_numbers_without_padding_and_the_last_token_s_features(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "<s>", "</s>", "good", "bad", "film", "more"]
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = transformers.GPT2Config(
        vocab_size=7, n_embd=16, n_layer=1, n_head=2, n_positions=20, num_labels=2,
        pad_token_id=2, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path / "model")
    tokenizer.save(str(tmp_path / "model/tokenizer.json"))
    lines = [f"{kind} film {k},{kind}" for k in range(60) for kind in ("good", "bad")]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    name = f"csv:{tmp_path}/texts.csv"
    data = load_data(
        name, DataSettings(tokenizer=str(tmp_path / "model/tokenizer.json")), max_length=10
    )
    _, prepare = open_model(str(tmp_path / "model"), (), data, bundled_scale=True)
    prepared = prepare(encode_texts(data.vocab, ["bad film more", "good", ""], 10))
    assert prepared["input_ids"].tolist() == [[4, 5, 6], [3, 2, 2], [2, 2, 2]]
    assert prepared["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    rows = ["model", "kflla", "kflla+ts", "probe"]
    words = ["--data", name, "--max-length", "10", "--method", *rows]
    assert run(tmp_path, "--model", str(tmp_path / "model"), *words) == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert list(report["methods"]) == rows
    losses = [report["methods"][row]["metrics"]["test/nll"]["mean"] for row in ("model", "probe")]
    assert losses[1] < 0.1 < losses[0]


def test_arguments_of_models_are_read_as_json_or_python_writes_them(tmp_path):
    given = [f"{name}={value}" for name, value in SIZES.items()]
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, in_chans=1, **SIZES)
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    name = f"timm:vit_tiny_patch16_224+{tmp_path}/vit.safetensors"
    given += ["in_chans=1", "proj_drop_rate=.25", "qkv_bias=True", "reg_tokens=0"]
    found = open_model(name, tuple(given), load_data("digits"), bundled_scale=False).model
    assert found.blocks[0].attn.proj_drop.p == 0.25


@pytest.mark.slow
def test_a_model_without_attention_gets_all_rows_but_the_deviation(tmp_path, capsys):
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=10, in_chans=1, drop_rate=0.0).eval()
    save_file(model.state_dict(), tmp_path / "conv.safetensors")
    words = ["--model", f"timm:test_resnet+{tmp_path}/conv.safetensors", "--normalise", "data"]
    words += ["--arguments", "in_chans=1"]
    assert run(tmp_path, *words) == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    rows = [f"{row}{ts}" for row in ("model", "kflla", "probe", "heads") for ts in ("", "+ts")]
    assert list(report["methods"]) == rows
    assert "left out, since the attention of a model is none that" in report["data"]["notes"][-1]
    data = load_data("digits")
    _, prepare = open_model(words[1], ("in_chans=1",), data, bundled_scale=False)

    def features(part):
        with torch.no_grad():
            return model.forward_head(model.forward_features(prepare(part.inputs)), pre_logits=True)

    train, held, test = map(features, (data.train, data.validation, data.test))
    scaler = StandardScaler().fit(train)
    fits = [
        LogisticRegression(C=c, max_iter=3000).fit(scaler.transform(train), data.train.targets)
        for c in (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    ]
    nll = [log_loss(data.validation.targets, f.predict_proba(scaler.transform(held))) for f in fits]
    best = fits[int(np.argmin(nll))]
    expected = log_loss(data.test.targets, best.predict_proba(scaler.transform(test)))
    found = {row: report["methods"][row]["metrics"] for row in rows}
    assert found["probe"]["test/nll"]["mean"] == pytest.approx(expected, rel=0.01)
    assert found["heads"]["test/nll"]["mean"] < found["model"]["test/nll"]["mean"] - 0.5
    assert found["heads"]["validation/nll"]["mean"] < found["model"]["validation/nll"]["mean"] - 0.5


def test_a_model_of_unknown_attention_gets_all_rows_but_the_deviation_and_its_own_dropout(tmp_path):
    given = {**SIZES, "in_chans": 1, "embed_dim": 24, "attn_drop_rate": 0.5}
    torch.manual_seed(0)
    model = timm.create_model("eva02_tiny_patch14_224", num_classes=10, **given)
    torch.nn.init.normal_(model.head.weight, std=3.0)
    for block in model.blocks:  # as wide as if it were trained
        block.attn.proj.weight.data.mul_(30.0)
    save_file(model.state_dict(), tmp_path / "eva.safetensors")
    words = ["--model", f"timm:eva02_tiny_patch14_224+{tmp_path}/eva.safetensors"]
    words += ["--arguments", *(f"{key}={value}" for key, value in given.items())]
    rows = ["model+ts", "model", "mcd", "kflla", "probe"]
    assert run(tmp_path, *words, "--normalise", "data", "--method", *rows, "deviation") == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert list(report["methods"]) == rows
    loss = {row: report["methods"][row]["metrics"]["test/nll"]["mean"] for row in rows}
    assert abs(loss["mcd"] - loss["model"]) > 0.01


def test_folders_of_timm_and_models_of_torchvision_are_read(tmp_path, monkeypatch):
    from torchvision import models

    data = load_data("digits")
    model = tiny(0, in_chans=3)
    timm.models.save_for_hf(
        model, tmp_path / "timm", model_args={**SIZES, "in_chans": 3}, safe_serialization=True
    )
    save_file(tiny(0).state_dict(), tmp_path / "named.safetensors")
    file = f"timm:vit_tiny_patch16_224+{tmp_path}/named.safetensors"
    open_model(file, (*GIVEN[1:], "global_pool=token", "fc_norm=null"), data, bundled_scale=True)
    found, prepare = open_model(str(tmp_path / "timm"), (), data, bundled_scale=True)
    images = prepare(data.test.inputs[:4])
    grey = data.test.inputs[:4].float() / 255
    torch.testing.assert_close(images, ((grey - 0.5) / 0.5).expand(4, 3, 8, 8))
    assert torch.equal(found(images), model(images))

    def small(**given):
        torch.manual_seed(3)
        return models.VisionTransformer(
            image_size=8, patch_size=4, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=8, **given
        )

    monkeypatch.setattr(models, "get_model", lambda name, **given: {"small": small}[name](**given))
    torch.save(small(num_classes=10).state_dict(), tmp_path / "small.pt")
    found, prepare = open_model(
        f"torchvision:small+{tmp_path}/small.pt", (), data, bundled_scale=True
    )
    expected = (grey - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).view(3, 1, 1)
    torch.testing.assert_close(prepare(data.test.inputs[:4]), expected)
    assert found(prepare(data.test.inputs[:4])).shape == (4, 10)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "model must be given"),
        (["--model", "timm:vit+none.pt"], "none.pt is not there"),
        (["--model", "timm:vit"], "must be as timm:NAME+FILE"),
        (["--model", "nowhere"], "has no weights"),
        (["--model", "{a}", "--arguments", "img_size"], "arguments must be as img_size=32"),
        (["--model", "{a}", "--arguments", "img_size=8"], "cannot be read as a model of timm"),
        (["--model", "{wide}", *GIVEN, "num_classes=7"], "cannot be read as a model of timm"),
        (
            ["--model", "{conv}", "--arguments", "in_chans=1", "--method", "deviation", "tuned+ts"],
            "model must have attention that is",
        ),
        (["--model", "{a}", "--method", "model+ts+ts"], "must take each addition once"),
        (["--model", "{a}", "--method", "best"], "unknown method 'best'"),
        (["--model", "{a}", "--method", "model+ensemble"], "needs at least two models"),
        (["--model", "{a}", "--tuning-steps", "0"], "needs tuning_steps of at least 1"),
        (
            ["--model", "{a}", "--data", "cola", "--data-dir", "."],
            "a folder with tokenizer",
        ),
        (["--model", "{a}", "--validation-corruptions", "dust"], "unknown corruption 'dust'"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_before_anything_is_written(
    tmp_path, files, capsys, words, message
):
    save_file(tiny(0, num_classes=7).state_dict(), tmp_path / "wide.safetensors")
    wide = f"timm:vit_tiny_patch16_224+{tmp_path}/wide.safetensors"
    convolutions = timm.create_model("test_resnet", num_classes=10, in_chans=1)
    save_file(convolutions.state_dict(), tmp_path / "conv.safetensors")
    conv = f"timm:test_resnet+{tmp_path}/conv.safetensors"
    words = [word.format(a=files[0], wide=wide, conv=conv) for word in words]
    try:
        status = run(tmp_path, *words)
    except SystemExit as error:
        status = error.code
    assert status in (1, 2)
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
