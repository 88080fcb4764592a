"""Diffusion models of images and of pseudo videos as pipelines of diffusers.

They are sampled with its DDPM and DDIM schedulers, loaded, saved and shared in its way; the models'
own `sample` has noise of its own for each sample.
"""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Int64
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from probseq.checks import check_counts
from probseq.errors import require
from probseq.files import replace_files, write_atomic
from probseq.pretrained import fill_weights, local_folder, unwrapped_state_dict
from pseudovideo.diffusion.base import FRAME_LIMIT
from pseudovideo.diffusion.frame_windows import Stage
from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.sampling import conditioned
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.labels import Classes, sample_classes
from pseudovideo.pretrained import eval_mode, load_pretrained
from pseudovideo.sampling import at_least_float32
from pseudovideo.spec import ImageDiffusionConfig, Prediction

__all__ = ["PseudoVideoOutput", "PseudoVideoPipeline", "to_ddpm_pipeline"]

diffusers: Any = require("diffusers", extra="diffusion", distribution="pseudovideo")
huggingface_hub: Any = require("huggingface_hub", extra="diffusion", distribution="pseudovideo")

_INDEX, _CARD, _MODEL, _SCHEDULER = "model_index.json", "README.md", "model", "scheduler"
_WEIGHTS = "diffusion_pytorch_model.safetensors"
# Nothing else of a repository is fetched.
_FILES = ["*.json", "*.safetensors", _CARD]
_MODEL_STEPS = 1000  # of the scale on which a UNet is told the time
# Names of predictions at diffusers.
_PREDICTIONS: dict[str, Prediction] = {"epsilon": "epsilon", "sample": "x0", "v_prediction": "v"}
# diffusers' tables are in float32.
_TOLERANCE = 1e-5
# Where the config of a UNet has the settings of the model; diffusers passes over such names.
_SETTINGS = "_pseudovideo"
_TEMPLATE = """---
license: {license}
library_name: {library}
pipeline_tag: unconditional-image-generation
tags:
- pseudovideo
- diffusion
---

# {name}

A diffusion model that draws images: an image is the last frame of a pseudo video of {frames}.

Images of {shape}, trained on {trained_on}; {parameters:,} parameters; {steps:,} diffusion steps.

```python
from pseudovideo.integrations.diffusers import PseudoVideoPipeline

images = PseudoVideoPipeline.from_pretrained("{name}")(batch_size=4, num_inference_steps=50).images
```
"""


@dataclass
class PseudoVideoOutput(diffusers.utils.BaseOutput):
    """Samples of a pipeline; pixels are in 0..1."""

    # The last frames: a list of PIL images, an array (n, h, w, c) or a tensor (n, c, h, w)
    images: Any
    # All frames: lists of PIL images, an array (n, T, h, w, c) or a tensor (n, T, c, h, w). T is 1
    # for an image model
    frames: Any


