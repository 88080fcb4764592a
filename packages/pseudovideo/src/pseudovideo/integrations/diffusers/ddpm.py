"""Image diffusion models as diffusers' `DDPMPipeline`, and back."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from probseq.errors import require
from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.pretrained import plain_tensors
from pseudovideo.spec import ImageDiffusionConfig, Prediction, UNetConfig

diffusers: Any = require("diffusers", extra="diffusion", distribution="pseudovideo")

_MODEL_STEPS = 1000  # of the scale on which a UNet is told the time
# Where in their range the variances of diffusers' fixed kinds lie: at the posterior's, at β.
_FIXED = {"fixed_small": -1.0, "fixed_large": 1.0}
# Names of predictions at diffusers.
_PREDICTIONS: dict[str, Prediction] = {
    "epsilon": "epsilon",
    "sample": "x0",
    "v_prediction": "v",
}
# β of diffusers' schedulers are in float32.
_TOLERANCE = 1e-5
# Settings of a UNet that change nothing of what it computes.
_FREE = {"sample_size", "num_train_timesteps", "time_embedding_type"}


def to_ddpm_pipeline(
    model: ImageDiffusion, *, variance: Literal["learned", "fixed"] = "learned"
) -> Any:
    """Return a copy of a model as diffusers' `DDPMPipeline`.

    Its `save_pretrained` writes a folder that `diffusers.DDPMPipeline.from_pretrained` reads
    without this package. Sampled in all steps it draws from the same Gaussians as
    `ImageDiffusion.sample`, with other noise. Where the process has not 1,000 steps, the sinusoids
    of the times are stored as a learned embedding.

    Args:
        model: the model.
        variance: "learned", or "fixed": the network's variances are left out for those of the
            posterior, as diffusers' other schedulers (DDIM, DPM-Solver++, UniPC) need it.

    Raises:
        ValueError: another `variance`, a model of classes, which `DDPMPipeline` has no labels for,
            or attention at levels of different width: diffusers fixes
            the width of a head, the model the number of heads.
    """
    if variance not in ("learned", "fixed"):
        raise ValueError(f'variance must be "learned" or "fixed", got {variance!r}')
    config = model.config
    if config.num_classes is not None:
        raise ValueError(
            "model must have no classes to be a DDPMPipeline, which gives its UNet no labels, got "
            f"num_classes={config.num_classes}"
        )
    if not heads_have_one_width(config):
        raise ValueError(
            "model must have attention at levels of one width, the last among them, to be a "
            f"UNet2DModel of diffusers, got {sorted(_attention_widths(config))}: its heads have "
            "one width everywhere"
        )
    with torch.random.fork_rng(devices=[]):  # its weights are drawn, and thrown away
        plain: Any = ImageDiffusion(config).unet
    weights = {
        name: value.detach().cpu().clone()
        for name, value in plain_tensors(model.unet, plain.state_dict()).items()
    }
    settings = {name: value for name, value in plain.config.items() if not name.startswith("_")}
    settings["attention_head_dim"] = config.widths[-1] // config.num_heads
    steps = config.num_steps
    if steps != _MODEL_STEPS:
        settings |= {"time_embedding_type": "learned", "num_train_timesteps": steps}
        weights["time_proj.weight"] = _sinusoids(plain, model.diffusion)
    if variance == "fixed":
        settings["out_channels"] = config.channels
        for name in ("conv_out.weight", "conv_out.bias"):
            weights[name] = weights[name][: config.channels].clone()
    unet = diffusers.UNet2DModel(**settings).to(model.dtype)
    unet.load_state_dict(weights)
    scheduler = ddpm_scheduler(model.diffusion, variance=variance)
    return diffusers.DDPMPipeline(unet=unet.eval(), scheduler=scheduler)


def ddpm_scheduler(
    process: GaussianDiffusion, *, variance: Literal["learned", "fixed"] = "learned"
) -> Any:
    """Return diffusers' `DDPMScheduler` of a process that was learned.

    Fewer steps are spread evenly from the last to the first, as `GaussianDiffusion.respaced` does.

    Args:
        process: in all its steps.
        variance: "learned", or "fixed" for the posterior's.
    """
    return diffusers.DDPMScheduler(
        num_train_timesteps=process.num_steps,
        trained_betas=process.betas.tolist(),
        variance_type="learned_range" if variance == "learned" else "fixed_small",
        clip_sample=True,
        prediction_type=next(
            k for k, prediction in _PREDICTIONS.items() if prediction == process.prediction
        ),
        timestep_spacing="linspace",
    )


def heads_have_one_width(config: UNetConfig) -> bool:
    """Whether attention is at levels of one width alone, as diffusers' `UNet2DModel` needs it."""
    return len(_attention_widths(config)) == 1


