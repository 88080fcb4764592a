"""`--labels`: models of classes, samples of them by name or number, and what is refused."""

import pytest
import torch
from PIL import Image

from probseq_apps.cli import main
from probseq_apps.data.images import load_generation_data
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import read_json
from probseq_apps.experiments import image_models
from probseq_apps.experiments.generate_common import load_samples
from probseq_apps.report.generate import generate_report
from probseq_apps.settings.generate import ClassSettings
from probseq_apps.settings.models import DiffusionSettings, HvaeSettings
from pseudovideo.evaluation import mean_bound
from pseudovideo.labels import draw_labels
from pseudovideo.pixels import to_unit
from pseudovideo.pretrained import load_pretrained
from pseudovideo.spec import ClassSpec
from pseudovideo.token_cache import TokenCache

TOLD = "--labels --label-dropout 0.2 --guidance 1.5"
UNET = """--image-size 8 --unet.base-channels 8 --unet.channel-multipliers 1 2
--unet.num-res-blocks 1 --unet.attention-sizes 4 --unet.num-heads 2 --unet.num-groups 4
--steps 4 --batch-size 16
--classifier-steps 3 --num-samples 60 --device cpu --workers 1"""
DIFFUSION = f"""generate diffusion --variants 1-frame 2-frame-high-order {UNET}
--process.num-steps 30 --sampling-steps 3 --likelihood-images 2 --frame-error-images 4
--frame-error-samples 2"""
HVAE = f"generate hvae {UNET} --num-levels 3 --bound-images 20"
TOKENIZER = """--tokenizer.dim 16 --tokenizer.num-heads 2 --tokenizer.depth 1 --device cpu
--tokenizer.codebook-size 8 --tokenizer.code-dim 4 --steps 4 --batch-size 16"""
PRIORS = """--autoregressive.dim 16 --autoregressive.depth 1 --autoregressive.num-heads 2
--autoregressive.steps 4 --masked.dim 16 --masked.depth 1 --masked.num-heads 2 --masked.steps 4"""
TOKENS = f"""generate run --frames 1 2 --no-controls --stem plain {TOKENIZER} {PRIORS} --workers 1
--num-samples 60 --num-images 20 --classifier-steps 3"""
COMMANDS = {"diffusion": DIFFUSION, "hvae": HVAE, "run": TOKENS}
MODELS = {
    "diffusion": ("models/1-frame-seed0", "models/2-frame-high-order-seed0"),
    "hvae": ("models/heat-seed0", "models/learned-seed0"),
    "run": tuple(
        f"priors/{kind}-{frames}-frame-plain-seed0"
        for kind in ("autoregressive", "masked")
        for frames in (1, 2)
    ),
}
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_report")]
each = pytest.mark.parametrize("command", COMMANDS)


