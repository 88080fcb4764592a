"""`probseq calibrate`: stored outputs, models of other libraries, and what is not guessed."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import probseq
from probseq_apps.cli import main
from probseq_apps.data.pictures import ORIENTATION
from probseq_apps.experiments.calibrate import open_model, read_examples
from probseq_apps.settings.calibrate import CalibrateSettings

NAMES = ("zebra", "ape", "cow")
FLAGS = ["--mean", ".5", ".5", ".5", "--std", ".25", ".25", ".25", "--size", "16"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys):
    def call(*words):
        code = main(["calibrate", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out if code == 0 else captured.err

    return call


def outputs(seed=0, count=600):
    generator = torch.Generator().manual_seed(seed)
    logits = 8 * torch.randn(count, 3, generator=generator)
    return logits, (logits / 4).softmax(-1).multinomial(1, generator=generator)[:, 0]


def write_table(path, rows, separator=",", heads=("zebra", "ape", "cow", "label")):
    lines = [heads, *rows]
    path.write_text("\n".join(separator.join(map(str, line)) for line in lines) + "\n")


def test_stored_logits_are_calibrated_tested_reported_and_served(run, tmp_path):
    for name, seed in (("val", 0), ("test", 1)):
        logits, labels = outputs(seed)
        np.savez(tmp_path / f"{name}.npz", logits=logits.numpy(), labels=labels.numpy())
    words = ("--logits", "val.npz", "--test", "test.npz", "--error-rate", ".3")
    code, text = run(*words)
    assert code == 0
    assert len(text.splitlines()) <= 60
    for line in (
        "val.npz: 600 held-out examples",
        "Chosen: temperature, T = ",
        "At most 30.0% wrong",
        "Test, 600 examples: nll",
        "Sets hold the class of",
    ):
        assert line in text
    assert 'calibrated = probseq.load_calibrated("calibrated")' in text
    calibrated = probseq.load_calibrated("calibrated")
    numbers = json.loads((tmp_path / "calibrated/report.json").read_text())
    assert numbers["calibration"]["chosen"] == calibrated.chosen == "temperature"
    logits, labels = outputs(1)
    nll = float(nn.functional.nll_loss(calibrated(logits), labels))
    assert numbers["test"]["nll"] == pytest.approx(nll, rel=1e-4)
    accepted = calibrated.decide(logits).accepted.double().mean()
    assert numbers["test"]["accepted"] == pytest.approx(float(accepted))
    assert (tmp_path / "calibrated/report.html").exists()


def test_tables_have_a_column_a_class_in_any_order_of_labels(run, tmp_path):
    logits, labels = outputs()
    rows = [(*row, NAMES[y]) for row, y in zip(logits.tolist(), labels.tolist(), strict=True)]
    write_table(tmp_path / "val.csv", rows)
    code, text = run("--logits", "val.csv")
    assert code == 0
    assert "classes, by the file's: zebra, ape, cow" in text
    np.savez(tmp_path / "val.npz", logits=logits.numpy(), labels=labels.numpy())
    expected = probseq.load_calibrated("calibrated").temperature
    write_table(tmp_path / "test.csv", rows, heads=(*NAMES[::-1], "label"))
    told = run("--logits", "val.csv", "--test", "test.csv")[1]
    assert "test.csv must have the outputs of val.csv: zebra, ape, cow" in told
    np.savez(tmp_path / "one.npz", probs=logits[:, :1].sigmoid(), labels=logits[:, 0] > 0)
    assert "outputs are probabilities of the second class" in run("--logits", "one.npz")[1]
    assert run("--logits", "val.npz")[0] == 0
    torch.testing.assert_close(probseq.load_calibrated("calibrated").temperature, expected)


@pytest.mark.parametrize(
    ("heads", "labels", "separator", "message"),
    [
        (NAMES, NAMES, ";", "--separator ';' separates its cells"),
        (NAMES, ("zebra", "ape", "dog"), ",", "do not have dog; --classes names them"),
        (("1", "2", "3"), ("1.0", "2.0", "3.0"), ",", "labels 1 and 1.0 are equal as numbers"),
        (NAMES[:2], ("zebra", "ape"), "|", "--separator '|' separates its cells"),
        (NAMES, ("1", "1.0", "2"), ",", "labels 1 and 1.0 are equal as numbers"),
    ],
)
def test_tables_that_cannot_be_read_are_refused_by_flags_that_exist(
    run, tmp_path, heads, labels, separator, message
):
    rows = [(*torch.randn(len(heads)).tolist(), labels[i % len(labels)]) for i in range(40)]
    write_table(tmp_path / "val.csv", rows, separator, (*heads, "label"))
    code, text = run("--logits", "val.csv")
    assert code != 0
    assert message in text


SCORES = np.random.default_rng(0).normal(size=(40, 3)) + 3 * np.eye(3)[np.arange(40) % 3]
NUMBERS = np.arange(40) % 3


@pytest.mark.parametrize(
    ("arrays", "words", "message"),
    [
        ({"logits": SCORES, "labels": np.array(["emu"] * 40)}, (), "named by --classes, got emu"),
        ({"logits": SCORES, "labels": NUMBERS + 0.5}, (), "whole numbers"),
        ({"probabilities": SCORES, "labels": NUMBERS}, (), "rows of at least 0"),
        ({"logits": SCORES, "labels": NUMBERS}, ("--classes", "a", "b"), "leave --classes out"),
        ({"logits": SCORES, "labels": NUMBERS}, ("--test", "two.npz"), "two.npz must have the"),
        (
            {"logits": SCORES, "labels": NUMBERS.astype(object)},
            (),
            "val.npz is damaged, or holds Python's objects",
        ),
        ({"logits": SCORES, "labels": np.eye(3)[NUMBERS]}, (), "labels must be whole numbers"),
        ({"logits": SCORES, "labels": NUMBERS}, ("--separator", ";"), "separator must be left out"),
    ],
)
def test_arrays_that_would_be_guessed_are_refused(run, tmp_path, arrays, words, message):
    np.savez(tmp_path / "val.npz", **arrays)
    np.savez(tmp_path / "two.npz", logits=SCORES[:, :2], labels=NUMBERS % 2)
    code, text = run("--logits", "val.npz", *words)
    assert code == 1
    assert message in text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("val.csv", b"", "val.csv needs one column 'label'"),
        ("val.csv", b"a,b,label\n1,2,a\n1,2\n", "val.csv, line 3: expected 3 columns, got 2"),
        ("val.csv", b",a,b,label\n0,1,2,a\n", "has one without a name"),
        *[("val.npz", each, "val.npz is damaged") for each in (b"", b"garbage", b"PK garbage")],
    ],
)
def test_damaged_files_are_refused_without_advice_to_unpickle(
    run, tmp_path, name, content, message
):
    (tmp_path / name).write_bytes(content)
    code, text = run("--logits", name)
    assert code == 1
    assert message in text
    assert "allow_pickle" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "logits must be named, or model and data"),
        (("--logits", "a.npz", "--model", "b"), "logits must come without model"),
        (("--model", "m:f", "--data", "d", "--mean", ".5", "--std", ".5"), "size must be given"),
        (("--model", "m:f", "--data", "d", "--size", "3"), "size and crop need mean and std"),
        (("--logits", "a.npz", "--size", "3"), "logits must come without size"),
        (("--logits", "a.npz", "--no-laplace"), "logits must come without laplace"),
        (("--logits", "absent.npz"), "absent.npz"),
        (("--logits", "a.npz", "--error-rate", "2"), "error_rate"),
    ],
)
def test_wrong_usage_is_refused_by_name(run, words, message, capsys):
    try:
        code, text = run(*words)
    except SystemExit as stop:
        code, text = stop.code, capsys.readouterr().err
    assert code != 0
    assert message in text.replace("error-rate", "error_rate")


# Images: three classes by colour, which a small network has learned under one preparation.


@pytest.fixture
def images(tmp_path):
    generator = np.random.default_rng(0)
    for number in range(120):
        label = number % 3
        pixels = generator.integers(0, 120, (20, 20, 3))
        pixels[..., label] += 60 + generator.integers(0, 60)
        path = tmp_path / "val" / NAMES[label] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        turned = Image.Exif()
        if number == 0:
            turned[ORIENTATION] = 6
        Image.fromarray(pixels.astype(np.uint8)).save(path, exif=turned)
    (tmp_path / "val/cow/read.txt").touch()
    (tmp_path / "val/cow/lost.png").symlink_to("nothing")
    return tmp_path / "val"


class Colours(nn.Module):
    """Logits in the order of NAMES, sharp, of images with a mean of .5 and a deviation of .25."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.fc.weight.data = 12 * torch.eye(3)
        self.fc.bias.data.zero_()

    def forward(self, x):
        return self.fc(x.mean((-2, -1)))


