"""What `probseq bench generate` times of diffusion: UNets, their training, and drawing videos.

The UNet of one frame is improved DDPM's. Those of 3 and 5 frames generate videos of 4 and 8 frames
with contexts of 2 and 4: a context and the frame after it pass through together.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probseq_apps.bench.timing import Case, Row, interleaved, timed, training_step
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.diffusion.stages import stage_window
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.spec import ImageDiffusionConfig, VideoDiffusionConfig, channel_multipliers_for

# Frames that pass through a UNet together, and the video and the context that they are of.
WINDOWS: dict[int, tuple[int, int]] = {1: (1, 0), 3: (4, 2), 5: (8, 4)}
_DRAWN = 5


class UNetSizes(NamedTuple):
    """How much of diffusion is run: of a batch, and videos drawn at once in so many steps."""

    image_size: int
    base_channels: int
    batch: int
    drawn: int
    steps: int


SMALL = UNetSizes(image_size=16, base_channels=64, batch=4, drawn=1, steps=8)
QUICK = SMALL._replace(base_channels=32, batch=2, steps=4)
# Thesis Table D.4.
PAPER = UNetSizes(image_size=32, base_channels=128, batch=32, drawn=32, steps=25)

Model = ImageDiffusion | VideoDiffusion


def diffusion_rows(sizes: UNetSizes, repeats: int, device: torch.device) -> list[Row]:
    """Return the rows of UNets and of drawing videos."""
    networks: dict[str, Case] = {}
    for frames in WINDOWS:
        for lean in (False, True):
            layout = torch.channels_last if lean else torch.contiguous_format
            model = build_model(frames, sizes).to(device).to(memory_format=layout)
            networks[_name("forward", frames, lean)] = forward(model, sizes, device, lean=lean)
            networks[_name("step", frames, lean)] = step(model, sizes, device, lean=lean)
    found = interleaved(networks, repeats)
    # What they learned with is as large again as they are.
    networks.clear()
    videos = {
        "both": video_model(_DRAWN, sizes, one_way=False).to(device),
        "one": video_model(_DRAWN, sizes, one_way=True).to(device),
    }
    drawn = interleaved(
        {ways: drawing(model, sizes, device) for ways, model in videos.items()}, repeats
    )
    evaluations = {ways: model.evaluations_per_sample() for ways, model in videos.items()}
    return [
        *(row for frames in WINDOWS for row in network_rows(frames, sizes, found, device)),
        *drawing_rows(sizes, drawn, evaluations),
    ]


def forward(model: Model, sizes: UNetSizes, device: torch.device, *, lean: bool) -> Case:
    """Time a forward pass of the UNet, where `lean` under autocast to bfloat16."""
    videos = _noise(model, sizes.batch, device)
    times = torch.full((sizes.batch,), 500.0).to(device)
    if isinstance(model, ImageDiffusion):
        return timed(lambda: model(videos[:, -1], times), device, lean=lean)
    window = stage_window(model.stages[-1], sizes.batch, device=device)
    seen = videos[:, -model.config.context - 1 :]
    return timed(lambda: model.network(seen, times, window), device, lean=lean)


def step(model: Model, sizes: UNetSizes, device: torch.device, *, lean: bool) -> Case:
    """Time a training step: L_hybrid at random times, its gradient, and AdamW."""
    videos = _noise(model, sizes.batch, device)
    objective = DiffusionObjective(model).to(device)
    return training_step(model, lambda: objective(videos)["loss"], device, lean=lean)


def drawing(model: VideoDiffusion, sizes: UNetSizes, device: torch.device) -> Case:
    """Time drawing videos, stage by stage."""
    return timed(
        lambda: model.sample(sizes.drawn, num_steps=sizes.steps, batch_size=sizes.drawn), device
    )


def network_rows(
    frames: int, sizes: UNetSizes, found: Mapping[str, float], device: torch.device
) -> list[Row]:
    """Return the rows of the UNet that sees so many frames together."""
    side = sizes.image_size
    # Section 4 of the design; bfloat16 has a goal on a GPU alone.
    goal = 2.0 if device.type == "cuda" else None
    rows: list[Row] = []
    for part, name in (("forward", "forward pass"), ("step", "training step")):
        exact, lean, image = (
            found[_name(part, *key)] for key in ((frames, False), (frames, True), (1, False))
        )
        of = f"UNet {sizes.base_channels}, {sizes.batch}x{frames} frames of 3x{side}x{side}"
        rows += [
            Row(f"{of}: {name}, float32", 1e3 * exact, "ms"),
            Row("  bfloat16 and channels last", 1e3 * lean, "ms"),
            Row("  against float32", exact / lean, "x", goal, least=True),
        ]
        if frames > 1:
            rows.append(Row("  a frame against an image alone", exact / frames / image, "x"))
    return rows


def drawing_rows(
    sizes: UNetSizes, drawn: Mapping[str, float], evaluations: Mapping[str, int]
) -> list[Row]:
    """Return the rows of drawing videos; one way, context frames don't see later ones."""
    length, context = WINDOWS[_DRAWN]
    seen = evaluations["both"] / evaluations["one"]
    both, one_way = (1e3 * drawn[ways] / sizes.drawn for ways in ("both", "one"))
    name = f"a video of {length} frames, context {context}, {sizes.steps} steps a stage"
    return [
        Row(name, both, "ms"),
        Row("  one-way conditioning", one_way, "ms"),
        Row("  both ways against it", both / one_way, "x"),
        Row("  frames through the network, 1,000 steps a stage", evaluations["both"], "frames"),
        Row("  one-way conditioning", evaluations["one"], "frames"),
        # Section 4 of the design: 2-3 times.
        Row("  both ways against it", seen, "x", 2.0, least=True),
    ]


def build_model(frames: int, sizes: UNetSizes) -> Model:
    """Return the model whose UNet sees so many frames together."""
    if WINDOWS[frames][0] == 1:
        return ImageDiffusion(ImageDiffusionConfig(**_unet(sizes)))
    return video_model(frames, sizes, one_way=False)


def video_model(frames: int, sizes: UNetSizes, *, one_way: bool) -> VideoDiffusion:
    """Return the model of videos whose UNet sees so many frames together."""
    length, context = WINDOWS[frames]
    return VideoDiffusion(
        VideoDiffusionConfig(**_unet(sizes), num_frames=length, context=context, one_way=one_way)
    )


def _unet(sizes: UNetSizes) -> dict[str, Any]:
    size = sizes.image_size
    return {
        "image_size": size,
        "base_channels": sizes.base_channels,
        "channel_multipliers": channel_multipliers_for(size),
        # 16 and 8 for 32 pixels.
        "attention_sizes": (size // 2, size // 4),
    }


def _noise(model: Model, batch: int, device: torch.device) -> Tensor:
    """Return videos of noise, as many frames as a model's."""
    config = model.config
    frames = config.num_frames if isinstance(config, VideoDiffusionConfig) else 1
    size, generator = config.image_size, torch.Generator().manual_seed(0)
    noise = torch.rand(batch, frames, config.channels, size, size, generator=generator)
    return (2 * noise - 1).to(device)


def _name(part: str, frames: int, lean: bool) -> str:
    return f"{part}-{frames}-{'lean' if lean else 'exact'}"