def image_model(folder: Path, scheduler: Any) -> ImageDiffusion:
    """Return the model of a folder that diffusers' `DDPMPipeline.save_pretrained` wrote.

    Fixed variances become learned ones that are constant, and so does the posterior's where the
    scheduler has none. Only safetensors are read.

    Raises:
        ValueError: a UNet that is not improved DDPM's, or a process without its linear or cosine
            schedule.
    """
    with reading_folder(folder / "unet"):
        unet = diffusers.UNet2DModel.from_pretrained(
            folder / "unet",
            torch_dtype=_stored_dtype(folder / "unet"),
            use_safetensors=True,
            local_files_only=True,
        )
    is_ddpm = isinstance(scheduler, diffusers.DDPMScheduler)
    scheduler = diffusers.DDPMScheduler.from_config(scheduler.config)
    fixed = _check_scheduler(folder, scheduler.config, is_ddpm=is_ddpm)
    config = _config_of(folder, unet.config, scheduler)
    model = ImageDiffusion(config)
    expected = dict(to_ddpm_pipeline(model).unet.config)
    expected["out_channels"] = unet.config.out_channels
    wrong = sorted(
        name
        for name, value in expected.items()
        if not name.startswith("_")
        and name not in _FREE
        and _plain(unet.config.get(name)) != _plain(value)
    )
    outputs = config.channels * (1 if fixed is not None else 2)
    if wrong or unet.config.out_channels != outputs:
        differing = {name: unet.config.get(name) for name in wrong or ["out_channels"]}
        raise ValueError(
            f"{folder} must hold a UNet of improved DDPM, and it differs in {differing}"
        )
    weights = dict(unet.state_dict())
    times = weights.pop("time_proj.weight", None)
    if (times is None) != (config.num_steps == _MODEL_STEPS) or (
        times is not None
        and not torch.allclose(times, _sinusoids(model.unet, model.diffusion).to(times), atol=1e-5)
    ):
        raise ValueError(f"{folder} must tell its UNet the times on a scale of 1,000 steps")
    if fixed is not None:
        last = "conv_out."
        weights[f"{last}weight"] = _doubled(weights[f"{last}weight"], 0.0)
        weights[f"{last}bias"] = _doubled(weights[f"{last}bias"], fixed)
    model = model.to(unet.dtype)
    model.unet.load_state_dict(weights)
    return model.eval()


@contextmanager
def reading_folder(folder: Path) -> Generator[None]:
    """Name the folder in what a library raises of files that are missing or damaged.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: what it holds is damaged.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} must be a folder of a pipeline, and is not there")
    try:
        yield
    except FileNotFoundError:
        raise
    # What JSON, safetensors, the hub, torch and wrong values in a config end in. A package that a
    # scheduler lacks and a full memory are no damage.
    except (
        *(ValueError, TypeError, LookupError, AttributeError),
        *(OSError, RuntimeError, SafetensorError),
    ) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder} is damaged: {type(error).__name__}: {reason}") from error


def read_settings(path: Path) -> dict[str, Any]:
    """Return what a JSON file of settings holds; raise ValueError where that is something else."""
    settings: Any = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(settings, dict):
        raise ValueError(f"{path.name} must hold settings by name, got {type(settings).__name__}")
    return settings


def _stored_dtype(folder: Path) -> torch.dtype:
    """Return the precision of the weights in a folder; float32 where they have several."""
    dtypes: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            dtypes |= {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    names = {"F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
    return names.get(next(iter(dtypes)), torch.float32) if len(dtypes) == 1 else torch.float32


def _attention_widths(config: UNetConfig) -> set[int]:
    sizes = zip(config.widths, config.sizes, strict=True)
    # There is always attention in the middle.
    return {width for width, size in sizes if size in config.attention_sizes} | {config.widths[-1]}


def _check_scheduler(folder: Path, config: Any, *, is_ddpm: bool) -> float | None:
    """Return where fixed variances lie in their range; None for learned ones.

    Schedulers other than DDPM's have none, and those of the posterior stand in.
    """
    kind = config.variance_type if is_ddpm else "fixed_small"
    known = kind == "learned_range" or kind in _FIXED
    clips = config.clip_sample and config.clip_sample_range == 1.0 and not config.thresholding
    if not (known and clips and config.prediction_type in _PREDICTIONS):
        raise ValueError(
            f"{folder} must have a prediction_type of {', '.join(_PREDICTIONS)}, keep images in "
            f"-1..1 and have a variance_type of learned_range, {' or '.join(_FIXED)}, got "
            f"prediction_type={config.prediction_type!r}, clip_sample={config.clip_sample}, "
            f"variance_type={kind!r}"
        )
    return _FIXED.get(kind)


def _config_of(folder: Path, unet: Any, scheduler: Any) -> ImageDiffusionConfig:
    steps = len(scheduler.betas)
    widths, size = unet.block_out_channels, unet.sample_size
    attends = ["Attn" in name for name in unet.down_block_types]
    head = unet.attention_head_dim or widths[-1]
    values: dict[str, Any] = {
        "image_size": size,
        "channels": unet.in_channels,
        "base_channels": widths[0],
        "channel_multipliers": tuple(width // widths[0] for width in widths),
        "num_res_blocks": unet.layers_per_block,
        "attention_sizes": tuple(
            size >> level for level, attending in enumerate(attends) if attending
        ),
        "num_heads": max(1, widths[-1] // head),
        "num_groups": unet.norm_num_groups,
        "dropout": unet.dropout,
        "num_steps": steps,
        "prediction": _PREDICTIONS[scheduler.config.prediction_type],
    }
    for schedule in ("linear", "cosine"):
        config = ImageDiffusionConfig(**values, schedule=schedule)
        betas = GaussianDiffusion.make(steps, schedule).betas
        if torch.allclose(scheduler.betas.double(), betas, rtol=_TOLERANCE, atol=1e-7):
            return config
    raise ValueError(f"{folder} must have the linear or the cosine schedule of {steps} steps")


def _doubled(tensor: Tensor, value: float) -> Tensor:
    return torch.cat([tensor, torch.full_like(tensor, value)])


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


def _sinusoids(unet: Any, process: GaussianDiffusion) -> Tensor:
    """Return sinusoids of all times, as a UNet makes them."""
    return unet.time_proj(process.model_times(torch.arange(process.num_steps)))