def write_module(tmp_path, monkeypatch, text):
    (tmp_path / "mine.py").write_text("from colours import Colours\n" + text)
    # A console script has no entry for the working directory.
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    sys.modules.pop("mine", None)
    monkeypatch.setitem(sys.modules, "colours", sys.modules[__name__])


def test_preparation_and_order_of_classes_are_never_guessed_in_silence(
    run, tmp_path, monkeypatch, images
):
    write_module(tmp_path, monkeypatch, "def net():\n    return Colours()\n")
    words = ("--model", "mine:net", "--data", "val")
    code, text = run(*words)
    assert code != 0
    assert "nothing says it: give --mean, --std and --size" in text
    code, text = run(*words, *FLAGS)
    assert code != 0
    assert "the order of the classes is probably another" in text
    code, text = run(*words, *FLAGS, "--max-length", "9")
    assert code != 0
    assert "max_length must be left out" in text
    code, text = run(*words, *FLAGS, "--classes", *NAMES)
    assert code == 0
    first = "\n".join(text.splitlines()[:4])
    assert "val: 120 held-out examples" in first
    assert "images by your flags: RGB from 0 to 1, mean (0.5, 0.5, 0.5)" in first
    assert "classes, by --classes: zebra, ape, cow" in first
    assert "size 16, crop 1.0, interpolation bilinear" in first
    assert "not used: files with the ending .txt (1), links to nothing (1)" in first
    assert "1 images were turned as their EXIF orientation says" in text
    assert 'probseq.load_calibrated("calibrated", model)' in text
    calibrated = probseq.load_calibrated("calibrated", Colours())
    assert calibrated.rows[0].accuracy > 0.9


