"""Models as pipelines of diffusers: what is drawn, folders, cards, and the way to the hub."""

import json
from pathlib import Path

import diffusers
import huggingface_hub
import numpy as np
import pytest
import tiny_video
import torch
from diffusers.utils import hub_utils
from huggingface_hub.errors import EntryNotFoundError
from safetensors.torch import load_file, save_file
from tiny_video import SIZES, shaken

from damage import full_disk
from pseudovideo import HeatHVAE, HVAEConfig, ImageDiffusion, ImageDiffusionConfig
from pseudovideo.diffusion.frame_windows import Stage, stage_window
from pseudovideo.integrations import diffusers as integration
from pseudovideo.integrations.diffusers import PseudoVideoPipeline, to_ddpm_pipeline

# Of numpy, where diffusers' schedulers make arrays of tensors.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]


def image_model(**changes):
    torch.manual_seed(0)
    return shaken(ImageDiffusion(ImageDiffusionConfig(**{**SIZES, **changes}))).float()


def video_model(**changes):
    return tiny_video.video_model(**changes).float()


def pipeline_of(model, **options):
    pipeline = PseudoVideoPipeline(model, **options)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def drawn(pipeline, steps=5, n=2, seed=3, **options):
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(seed)
    given = {"num_inference_steps": steps, "generator": generator, "output_type": "np"}
    return pipeline(n, **{**given, **options})


@pytest.mark.parametrize(("num_steps", "steps"), [(40, 40), (1000, 5)])
def test_images_are_those_of_diffusers_own_pipeline_to_the_last_bit(tmp_path, num_steps, steps):
    pipeline = pipeline_of(image_model(num_steps=num_steps))
    pipeline.save_pretrained(tmp_path)
    plain = diffusers.DDPMPipeline.from_pretrained(tmp_path, use_safetensors=True)
    found, expected = drawn(pipeline, steps).images, drawn(plain, steps).images
    assert expected.std() > 0.01
    np.testing.assert_array_equal(found, expected)
    again = PseudoVideoPipeline.from_pretrained(tmp_path)
    assert again.model.config == pipeline.model.config
    np.testing.assert_array_equal(drawn(again, steps).images, expected)


def test_a_sample_with_a_generator_of_its_own_is_the_same_alone():
    pipeline = pipeline_of(video_model(num_classes=3))

    def draw(*seeds):
        several = tuple(torch.Generator().manual_seed(seed) for seed in seeds)
        labels = torch.ones(len(seeds), dtype=torch.int64)
        return drawn(pipeline, n=len(seeds), generator=several, labels=labels).frames

    np.testing.assert_allclose(draw(1, 2)[1:], draw(2), atol=1e-5)
    assert drawn(pipeline, n=2, generator=[torch.Generator()] * 2).images.shape[0] == 2
    pipeline.scheduler.step = lambda *a, **_: diffusers.utils.BaseOutput(prev_sample=a[2] / 0)
    with pytest.raises(ValueError, match="samples must be finite"):
        drawn(pipeline)


def test_weights_of_a_variant_are_read_and_others_named(tmp_path):
    to_ddpm_pipeline(image_model()).save_pretrained(tmp_path, variant="fp16")
    assert PseudoVideoPipeline.from_pretrained(tmp_path).model.config == image_model().config
    for file in (tmp_path / "unet").glob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))
    with pytest.raises(FileNotFoundError, match=r"hold the weights, and there is diff.*fp16\.bin"):
        PseudoVideoPipeline.from_pretrained(tmp_path)