def tell(text, *more):
    """Do a command and return its exit status."""
    return main([*text.split(), *map(str, more)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory, no_report):
    """Runs with labels that were never interrupted, each made when it is asked for."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def run(command):
        if command not in made:
            made[command] = folder / command
            with pytest.MonkeyPatch.context() as patch:
                if command == "diffusion":  # the one report that is looked at
                    patch.setattr(image_models, "generate_report", generate_report)
                assert tell(f"{COMMANDS[command]} {TOLD} --run-dir", made[command]) == 0
        return made[command]

    return run


@pytest.fixture(scope="module")
def digits():
    return load_generation_data("digits", image_size=8)


def drawn(folder, model):
    return load_samples(folder / "samples" / f"{model.rpartition('/')[2]}.npz")


@each
def test_run_and_model_tell_of_their_classes_and_samples_have_the_training_images_shares(
    whole, command, digits
):
    folder = whole(command)
    counts = {name: int((digits.labels.train == int(name)).sum()) for name in "0123456789"}
    assert read_json(folder / "config.json")["classes"] == counts
    for name in MODELS[command]:
        assert read_json(folder / name / "config.json")["classes"] == counts
        config = load_pretrained(folder / name / "pretrained").config
        assert dict(zip(config.class_names, config.class_counts, strict=True)) == counts
        assert (config.num_classes, config.label_dropout) == (10, 0.2)
        kind = f"{name[7:].split('-')[0]} samples" if command == "run" else "samples"
        seed = derive_seed(derive_seed(0, kind), "labels")
        found = drawn(folder, name)
        assert torch.equal(found.labels, draw_labels(config, 60, seed=seed))
        assert len(found.labels.unique()) > 5
    if command == "run":
        cache = TokenCache.open(folder / "tokens/2-frame-plain-seed0")
        assert torch.equal(cache.labels, digits.labels.train)
    if command == "diffusion":
        image = read_json(folder / "results/1-frame-seed0.json")["generation"]
        # Guided: with the class and without.
        assert (image["sampling_steps"], image["evaluations"]) == (3, 6)
        plots = {path.name for path in (folder / "plots").iterdir()}
        assert {"classes-1-frame.png", "classes-2-frame-high-order.png"} <= plots
        page = (folder / "report.md").read_text("utf-8")
        assert "models are told the images' classes" in page


def test_the_likelihood_is_that_of_the_test_images_classes(whole):
    folder = whole("hvae")
    images = load_generation_data("digits", image_size=8)
    binary = (images.test[:20] > 127).to(torch.uint8) * 255
    model = load_pretrained(folder / "models/learned-seed0/pretrained")
    found = [
        mean_bound(
            model, binary, labels, generator=torch.Generator().manual_seed(derive_seed(0, "bound"))
        )
        for labels in (images.labels.test[:20], images.labels.test[:20] * 0)
    ]
    told = read_json(folder / "results/learned-seed0.json")["bound"]
    assert told == found[0] != found[1]


def test_samples_are_of_the_classes_that_are_asked_for_by_name_or_number(whole, tmp_path, capsys):
    folder = whole("diffusion")
    for model in MODELS["diffusion"]:
        sample = f"generate sample --device cpu --num 20 --model {folder / model} --run-dir"
        own, asked = tmp_path / f"{model[7]}-own", tmp_path / f"{model[7]}-asked"
        assert tell(sample, own) == 0
        found, expected = load_samples(own / "samples.npz"), drawn(folder, model)
        assert torch.equal(found.labels, expected.labels[:20])
        # Of the run, guidance too; round-off of another batch size is at most one level.
        assert (found.images.int() - expected.images[:20].int()).abs().max() <= 1
        assert tell(f"{sample} {asked} --labels 3 7") == 0
        found = load_samples(asked / "samples.npz")
        assert found.labels.tolist() == [3, 7] * 10
        with Image.open(asked / "plots/samples.png") as picture:
            wide = picture.width
        assert wide > 10 * 96  # ten of a class behind its name
        for wrong, said in (
            ("--labels 3 11", "labels must be classes of the model, by name (0, 1, 2, 3, 4, 5, 6"),
            ("--labels three", "got 'three'"),
        ):
            assert tell(f"{sample} {tmp_path / 'no'} {wrong}") == 1
            assert said in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("command", "until"),
    [
        ("diffusion", "models/2-frame-high-order-seed0/config.json"),
        ("hvae", "models/learned-seed0/config.json"),
        ("run", "priors/masked-1-frame-plain-seed0"),
    ],
)
def test_a_killed_run_of_classes_goes_on_to_the_same_bytes(
    whole, tmp_path, command, until, killed, timeless
):
    folder = tmp_path / "killed"
    killed(f"{COMMANDS[command]} {TOLD}".split(), folder, until)
    for file in (whole(command) / "results").iterdir():
        assert timeless(read_json(folder / "results" / file.name)) == timeless(read_json(file))
    for name in MODELS[command]:
        file = f"{name}/pretrained/model.safetensors"
        assert (folder / file).read_bytes() == (whole(command) / file).read_bytes()
        one, other = (drawn(at, name) for at in (folder, whole(command)))
        for part in ("images", "videos", "labels"):
            assert torch.equal(getattr(one, part), getattr(other, part))


# -- What is refused ------------------------------------------------------------------------------


def test_settings_that_need_labels_are_refused_without():
    for given, said in (
        ({"label_dropout": 0.1}, "label_dropout needs labels, got 0.1 without them"),
        ({"guidance": 2.0}, "guidance needs labels, got 2.0 without them"),
        ({"labels": True, "label_dropout": 0, "guidance": 2.0}, "label_dropout above 0, got 2.0"),
        ({"labels": True, "label_dropout": 1.0}, r"label_dropout must be in \[0, 1\)"),
        ({"labels": True, "guidance": -1.0}, "guidance must be finite and not negative"),
    ):
        for settings in (DiffusionSettings, HvaeSettings):
            with pytest.raises(ValueError, match=said):
                settings.from_dict({"classes": given})
    counts = {"a": 3, "b": 1}
    named = {"class_names": ("a", "b"), "class_counts": (3, 1)}
    assert ClassSettings().spec(counts) == ClassSpec()
    for hidden, expected in ((None, 0.1), (0.0, 0.0), (0.3, 0.3)):
        spec = ClassSettings(labels=True, label_dropout=hidden).spec(counts)
        assert spec == ClassSpec(num_classes=2, label_dropout=expected, **named)


def write_images(folder, names, count=20):
    generator = torch.Generator().manual_seed(0)
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for place in range(count):
            shades = torch.randint(100 * number, 100 * number + 50, (8, 8), generator=generator)
            image = Image.fromarray(shades.to(torch.uint8).numpy())
            image.save(folder / name / f"{place}.png")


def test_data_without_classes_is_refused_with_the_reason_before_anything_is_written(
    tmp_path, capsys
):
    write_images(tmp_path / "flat", [""])
    write_images(tmp_path / "few/train", ["cat", "dog"])
    write_images(tmp_path / "few/test", ["cat", "emu"])
    run = tmp_path / "run"
    for data, said in (
        ("gaussian-digits", "labels needs data with classes, and gaussian-digits has none"),
        (f"folder:{tmp_path / 'flat'}", "a folder with a sub-folder for each class"),
        (f"folder:{tmp_path / 'few'}", "needs training images of each class, and folder:"),
    ):
        for command in COMMANDS.values():
            told = command.replace("--image-size 8", "")
            assert tell(f"{told} --data {data} --labels --run-dir", run) == 1
            assert said in " ".join(capsys.readouterr().err.split())
    assert not run.exists()


# -- What it is good for --------------------------------------------------------------------------


def test_a_classifier_of_real_digits_recognises_the_classes_of_guided_samples(tmp_path, digits):
    """Chance is a tenth; what is asked for is half, and what came was nine tenths and more."""
    from sklearn.linear_model import LogisticRegression

    command = DIFFUSION.replace("1-frame 2-frame-high-order", "1-frame").replace(
        "--steps 4 --batch-size 16", "--steps 120 --batch-size 64 --learning-rate 3e-3"
    )
    command = command.replace("--unet.base-channels 8", "--unet.base-channels 16")
    command = command.replace("--sampling-steps 3", "--sampling-steps 15")
    told = "--process.schedule cosine --ema-decay 0.99 --labels --guidance 2 --num-samples 200"
    assert tell(f"{command} {told} --run-dir", tmp_path / "run") == 0
    found = drawn(tmp_path / "run", "models/1-frame-seed0")
    pixels = to_unit(digits.train).flatten(1).numpy()
    classifier = LogisticRegression(max_iter=500).fit(pixels, digits.labels.train.numpy())
    guessed = torch.as_tensor(classifier.predict(to_unit(found.images).flatten(1).numpy()))
    right = guessed == found.labels
    assert right.float().mean() > 0.5
    # And by more than a permutation of the same labels.
    assert right.sum() > 2 * (guessed == found.labels.roll(1)).sum()
