"""Diffusion models of images and of pseudo videos as a `DiffusionPipeline` of diffusers.

What is sampled with any of diffusers' schedulers, loaded, saved and shared in its way; the samplers
of `ImageDiffusion.sample` and `VideoDiffusion.sample` are exact in their noise and steps instead.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Int64
from torch import Tensor

from probseq.checks import check_counts
from probseq.errors import require
from probseq.files import write_atomic
from pseudovideo.diffusion.base import FRAME_LIMIT
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.sampling import at_least_float32, conditioned
from pseudovideo.diffusion.stages import Stage
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.integrations.diffusers.ddpm import (
    ddpm_scheduler,
    heads_have_one_width,
    image_model,
    read_settings,
    reading_folder,
    to_ddpm_pipeline,
)
from pseudovideo.integrations.diffusers.schedulers import (
    check_scheduler,
    copy_scheduler,
    draws,
    has_variances,
    runs_in_ddpm_pipeline,
)
from pseudovideo.labels import Classes, sample_classes
from pseudovideo.pretrained import eval_mode, load_pretrained

__all__ = ["PseudoVideoPipeline"]

diffusers: Any = require("diffusers", extra="diffusion", distribution="pseudovideo")
huggingface_hub: Any = require("huggingface_hub", extra="diffusion", distribution="pseudovideo")

_INDEX, _CARD, _MODEL, _SCHEDULER = "model_index.json", "README.md", "model", "scheduler"
_DDPM = "DDPMPipeline"
# Nothing else of a repository is fetched.
_FILES = ["*.json", "*.safetensors", _CARD]
_TEMPLATE = Path(__file__).with_name("model_card.md")
_UNKNOWN = "unknown"


@dataclass
class PseudoVideoOutput(diffusers.utils.BaseOutput):
    """What a pipeline has drawn; pixels are in 0..1.

    Attributes:
        images: the last frames: a list of PIL images, an array (n, h, w, c) or a tensor
            (n, c, h, w).
        frames: all frames: lists of PIL images, an array (n, T, h, w, c) or a tensor
            (n, T, c, h, w). T is 1 for an image model.
    """

    images: Any
    frames: Any


class PseudoVideoPipeline(diffusers.DiffusionPipeline):
    """A diffusion model of images or of pseudo videos, with a scheduler of diffusers.

    `scheduler` may be changed in the way of diffusers: `pipeline.scheduler =
    diffusers.UniPCMultistepScheduler.from_config(pipeline.scheduler.config)`. Each stage of a video
    has a scheduler of its own with these settings. Schedulers other than DDPM's don't use the
    learned variances.

    A model of images is saved as diffusers' `DDPMPipeline`, which then reads and samples the folder
    to the same bits, unless it has classes, which that has no labels for, attention at levels of
    different widths: diffusers has no such UNet, or a scheduler that `DDPMPipeline` does not give
    what it needs, as Euler's. With a scheduler that does not use them the
    learned variances are left out. All others are saved as `Pretrained` saves them, checked by
    their sha256 when they are read. Weights are in safetensors; nothing is unpickled.

    Args:
        model: what draws.
        scheduler: of diffusers, for the process of the model; None: its DDPM scheduler.
        trained_on: for the model card, such as the name of the data set.
        license: for the model card, such as "mit".
    """

    _optional_components = (_SCHEDULER,)
    _callback_tensor_inputs = ("frames",)

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
        self.register_modules(model=model, scheduler=scheduler or ddpm_scheduler(model.diffusion))
        self.trained_on, self.license = trained_on, license

    @torch.no_grad()
    def __call__(
        self,
        batch_size: int = 1,
        generator: torch.Generator | list[torch.Generator] | None = None,
        num_inference_steps: int | None = None,
        labels: Int64[Tensor, " n"] | None = None,
        guidance: float = 1.0,
        output_type: Literal["pil", "np", "pt"] = "pil",
        return_dict: bool = True,
        callback_on_step_end: Callable[[Any, int, Any, dict[str, Any]], dict[str, Any]]
        | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("frames",),
    ) -> PseudoVideoOutput | tuple[Any, Any]:
        """Draw images, or videos stage by stage, with the model in eval mode.

        Args:
            batch_size: number of samples.
            generator: of the noise; several, one for each sample, make samples that don't depend
                on the others.
            num_inference_steps: of the scheduler in each stage; None: all of the process.
            labels: class of each sample, where the model has classes; None draws them.
            guidance: as of the model's `sample`.
            output_type: what is returned: "pil", "np" or "pt".
            return_dict: False returns a tuple.
            callback_on_step_end: called as `callback(pipeline, step, timestep, {"frames": ...})`
                with all frames (n, T, c, h, w), those that have not begun being 0. Latent frames
                of the stage are replaced by those under "frames" in what it returns.
            callback_on_step_end_tensor_inputs: names that it is given.

        Returns:
            `PseudoVideoOutput`, or its images and frames as a tuple.

        Raises:
            ValueError: a number is below 1, more steps than the process has, a scheduler of
                another process or prediction, steps that it can't do, generators that are not one
                for each sample, an unknown `output_type`, unknown names of
                tensors, labels that are not the model's, or `guidance` that is not 1 where it was
                trained without `label_dropout`.
        """
        model, config = self.model, self.model.config
        steps = config.num_steps if num_inference_steps is None else num_inference_steps
        check_counts(batch_size=batch_size, num_inference_steps=steps)
        if steps > config.num_steps:
            raise ValueError(
                f"num_inference_steps must be at most the {config.num_steps} steps of the process, "
                f"got {steps}"
            )
        if output_type not in ("pil", "np", "pt"):
            raise ValueError(f'output_type must be "pil", "np" or "pt", got {output_type!r}')
        unknown = sorted(set(callback_on_step_end_tensor_inputs) - {"frames"})
        if unknown:
            raise ValueError(
                f"callback_on_step_end_tensor_inputs must be of frames, got {', '.join(unknown)}"
            )
        if isinstance(generator, list) and len(generator) != batch_size:
            raise ValueError(
                f"generator must be one, or a list of one for each of {batch_size} samples, got "
                f"{len(generator)}"
            )
        check_scheduler(self.scheduler, model.diffusion, steps)
        device, dtype = self._execution_device, at_least_float32(next(model.parameters()))
        plan, count, size = model.stages, model.num_frames, config.image_size
        frames = torch.zeros(
            batch_size, count, config.channels, size, size, device=device, dtype=dtype
        )
        schedulers = [self._scheduler(stage.latent[-1] + 1 < count) for stage in plan]
        classes = self._classes(batch_size, labels, guidance, generator, device)
        for scheduler in schedulers:
            scheduler.set_timesteps(steps, device=device)
        done, total = 0, sum(len(scheduler.timesteps) for scheduler in schedulers)
        with eval_mode(model), self.progress_bar(total=total) as bar:
            for stage, scheduler in zip(plan, schedulers, strict=True):
                latent = list(stage.latent)
                predict = self._predictor(stage, frames, classes)
                options = {"generator": generator} if draws(scheduler) else {}
                x = diffusers.utils.torch_utils.randn_tensor(
                    (batch_size, len(latent) * config.channels, size, size),
                    generator=generator,
                    device=device,
                    dtype=dtype,
                )
                x = x * scheduler.init_noise_sigma
                for t in scheduler.timesteps:
                    output = predict(scheduler.scale_model_input(x, t), t)
                    if not has_variances(scheduler):
                        output = output.chunk(2, dim=1)[0]
                    x = scheduler.step(output, t, x, **options).prev_sample
                    if callback_on_step_end is not None:
                        shown = frames.clone()
                        shown[:, latent] = _frames(x, len(latent))
                        tensors = {name: shown for name in callback_on_step_end_tensor_inputs}
                        changed = callback_on_step_end(self, done, t, tensors)
                        x = changed.get("frames", shown)[:, latent].flatten(1, 2)
                    done += 1
                    bar.update()
                frames[:, latent] = _frames(x, len(latent)).to(dtype)
        videos = _as_type(frames, output_type)
        images = [video[-1] for video in videos] if output_type == "pil" else videos[:, -1]
        return PseudoVideoOutput(images, videos) if return_dict else (images, videos)

    def save_pretrained(
        self, save_directory: Path | str, safe_serialization: bool = True, variant: None = None
    ) -> None:
        """Write model, scheduler and model card into a folder.

        Args:
            save_directory: made if it is not there.
            safe_serialization: True: weights are in safetensors only.
            variant: None: there is one precision, the model's.

        Raises:
            ValueError: weights in another format or a variant are asked for, or `save_directory`
                is a file.
        """
        if not safe_serialization or variant is not None:
            raise ValueError(
                "safe_serialization must be True and variant None, got "
                f"{safe_serialization} and {variant!r}"
            )
        folder, model = Path(save_directory), self.model
        if folder.is_file():
            raise ValueError(f"save_directory must be a folder, got the file {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        config = model.config
        plain = config.num_classes is None and heads_have_one_width(config)
        if isinstance(model, ImageDiffusion) and plain and runs_in_ddpm_pipeline(self.scheduler):
            variance = "learned" if has_variances(self.scheduler) else "fixed"
            pipeline = to_ddpm_pipeline(model, variance=variance)
            pipeline.scheduler = copy_scheduler(self.scheduler)
            pipeline.save_pretrained(folder)
        else:
            model.save_pretrained(folder / _MODEL)
            copy_scheduler(self.scheduler).save_pretrained(folder / _SCHEDULER)
            self.save_config(folder)
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        index |= {"_trained_on": self.trained_on, "_license": self.license}
        write_atomic(folder / _INDEX, json.dumps(index, indent=2) + "\n")
        self._write_card(folder, folder.name)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Path | str,
        *,
        torch_dtype: torch.dtype | None = None,
        use_safetensors: bool = True,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: Path | str | None = None,
        local_files_only: bool = False,
    ) -> "PseudoVideoPipeline":
        """Read a folder, or a repository of the hub, in eval mode on the CPU.

        Args:
            pretrained_model_name_or_path: what `save_pretrained` wrote here, or diffusers'
                `DDPMPipeline` if its UNet is one of improved DDPM.
            torch_dtype: precision of the weights; None: that of the files.
            use_safetensors: True: nothing else is read.
            revision: of a repository.
            token: for a repository.
            cache_dir: where a repository's files are kept.
            local_files_only: fetch nothing.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: it holds something else, is damaged, or has a UNet with options that
                improved DDPM does not have; they are named.
        """
        if not use_safetensors:
            raise ValueError(f"use_safetensors must be True, got {use_safetensors}")
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            try:
                snapshot = huggingface_hub.snapshot_download(
                    str(pretrained_model_name_or_path),
                    revision=revision,
                    token=token,
                    cache_dir=cache_dir,
                    local_files_only=local_files_only,
                    allow_patterns=_FILES,
                )
            except (OSError, ValueError) as error:  # of the hub
                raise FileNotFoundError(
                    f"{folder} is neither a folder nor a repository that can be read: {error}"
                ) from error
            folder = Path(snapshot)
        if not (folder / _INDEX).is_file():
            raise FileNotFoundError(f"{folder} must hold a pipeline, and has no {_INDEX}")
        with reading_folder(folder):
            index = read_settings(folder / _INDEX)
        kind = index.get("_class_name")
        if kind not in (cls.__name__, _DDPM):
            raise ValueError(f"{folder} must hold a {cls.__name__} or {_DDPM}, got a {kind}")
        with reading_folder(folder):
            name = str(index[_SCHEDULER][1])
        scheduler_class = getattr(diffusers, name, None)
        if not (
            isinstance(scheduler_class, type)
            and issubclass(scheduler_class, diffusers.SchedulerMixin)
        ):
            raise ValueError(f"{folder} must have a scheduler of diffusers, got {name}")
        with reading_folder(folder / _SCHEDULER):
            read_settings(folder / _SCHEDULER / "scheduler_config.json")
            scheduler = scheduler_class.from_pretrained(folder / _SCHEDULER, local_files_only=True)
        if kind == _DDPM:
            model = image_model(folder, scheduler)
        else:
            model = load_pretrained(folder / _MODEL)
        if not isinstance(model, (ImageDiffusion, VideoDiffusion)):
            raise ValueError(f"{folder} must hold a diffusion model, got a {type(model).__name__}")
        return cls(
            model if torch_dtype is None else model.to(torch_dtype),
            scheduler,
            index.get("_trained_on"),
            index.get("_license"),
        )

    def set_use_memory_efficient_attention_xformers(
        self, valid: bool, attention_op: Callable[..., Any] | None = None
    ) -> None:
        """Refuse xFormers: attention is torch's own, and of videos also between frames.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "xFormers must not replace the attention of these models, which is torch's "
            "scaled_dot_product_attention and for videos also between frames"
        )

    def _classes(
        self,
        n: int,
        labels: Tensor | None,
        guidance: float,
        generator: torch.Generator | list[torch.Generator] | None,
        device: torch.device,
    ) -> Classes:
        """Return the classes of samples; with a generator for each, of its own where drawn."""
        config = self.model.config
        each = generator if isinstance(generator, list) else [generator]
        if len(each) > 1 and labels is None and config.num_classes is not None:
            drawn = [sample_classes(config, 1, None, 1.0, generator=g, device=device) for g in each]
            labels = torch.cat([one.labels for one in drawn if one.labels is not None])
        return sample_classes(config, n, labels, guidance, generator=each[0], device=device)

    def _predictor(
        self, stage: Stage, frames: Tensor, classes: Classes
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Return noise and variances (n, 2lc, h, w) of (n, lc, h, w) at a time of the scheduler."""
        model, count = self.model, len(stage.latent)
        scale = 1000 / model.config.num_steps
        seen = classes.twice(frames[:, list(stage.observed)])
        of_stage = model.stage_network(stage, seen, classes.tokens)

        def joined(x: Tensor, times: Tensor, _: Tensor | None) -> Tensor:
            output = of_stage(_frames(x, count).to(frames.dtype), times)
            return rearrange(output, "n l (k c) h w -> n (k l c) h w", k=2)

        guided = conditioned(joined, classes)

        def predict(x: Tensor, t: Tensor) -> Tensor:
            times = (t.double() * scale).to(x.device, torch.float32).expand(len(x))
            return guided(x, times).to(frames.dtype)

        return predict

    def _scheduler(self, corrupted: bool) -> Any:
        """Return a scheduler for one stage; corrupted frames go beyond the range of images."""
        scheduler = copy_scheduler(self.scheduler)
        if corrupted and scheduler.config.get("clip_sample"):
            scheduler.register_to_config(clip_sample_range=FRAME_LIMIT)
        return scheduler

    def _write_card(self, folder: Path, name: str) -> None:
        """Write the model card; `name` is where the pipeline is read from."""
        config, frames = self.model.config, getattr(self.model.config, "num_frames", 1)
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        kind = index["_class_name"]
        card = Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
            name=name,
            license=self.license or _UNKNOWN,
            trained_on=self.trained_on or _UNKNOWN,
            frames=frames,
            shape=f"{config.channels}x{config.image_size}x{config.image_size}",
            parameters=f"{sum(p.numel() for p in self.model.parameters()):,}",
            steps=f"{config.num_steps:,}",
            schedule=config.schedule,
            library="diffusers" if kind == _DDPM else "pseudovideo",
            module="diffusers" if kind == _DDPM else __package__,
            kind=kind,
        )
        write_atomic(folder / _CARD, card)

    def _upload_folder(
        self, working_dir: Path | str, repo_id: str, token: Any = None, **options: Any
    ) -> Any:
        """Upload what `push_to_hub` has written, with our card where the repository has none."""
        if not huggingface_hub.file_exists(repo_id, _CARD, token=token):
            self._write_card(Path(working_dir), repo_id)
        return super()._upload_folder(working_dir, repo_id, token=token, **options)


def _frames(x: Tensor, count: int) -> Tensor:
    return x.unflatten(1, (count, -1))


def _as_type(frames: Tensor, output_type: str) -> Any:
    pixels = (frames / 2 + 0.5).clamp(0, 1)
    if output_type == "pt":
        return pixels
    array: np.ndarray[Any, Any] = rearrange(pixels, "n t c h w -> n t h w c").cpu().numpy()
    if output_type == "np":
        return array
    return [diffusers.DiffusionPipeline.numpy_to_pil(video) for video in array]