def test_a_function_may_bring_its_own_preparation(run, tmp_path, monkeypatch, images):
    text = """
from torchvision import transforms as t
def net():
    prepare = t.Compose([t.ToTensor(), t.Normalize((.5,) * 3, (.25,) * 3)])
    return Colours(), prepare
"""
    write_module(tmp_path, monkeypatch, text)
    words = ("--model", "mine:net", "--data", "val", "--test", "val", "--classes", *NAMES)
    code, screen = run(*words, "--no-laplace")
    assert code == 0
    assert "mine:net: prepared by its own function" in screen
    assert "Test, 120 examples" in screen
    assert "Laplace" not in screen


@pytest.mark.parametrize(
    "form",
    [
        lambda state: state,
        lambda state: {"model": state, "epoch": 3},
        lambda state: {"state_dict": {f"module.{name}": x for name, x in state.items()}},
    ],
)
def test_weights_of_torchvision_say_how_many_classes_there_are(images, tmp_path, form):
    models = pytest.importorskip("torchvision").models
    state = models.shufflenet_v2_x0_5(num_classes=3).state_dict()
    torch.save(form(state), tmp_path / "w.pt")
    settings = CalibrateSettings(
        model=("torchvision:shufflenet_v2_x0_5+w.pt",),
        data=images,
        mean=(0.5,),
        std=(0.5,),
        size=32,
    )
    opened = open_model(settings.model[0], read_examples(images, ","), settings)
    assert opened.model(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
    assert opened.preparation.startswith("images by your flags: grey")


def test_a_folder_of_timm_brings_preparation_or_is_refused(run, images, tmp_path):
    timm = pytest.importorskip("timm")
    model = timm.create_model("test_resnet", num_classes=3)
    timm.models.save_for_hf(model, tmp_path / "net")
    settings = CalibrateSettings(model=("net",), data=images)
    opened = open_model("net", read_examples(images, ","), settings)
    assert "pretrained_cfg: RGB from 0 to 1, input size" in opened.preparation
    size = model.pretrained_cfg["input_size"][-1]
    assert opened.prepare([Image.new("RGB", (50, 40))]).shape[-1] == size
    config = json.loads((tmp_path / "net/config.json").read_text())
    config["pretrained_cfg"] = {}
    (tmp_path / "net/config.json").write_text(json.dumps(config))
    code, text = run("--model", "net", "--data", "val")
    assert code != 0
    assert "nothing says it" in text


def test_a_model_is_of_torch_and_its_logits_are_named_where_outputs_are_several(
    run, tmp_path, monkeypatch, images
):
    text = """
def pair():
    net = Colours()
    net.register_forward_hook(lambda _, x, z: (z.repeat(1, 2), z))
    return net
def function():
    return lambda x: Colours()(x).numpy()
"""
    write_module(tmp_path, monkeypatch, text)
    words = ("--data", "val", "--classes", *NAMES, *FLAGS)
    code, screen = run("--model", "mine:pair", *words, "--output", "1")
    assert code == 0
    assert 'probseq.load_calibrated("calibrated", model, output=1)' in screen
    assert "must be of torch: of others" in run("--model", "mine:function", *words)[1]


@pytest.mark.parametrize("steps", [("resize",), ("resize", "normalize"), ("resize", "rescale")])
def test_an_image_processor_says_the_steps_that_it_takes_alone(images, tmp_path, steps):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=16,
        patch_size=8,
        id2label=dict(enumerate(NAMES)),
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    switches = {f"do_{step}": step in steps for step in ("resize", "rescale", "normalize")}
    processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16}, **switches)
    processor.save_pretrained(tmp_path / "vit")
    settings = CalibrateSettings(model=("vit",), data=images)
    opened = open_model("vit", read_examples(images, ","), settings)
    assert opened.classes == NAMES
    assert "size {'height': 16, 'width': 16}" in opened.preparation
    assert "resample bilinear" in opened.preparation
    assert ("image mean" in opened.preparation) == ("normalize" in steps)
    assert ("rescale factor" in opened.preparation) == ("rescale" in steps)
    config.problem_type = "multi_label_classification"
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    with pytest.raises(ValueError, match="must be a classifier of one label an input"):
        open_model("vit", read_examples(images, ","), settings)


def test_texts_go_through_the_folder_s_tokenizer_and_its_names_of_classes(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    config = transformers.BertConfig(
        vocab_size=7,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        id2label={0: "positive", 1: "negative"},
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    model.classifier.weight.data *= 200.0
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "bert")
    texts = [" ".join(words[4 + (i * k) % 3] for k in range(1, 2 + i % 5)) for i in range(60)]
    with torch.no_grad():
        labels = [
            config.id2label[int(model(**tokenizer(text, return_tensors="pt")).logits.argmax())]
            for text in texts
        ]
    rows = list(zip(texts, labels, strict=True))
    write_table(tmp_path / "val.csv", rows, heads=("text", "label"))
    code, text = run("--model", "bert", "--data", "val.csv")
    assert code == 0, text
    first = "\n".join(text.splitlines()[:4])
    assert "texts by its BertTokenizer" in first
    assert "padding right, cut at 512 tokens on the right" in first
    assert "classes, by the model's id2label or label_names: positive, negative" in first
    numbers = json.loads((tmp_path / "calibrated/report.json").read_text())
    assert numbers["calibration"]["rows"][0][5] == 1.0  # accuracy