@pytest.mark.parametrize("prediction", ["epsilon", "x0", "v"])
@pytest.mark.parametrize("num_steps", [40, 1000])
def test_the_network_and_every_step_are_the_models(num_steps, prediction):
    model = image_model(num_steps=num_steps, prediction=prediction)
    pipeline, generator = to_ddpm_pipeline(model), torch.Generator().manual_seed(0)
    unet, scheduler, process = pipeline.unet, pipeline.scheduler, model.diffusion
    scheduler.set_timesteps(num_steps)
    for t in (num_steps * 9 // 10, num_steps // 2, 1):
        x = torch.randn(2, 1, 8, 8, generator=generator)
        times = torch.full((2,), t)
        with torch.no_grad():
            output, found = model(x, process.model_times(times)), unet(x, t).sample
        assert torch.equal(output, found)
        seed = torch.Generator().manual_seed(1)
        after = scheduler.step(found, torch.tensor(t), x, generator=seed).prev_sample
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
        # diffusers' tables are float32: at t = 1 of 1,000, 1 − ᾱ of 2e-4 has a relative error of
        # 3e-4, which multiplies x_0 − x_t. It is small for a noise, and up to 5 for an image.
        atol = 2e-3 if prediction == "x0" else 2e-4
        expected = process.step(output, x, times, noise)
        torch.testing.assert_close(after, expected, atol=atol, rtol=5e-4)


@pytest.mark.parametrize(
    ("num_steps", "schedule", "prediction", "dtype"),
    [
        (40, "cosine", "epsilon", torch.float32),
        (1000, "linear", "v", torch.bfloat16),
        (40, "cosine", "x0", torch.float16),
    ],
)
def test_a_folder_comes_back_as_the_model(tmp_path, num_steps, schedule, prediction, dtype):
    changes = {"num_steps": num_steps, "schedule": schedule, "prediction": prediction}
    model = image_model(**changes).to(dtype)
    to_ddpm_pipeline(model).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "unet" / "diffusion_pytorch_model.safetensors")
    assert {value.dtype for value in stored.values()} == {dtype}
    again = PseudoVideoPipeline.from_pretrained(tmp_path).model
    assert again.config == model.config
    state = again.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("steps", [5, 20, 100])
def test_ddim_walks_in_equal_steps_of_any_divisor(schedule, steps):
    model = image_model(num_steps=1000, schedule=schedule)
    pipeline = pipeline_of(model)
    pipeline.scheduler = diffusers.DDIMScheduler.from_config(pipeline.scheduler.config)
    found = drawn(pipeline, steps, output_type="pt").images
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    kept = [1.0, *model.diffusion.alpha_bars.tolist()]
    for t in range(1000, 0, -1000 // steps):
        with torch.no_grad():
            eps = model(x, torch.full((2,), t - 1.0)).chunk(2, dim=1)[0]
        image = ((x - (1 - kept[t]) ** 0.5 * eps) / kept[t] ** 0.5).clamp(-1, 1)
        eps = (x - kept[t] ** 0.5 * image) / (1 - kept[t]) ** 0.5
        before = kept[t - 1000 // steps]
        x = before**0.5 * image + (1 - before) ** 0.5 * eps
    assert x.std() > 0.05
    with pytest.raises(ValueError, match="num_inference_steps must divide the 1000 steps"):
        drawn(pipeline, 600)
    # diffusers' tables are in float32.
    torch.testing.assert_close(found, x / 2 + 0.5, rtol=0, atol=5e-3)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model_index.json", "{"),
        ("model_index.json", "[1]"),
        ("model_index.json", '{"_class_name": "DDPMPipeline"}'),
        ("scheduler/scheduler_config.json", "{"),
        ("scheduler/scheduler_config.json", "[]"),
        ("unet/config.json", "{"),
        ("unet/diffusion_pytorch_model.safetensors", "no weights"),
    ],
)
def test_damaged_folders_are_named(tmp_path, name, content):
    pipeline_of(image_model()).save_pretrained(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"^{tmp_path}.* (is damaged|must h)"):
        PseudoVideoPipeline.from_pretrained(tmp_path)


def test_only_damage_is_told_as_damage(tmp_path, monkeypatch):
    to_ddpm_pipeline(image_model()).save_pretrained(tmp_path)
    file = tmp_path / "unet" / "diffusion_pytorch_model.safetensors"
    weights = load_file(file)
    save_file({name: value for name, value in weights.items() if "conv_in" not in name}, file)
    with pytest.raises(ValueError, match=rf"(?s){file} does not .*conv_in"):
        PseudoVideoPipeline.from_pretrained(tmp_path)

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(integration, "load_file", full)
    with pytest.raises(MemoryError):
        PseudoVideoPipeline.from_pretrained(tmp_path)


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: diffusers.UniPCMultistepScheduler.from_config(c), "got a UniPCMultistep"),
        (lambda c: diffusers.DDIMScheduler.from_config(c, prediction_type="sample"), "'epsilon'"),
        (lambda c: diffusers.DDPMScheduler.from_config(c, variance_type="fixed_small"), "learned_"),
        (lambda c: diffusers.DDPMScheduler(variance_type="learned_range"), "process of 40 steps"),
        (lambda c: diffusers.DDIMScheduler.from_config(c, rescale_betas_zero_snr=True), "betas"),
    ],
)
def test_schedulers_of_other_kinds_and_processes_are_refused(change, message):
    pipeline = pipeline_of(image_model())
    pipeline.scheduler = change(pipeline.scheduler.config)
    with pytest.raises(ValueError, match=f"scheduler must .*{message}"):
        drawn(pipeline)