class PseudoVideoPipeline(diffusers.DiffusionPipeline):
    """A diffusion model of images or of pseudo videos, with diffusers' DDPM or DDIM scheduler.

    `scheduler` may be changed in the way of diffusers: `pipeline.scheduler =
    diffusers.DDIMScheduler.from_config(pipeline.scheduler.config)`. Each stage of a video has a
    scheduler of its own with these settings. DDIM does not use the learned variances.

    A model of images with the DDPM scheduler is saved as a plain `DDPMPipeline`, which reads and
    samples the folder to the same bits, unless it has classes or attention at levels of different
    widths, which that cannot hold. All others are saved as `Pretrained` saves them.

    Args:
        model: what draws.
        scheduler: for the process of the model; None: its DDPM scheduler.
        trained_on: for the model card, such as the name of the data set.
        license: for the model card, such as "mit".
    """

    _optional_components = (_SCHEDULER,)

    def __init__(
        self,
        model: ImageDiffusion | VideoDiffusion,
        scheduler: Any = None,
        trained_on: str | None = None,
        license: str | None = None,
    ) -> None:
        super().__init__()
        self.model: ImageDiffusion | VideoDiffusion
        self.scheduler: Any
        self.register_modules(model=model, scheduler=scheduler or _ddpm_scheduler(model.diffusion))
        self.trained_on, self.license = trained_on, license

    @torch.no_grad()
    def __call__(
        self,
        batch_size: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        num_inference_steps: int | None = None,
        labels: Int64[Tensor, " n"] | None = None,
        guidance: float = 1.0,
        output_type: Literal["pil", "np", "pt"] = "pil",
        return_dict: bool = True,
    ) -> PseudoVideoOutput | tuple[Any, Any]:
        """Draw images, or videos stage by stage, with the model in eval mode.

        Args:
            batch_size: number of samples.
            generator: of the noise; several are those of the samples, the first of the classes.
            num_inference_steps: of the scheduler in each stage; None: all of the process.
            labels: class of each sample, as of the model's `sample`.
            guidance: likewise.
            output_type: what is returned: "pil", "np" or "pt".
            return_dict: False returns a tuple of images and frames.
        """
        model, config = self.model, self.model.config
        steps = config.num_steps if num_inference_steps is None else num_inference_steps
        check_counts(batch_size=batch_size, num_inference_steps=steps)
        if steps > config.num_steps:
            raise ValueError(
                f"num_inference_steps must be at most the {config.num_steps} steps of the process, "
                f"got {steps}"
            )
        several = isinstance(generator, Sequence)
        generators = list(generator) if several else [generator] * batch_size
        kinds: set[type] = {type(each) for each in generators}
        if len(generators) != batch_size or not kinds <= {torch.Generator, type(None)}:
            raise ValueError(
                f"generator must be a torch.Generator, or {batch_size=} of them, got {generator!r}"
            )
        noise = generators if several else generators[0]  # diffusers knows lists alone
        if output_type not in ("pil", "np", "pt"):
            raise ValueError(f'output_type must be "pil", "np" or "pt", got {output_type!r}')
        _check_scheduler(self.scheduler, model.diffusion)
        if isinstance(self.scheduler, diffusers.DDIMScheduler) and config.num_steps % steps:
            raise ValueError(
                f"num_inference_steps must divide the {config.num_steps} steps of the process for "
                f"DDIM, which takes its steps to be of equal length, got {steps}"
            )
        device, dtype = self._execution_device, at_least_float32(next(model.parameters()))
        shape = (batch_size, model.num_frames, *config.image_shape)
        frames = torch.zeros(shape, device=device, dtype=dtype)
        classes = sample_classes(
            config, batch_size, labels, guidance, generator=generators[0], device=device
        )
        with eval_mode(model), self.progress_bar(total=steps * len(model.stages)) as bar:
            for stage in model.stages:
                latent = list(stage.latent)
                predict = self._predictor(stage, frames, classes)
                scheduler = deepcopy(self.scheduler)
                # Corrupted frames go beyond the range of images.
                if latent[-1] + 1 < model.num_frames and scheduler.config.clip_sample:
                    scheduler.register_to_config(clip_sample_range=FRAME_LIMIT)
                if isinstance(scheduler, diffusers.DDIMScheduler):
                    scheduler.register_to_config(timestep_spacing="trailing")
                scheduler.set_timesteps(steps, device=device)
                x = diffusers.utils.torch_utils.randn_tensor(
                    (batch_size, len(latent) * config.channels, *shape[-2:]),
                    generator=noise,
                    device=device,
                    dtype=dtype,
                )
                for t in scheduler.timesteps:
                    output, options = predict(x, t), dict[str, Any](generator=noise)
                    if isinstance(scheduler, diffusers.DDIMScheduler):
                        output = output.chunk(2, dim=1)[0]
                        # The noise of the clipped image, as of `GaussianDiffusion.ddim_step`.
                        options["use_clipped_model_output"] = True
                    x = scheduler.step(output, t, x, **options).prev_sample
                    bar.update()
                frames[:, latent] = x.unflatten(1, (len(latent), -1)).to(dtype)
        if not frames.isfinite().all():
            raise ValueError("samples must be finite, got NaN or infinity from model or scheduler")
        videos = _as_type(frames, output_type)
        images = [video[-1] for video in videos] if output_type == "pil" else videos[:, -1]
        return PseudoVideoOutput(images, videos) if return_dict else (images, videos)

    def save_pretrained(
        self, save_directory: Path | str, safe_serialization: bool = True, variant: None = None
    ) -> None:
        """Write model, scheduler and model card into a folder; weights are in safetensors only."""
        if not safe_serialization or variant is not None:  # `push_to_hub` gives both
            raise ValueError(
                "safe_serialization must be True and variant None, got "
                f"{safe_serialization} and {variant!r}"
            )
        folder, model = Path(save_directory), self.model
        _check_scheduler(self.scheduler, model.diffusion)
        if folder.is_file():
            raise ValueError(f"save_directory must be a folder, got the file {folder}")
        plain = isinstance(self.scheduler, diffusers.DDPMScheduler)
        with replace_files(folder, _INDEX) as aside:
            if isinstance(model, ImageDiffusion) and plain and _has_ddpm_pipeline(model.config):
                pipeline = to_ddpm_pipeline(model)
                pipeline.scheduler = self.scheduler
                pipeline.save_pretrained(aside)
            else:
                model.save_pretrained(aside / _MODEL)
                self.scheduler.save_pretrained(aside / _SCHEDULER)
                self.save_config(aside)
            origin = {"_trained_on": self.trained_on, "_license": self.license}
            index = _read_settings(aside / _INDEX) | origin
            write_atomic(aside / _INDEX, json.dumps(index, indent=2) + "\n")
            self._write_card(aside, folder.name)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Path | str,
        *,
        torch_dtype: torch.dtype | None = None,
        revision: str | None = None,
    ) -> "PseudoVideoPipeline":
        """Read a folder, or a repository of the hub, in eval mode on the CPU.

        Args:
            pretrained_model_name_or_path: what `save_pretrained` or `to_ddpm_pipeline` wrote.
            torch_dtype: precision of the weights; None: that of the files.
            revision: of a repository.

        Raises:
            FileNotFoundError: a file is missing.
        """
        folder = local_folder(pretrained_model_name_or_path, _FILES, revision=revision)
        index = _read_settings(folder / _INDEX)
        kind, (_, name) = index.get("_class_name"), index.get(_SCHEDULER, (None, None))
        if kind not in (cls.__name__, "DDPMPipeline"):
            raise ValueError(f"{folder} must hold a {cls.__name__} or DDPMPipeline, got a {kind}")
        if name not in ("DDPMScheduler", "DDIMScheduler"):
            raise ValueError(f"{folder} must have a DDPMScheduler or DDIMScheduler, got {name}")
        settings = _read_settings(folder / _SCHEDULER / "scheduler_config.json")
        scheduler = getattr(diffusers, name).from_config(settings)
        plain = kind == "DDPMPipeline"
        model = _image_model(folder) if plain else load_pretrained(folder / _MODEL)
        if not isinstance(model, (ImageDiffusion, VideoDiffusion)):
            raise ValueError(f"{folder} must hold a diffusion model, got a {type(model).__name__}")
        model = model if torch_dtype is None else model.to(torch_dtype)
        return cls(model, scheduler, index.get("_trained_on"), index.get("_license"))

    def _predictor(
        self, stage: Stage, frames: Tensor, classes: Classes
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Return noise and variances (n, 2lc, h, w) of (n, lc, h, w) at a time of the scheduler."""
        model, count = self.model, len(stage.latent)
        scale = _MODEL_STEPS / model.config.num_steps
        observed = classes.duplicate_for_guidance(frames[:, list(stage.observed)])
        of_stage = model.stage_network(stage, observed, classes.tokens)

        def joined(x: Tensor, times: Tensor, _: Tensor | None) -> Tensor:
            output = of_stage(x.unflatten(1, (count, -1)).to(frames.dtype), times)
            return rearrange(output, "n l (k c) h w -> n (k l c) h w", k=2)

        guided = conditioned(joined, classes)

        def predict(x: Tensor, t: Tensor) -> Tensor:
            times = (t.double() * scale).to(x.device, torch.float32).expand(len(x))
            return guided(x, times).to(frames.dtype)

        return predict

    def _write_card(self, folder: Path, name: str) -> None:
        """Write the model card; `name` is where the pipeline is read from."""
        config, kind = self.model.config, _read_settings(folder / _INDEX)["_class_name"]
        card = _TEMPLATE.format(
            name=name,
            license=self.license or "unknown",
            trained_on=self.trained_on or "unknown data",
            frames=self.model.num_frames,
            shape=f"{config.channels}x{config.image_size}x{config.image_size}",
            parameters=sum(p.numel() for p in self.model.parameters()),
            steps=config.num_steps,
            library="diffusers" if kind == "DDPMPipeline" else "pseudovideo",
        )
        write_atomic(folder / _CARD, card)

    def _upload_folder(
        self, working_dir: Path | str, repo_id: str, token: Any = None, **options: Any
    ) -> Any:
        """Upload what `push_to_hub` has written, with our card where the repository has none."""
        if not huggingface_hub.file_exists(repo_id, _CARD, token=token):
            self._write_card(Path(working_dir), repo_id)
        return super()._upload_folder(working_dir, repo_id, token=token, **options)


def to_ddpm_pipeline(model: ImageDiffusion) -> Any:
    """Return a copy of a model as diffusers' `DDPMPipeline`.

    Its `save_pretrained` writes a folder that `diffusers.DDPMPipeline.from_pretrained` reads
    without this package. Sampled in all steps it draws from the same Gaussians as
    `ImageDiffusion.sample`, with other noise. Where the process has not 1,000 steps, the sinusoids
    of the times are stored as a learned embedding.

    A model of classes is refused, and so is attention at levels of different width: diffusers
    fixes the width of a head, the model the number of heads.
    """
    config = model.config
    if not _has_ddpm_pipeline(config):
        raise ValueError(
            "model must have no classes, and attention at levels of one width, to be a "
            f"DDPMPipeline, got num_classes={config.num_classes} and widths "
            f"{sorted(_attention_widths(config))}"
        )
    with torch.random.fork_rng(devices=[]):  # its weights are drawn, and thrown away
        plain: Any = ImageDiffusion(config).unet
    weights = {
        name: value.detach().cpu().clone()
        for name, value in unwrapped_state_dict(model.unet, plain.state_dict()).items()
    }
    settings = {name: value for name, value in plain.config.items() if not name.startswith("_")}
    settings["attention_head_dim"] = config.widths[-1] // config.num_heads
    if config.num_steps != _MODEL_STEPS:
        settings |= {"time_embedding_type": "learned", "num_train_timesteps": config.num_steps}
        times = model.diffusion.model_times(torch.arange(config.num_steps))
        weights["time_proj.weight"] = plain.time_proj(times)
    unet = diffusers.UNet2DModel(**settings)
    torch.nn.Module.to(unet, dtype=model.dtype)  # its own `to` warns of parts that it lacks
    unet.load_state_dict(weights)
    unet.register_to_config(**{_SETTINGS: config.to_dict()})
    return diffusers.DDPMPipeline(unet=unet.eval(), scheduler=_ddpm_scheduler(model.diffusion))


def _ddpm_scheduler(process: GaussianDiffusion) -> Any:
    """Return diffusers' `DDPMScheduler` of a process, spaced as `GaussianDiffusion.respaced`."""
    names = {prediction: name for name, prediction in _PREDICTIONS.items()}
    return diffusers.DDPMScheduler(
        num_train_timesteps=process.num_steps,
        trained_betas=process.betas.tolist(),
        variance_type="learned_range",
        clip_sample=True,
        prediction_type=names[process.prediction],
        timestep_spacing="linspace",
    )


def _check_scheduler(scheduler: Any, process: GaussianDiffusion) -> None:
    """Refuse what is neither DDPM's nor DDIM's scheduler of the process, by its config."""
    config: Any = getattr(scheduler, "config", None)
    if not isinstance(scheduler, (diffusers.DDPMScheduler, diffusers.DDIMScheduler)):
        raise ValueError(
            "scheduler must be a DDPMScheduler or a DDIMScheduler, got a "
            f"{type(scheduler).__name__}"
        )
    if _PREDICTIONS.get(config.prediction_type) != process.prediction:
        raise ValueError(
            f"scheduler must have the model's prediction {process.prediction!r}, got "
            f"prediction_type={config.prediction_type!r}"
        )
    ddpm = isinstance(scheduler, diffusers.DDPMScheduler)
    if ddpm and config.variance_type != "learned_range":
        raise ValueError(
            f"scheduler must have variance_type='learned_range', got {config.variance_type!r}"
        )
    betas = scheduler.betas.double().cpu()
    alike = betas.shape == process.betas.shape and torch.allclose(
        betas, process.betas, rtol=_TOLERANCE, atol=1e-7
    )
    if not alike or config.get("rescale_betas_zero_snr"):
        raise ValueError(
            f"scheduler must walk the model's process of {process.num_steps} steps, as "
            "from_config(pipeline.scheduler.config) makes one, and this one has other betas"
        )


def _image_model(folder: Path) -> ImageDiffusion:
    """Return the model of a folder that `to_ddpm_pipeline(model).save_pretrained` wrote."""
    settings = _read_settings(folder / "unet" / "config.json").get(_SETTINGS)
    names = sorted(path.name for path in (folder / "unet").glob("diffusion_pytorch_model*"))
    stored = [name for name in names if name.endswith(".safetensors")]  # of a variant, as fp16
    path = folder / "unet" / (_WEIGHTS if _WEIGHTS in names or len(stored) != 1 else stored[0])
    if settings is None:
        raise ValueError(f"{folder} must hold a UNet that was exported from here, and does not")
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} must hold the weights, and there is {', '.join(names) or 'nothing'}"
        )
    try:
        model = ImageDiffusion(ImageDiffusionConfig.from_dict(settings))
        weights = load_file(path)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{folder / 'unet'} is damaged: {error}") from error
    weights.pop("time_proj.weight", None)
    fill_weights(model.unet, weights, path)
    return model.eval()


def _read_settings(path: Path) -> dict[str, Any]:
    """Return what a JSON file of settings holds."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file of a pipeline, and is not there")
    try:
        settings: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} must hold settings by name, got {type(settings).__name__}")
    return settings


def _has_ddpm_pipeline(config: ImageDiffusionConfig) -> bool:
    return config.num_classes is None and len(_attention_widths(config)) == 1


def _attention_widths(config: ImageDiffusionConfig) -> set[int]:
    sizes = zip(config.widths, config.sizes, strict=True)
    # There is always attention in the middle.
    return {width for width, size in sizes if size in config.attention_sizes} | {config.widths[-1]}


def _as_type(frames: Tensor, output_type: str) -> Any:
    pixels = (frames / 2 + 0.5).clamp(0, 1)
    if output_type == "pt":
        return pixels
    array = rearrange(pixels, "n t c h w -> n t h w c").cpu().numpy()
    if output_type == "np":
        return array
    return [diffusers.DiffusionPipeline.numpy_to_pil(video) for video in array]