def slow_video(model, steps, noises):
    """Ancestral sampling of one video by the formulas of improved DDPM, frame sets as listed."""
    process, config = model.diffusion.respaced(steps), model.config
    video = torch.zeros(4, 1, 8, 8)
    for observed, latent, limit in (([], [0, 1], 6.1), ([0, 1], [2], 6.1), ([1, 2], [3], 1.0)):
        x = next(noises)
        for step in reversed(range(steps)):
            frames = torch.cat([video[observed], x])[None]
            window = stage_window(Stage(tuple(observed), tuple(latent)), 1)
            time = torch.tensor([process.timesteps[step] * 1000 / config.num_steps])
            with torch.no_grad():
                output = model.network(frames, time, window)[0, len(observed) :]
            t = torch.full((len(latent),), step)
            noise = next(noises) if step else None
            x = process.step(output, x, t, noise, limit=limit)
        video[latent] = x
    return video


@pytest.mark.parametrize("one_way", [False, True])
def test_videos_are_those_of_the_formulas_stage_by_stage(monkeypatch, one_way):
    model, made = video_model(one_way=one_way), []
    randn = diffusers.utils.torch_utils.randn_tensor

    def noted(*args, **options):
        made.append(randn(*args, **options))
        return made[-1]

    monkeypatch.setattr(diffusers.utils.torch_utils, "randn_tensor", noted)
    monkeypatch.setattr(diffusers.schedulers.scheduling_ddpm, "randn_tensor", noted)
    found = drawn(pipeline_of(model), 4, 1, output_type="pt").frames[0]
    noises = (noise[0].unflatten(0, (-1, 1)) for noise in made if noise.shape[-1] == 8)
    expected = slow_video(model, 4, noises)
    torch.testing.assert_close(found, (expected / 2 + 0.5).clamp(0, 1), atol=2e-4, rtol=0)
    assert 0.1 < expected[:3].std() < 6


def test_a_folder_of_videos_comes_back_with_scheduler_and_card(tmp_path):
    pipeline = pipeline_of(video_model(), trained_on="digits of scikit-learn", license="mit")
    pipeline.scheduler = diffusers.DDIMScheduler.from_config(pipeline.scheduler.config)
    with pytest.raises(OSError, match=r"digits'$"), full_disk(10_000):
        pipeline.save_pretrained(tmp_path / "digits")
    assert list(tmp_path.iterdir()) == []
    pipeline.save_pretrained(tmp_path / "digits")
    again = PseudoVideoPipeline.from_pretrained(tmp_path / "digits")
    assert type(again.scheduler) is diffusers.DDIMScheduler
    np.testing.assert_array_equal(drawn(again).frames, drawn(pipeline).frames)
    again.save_pretrained(tmp_path / "digits")
    card = huggingface_hub.ModelCard.load(tmp_path / "digits" / "README.md")
    assert (card.data.license, card.data.library_name) == ("mit", "pseudovideo")
    assert "trained on digits of scikit-learn" in card.text
    assert f"{sum(p.numel() for p in again.model.parameters()):,} parameters" in card.text
    weights = [path.suffix for path in tmp_path.rglob("*") if path.stat().st_size > 10_000]
    assert weights == [".safetensors"]


def test_other_precisions_are_stored_loaded_and_sampled(tmp_path):
    pipeline = pipeline_of(video_model())
    pipeline.save_pretrained(tmp_path)
    half = PseudoVideoPipeline.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    found = drawn(half, output_type="pt").frames
    assert found.dtype == torch.float32
    # Digits of bfloat16, through 15 steps.
    assert (found - drawn(pipeline, output_type="pt").frames).abs().mean() < 0.05
    assert half.to(torch.float32).dtype == torch.float32
    assert half.to("cpu").device.type == "cpu"


class Hub:
    """What the mixin asks of huggingface_hub, without a network."""

    def __init__(self, card=None):
        self.card, self.files = card, {}

    def create_repo(self, repo_id, **options):
        return huggingface_hub.RepoUrl(f"https://huggingface.co/me/{repo_id}")

    def load(self, repo_id, **options):
        if self.card is None:
            raise EntryNotFoundError("no card")
        return huggingface_hub.ModelCard(self.card)

    def file_exists(self, repo_id, name, **options):
        assert (repo_id, name) == ("me/digits", "README.md")
        return self.card is not None

    def upload_folder(self, *, repo_id, folder_path, **options):
        self.repo_id = repo_id
        folder = Path(folder_path)
        self.files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }


@pytest.mark.parametrize("card", [None, "---\nlicense: mit\n---\nWritten by hand.\n"])
def test_a_pipeline_goes_to_the_hub_with_its_card_unless_there_is_one(monkeypatch, tmp_path, card):
    hub = Hub(card)
    monkeypatch.setattr(hub_utils, "create_repo", hub.create_repo)
    monkeypatch.setattr(hub_utils, "upload_folder", hub.upload_folder)
    monkeypatch.setattr(hub_utils.ModelCard, "load", hub.load)
    monkeypatch.setattr(huggingface_hub, "file_exists", hub.file_exists)
    pipeline = pipeline_of(video_model(), license="mit")
    pipeline.push_to_hub("digits")
    assert hub.repo_id == "me/digits"
    own = {"README.md", "model_index.json", "scheduler/scheduler_config.json"}
    assert hub.files.keys() == own | {"model/config.json", "model/model.safetensors"}
    text = hub.files["README.md"].decode()
    assert ("Written by hand." in text) == (card is not None)
    assert ('from_pretrained("me/digits")' in text) == (card is None)
    for name, content in hub.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    asked = []

    def snapshot_download(name, **options):
        asked.append((name, options["revision"], options["allow_patterns"]))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    again = PseudoVideoPipeline.from_pretrained("me/digits", revision="main")
    assert asked == [("me/digits", "main", ["*.json", "*.safetensors", "README.md"])]
    np.testing.assert_array_equal(drawn(again).frames, drawn(pipeline).frames)


CLASSES = {"num_classes": 3, "label_dropout": 0.1}


@pytest.mark.parametrize("scheduler", ["DDPMScheduler", "DDIMScheduler"])
@pytest.mark.parametrize("kind", ["image", "video"])
def test_labels_and_guidance_mix_the_noise_with_the_class_and_without(monkeypatch, kind, scheduler):
    """A network that tells a number by the token, and one that tells the guided mixture."""
    model = image_model(**CLASSES) if kind == "image" else video_model(**CLASSES)
    told = torch.tensor([-0.3, 0.2, 0.5, 0.1])  # of the classes, and without one
    network, where, seen = (model, 1, []) if kind == "image" else (model.network, 2, [])

    def forward(x, times, *others):
        seen.append(others[-1].tolist())
        noise = told[others[-1]].view(-1, *[1] * (x.ndim - 1)).expand_as(x)
        return torch.cat([noise, torch.zeros_like(noise)], dim=where)

    monkeypatch.setattr(network, "forward", forward)
    pipeline = pipeline_of(model)
    own = getattr(diffusers, scheduler).from_config(pipeline.scheduler.config)
    labels, guidance = torch.tensor([2, 0]), 2.5
    pipeline.scheduler = own
    found = drawn(pipeline, 4, labels=labels, guidance=guidance, output_type="pt").frames
    assert set(map(tuple, seen)) == {(2, 0, 3, 3)}
    # What the network says of the class itself, where that is the mixture.
    mixed = told[3] + guidance * (told[labels] - told[3])
    monkeypatch.setattr(
        network,
        "forward",
        lambda x, times, *others: torch.cat(
            [mixed.view(-1, *[1] * (x.ndim - 1)).expand_as(x), torch.zeros_like(x)], dim=where
        ),
    )
    expected = drawn(pipeline, 4, labels=labels, output_type="pt").frames
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (
        found - drawn(pipeline, 4, labels=labels, seed=4, output_type="pt").frames
    ).abs().max() > 0.1


def test_pipelines_of_classes_draw_them_and_come_back_from_their_folder(tmp_path):
    for name, model in (("i", image_model(**CLASSES)), ("v", video_model(**CLASSES))):
        pipeline = pipeline_of(model)
        pipeline.save_pretrained(tmp_path / name)
        again = PseudoVideoPipeline.from_pretrained(tmp_path / name)
        for given in ({}, {"labels": torch.tensor([1, 2]), "guidance": 3.0}):
            first, second = drawn(pipeline, **given), drawn(again, **given)
            np.testing.assert_array_equal(first.frames, second.frames)
    with pytest.raises(ValueError, match="guidance must be 1"):
        drawn(pipeline_of(image_model()), guidance=2.0)
    with pytest.raises(ValueError, match="labels must"):
        drawn(pipeline, labels=torch.tensor([1, 3]))


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"num_inference_steps": 0}, "num_inference_steps must be a whole number of at least 1"),
        ({"num_inference_steps": 41}, "num_inference_steps must be at most the 40 .* got 41"),
        ({"generator": 3}, "generator must be a torch.Generator, or batch_size=1 of them, got 3"),
        ({"generator": (torch.Generator(),) * 2}, "generator must be .* batch_size=1 of them"),
        ({"output_type": "latent"}, "output_type must be .* got 'latent'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        pipeline_of(image_model())(**options)


@pytest.mark.usefixtures("plain_calls")
def test_what_is_no_pipeline_of_ours_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model_index\.json must be a file"):
        PseudoVideoPipeline.from_pretrained(tmp_path)
    pipeline = pipeline_of(video_model())
    with pytest.raises(ValueError, match="safe_serialization must be True"):
        pipeline.save_pretrained(tmp_path, safe_serialization=False)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="save_directory must be a folder"):
        pipeline.save_pretrained(tmp_path / "file")
    pipeline.save_pretrained(tmp_path)
    index = json.loads((tmp_path / "model_index.json").read_text())

    def changed(**changes):
        (tmp_path / "model_index.json").write_text(json.dumps({**index, **changes}))
        return tmp_path

    with pytest.raises(ValueError, match="DDPMPipeline, got a StableDiffusionPipeline"):
        PseudoVideoPipeline.from_pretrained(changed(_class_name="StableDiffusionPipeline"))
    with pytest.raises(ValueError, match="must have a DDPMScheduler or DDIMScheduler, got UNet"):
        PseudoVideoPipeline.from_pretrained(changed(scheduler=["diffusers", "UNet2DModel"]))
    HeatHVAE(
        HVAEConfig(image_size=8, channels=1, base_channels=8, num_groups=4, attention_sizes=(4,))
    ).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="must hold a diffusion model, got a HeatHVAE"):
        PseudoVideoPipeline.from_pretrained(changed())


def test_what_the_other_side_cannot_hold_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"attention at levels of one width.*widths \[8, 16\]"):
        to_ddpm_pipeline(image_model(attention_sizes=(8, 4)))
    with pytest.raises(ValueError, match=r"no classes.*num_classes=3"):
        to_ddpm_pipeline(image_model(num_classes=3))
    foreign = to_ddpm_pipeline(image_model())
    foreign.unet = diffusers.UNet2DModel(
        8,
        1,
        2,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D",) * 2,
        up_block_types=("UpBlock2D",) * 2,
    )
    foreign.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="must hold a UNet that was exported from here"):
        PseudoVideoPipeline.from_pretrained(tmp_path)
