"""All settings of `probseq generate diffusion`; importable without torch, for the command line.

Their docstrings are the command line's help.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from probseq_apps.data.names import check_generation_name
from probseq_apps.experiments.checks import at_least, unique
from probseq_apps.experiments.diffusion_arms import DiffusionArm, diffusion_arm
from probseq_apps.experiments.diffusion_groups import (
    DiffusionEvaluationSettings,
    DiffusionSampling,
    DiffusionTraining,
    FrameSettings,
    ProcessSettings,
    UNetSettings,
)
from probseq_apps.experiments.generate_groups import MachineSettings, ReadingSettings
from probseq_apps.experiments.saved import saved_settings
from probseq_apps.experiments.settings import settings_from_dict
from probseq_apps.settings.common import Flat

GENERATE_DIFFUSION = "generate-diffusion"
GENERATE_DIFFUSION_MODEL = "generate-diffusion-model"


@dataclass(frozen=True, kw_only=True)
class OneDiffusionSettings:
    """One diffusion model, and the images it learns from."""

    data: str = "digits"
    """digits, mnist, cifar10, celeba, or folder:PATH."""
    arm: str = "1-frame"
    """Its arm."""
    seed: int = 0
    """Of weights, batches and noise."""
    init_weights: str | None = None
    """File of published weights that it starts from."""
    reading: Flat[ReadingSettings] = field(default_factory=ReadingSettings)
    unet: Flat[UNetSettings] = field(default_factory=UNetSettings)
    process: Flat[ProcessSettings] = field(default_factory=ProcessSettings)
    frames: Flat[FrameSettings] = field(default_factory=FrameSettings)
    training: Flat[DiffusionTraining] = field(default_factory=DiffusionTraining)
    machine: Flat[MachineSettings] = field(default_factory=MachineSettings)

    def __post_init__(self) -> None:
        """Refuse what makes no model.

        Raises:
            ValueError: names the setting.
        """
        check_generation_name(self.data)
        at_least("seed", self.seed, 0)
        arm = self.parsed_arm
        if arm.is_video and self.context >= arm.frames:
            raise ValueError(
                f"context must be less than the {arm.frames} frames of {arm.name}, "
                f"got {self.context}: no frame would be generated from others"
            )
        if self.init_weights is not None and arm.is_video:
            raise ValueError(
                f"init_weights are those of an image model, and {arm.name} is one of videos: "
                "name 1-frame arms only"
            )
        if not self.training.steps and self.init_weights is None:
            raise ValueError("steps must be at least 1 without init_weights, got 0")

    @property
    def parsed_arm(self) -> DiffusionArm:
        """The arm that the name means."""
        return diffusion_arm(self.arm)

    @property
    def context(self) -> int:
        """Frames C that a frame is generated from; 0 for one frame."""
        frames = self.parsed_arm.frames
        return frames // 2 if self.frames.context is None or frames == 1 else self.frames.context

    @property
    def diffusion_steps(self) -> int:
        """The arm's own number, or that of all."""
        return self.parsed_arm.diffusion_steps or self.process.diffusion_steps

    def to_dict(self) -> dict[str, object]:
        """Plain values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "OneDiffusionSettings":
        """Build from plain values, as a model's `config.json` holds them.

        Raises:
            ValueError: a key is unknown or a value is refused.
        """
        return settings_from_dict(cls, values)


@dataclass(frozen=True, kw_only=True)
class DiffusionSettings:
    """What is compared, and on what."""

    data: str = "digits"
    """digits, mnist, cifar10, celeba, or folder:PATH (images of one size, in it or in folders in
    it)."""
    arms: tuple[str, ...] = ("1-frame", "4-frame-first-order", "4-frame-high-order")
    """Models to compare: 1-frame (improved DDPM), 1-frame-4000 (with 4,000 diffusion steps),
    T-frame-first-order, T-frame-high-order, T-frame-matched (first-order noise at the levels of the
    high-order one), T-frame-blur (high-order blur), for any even T."""
    seeds: tuple[int, ...] = (0,)
    """Each model is trained once per seed."""
    init_weights: str | None = None
    """File of published improved-DDPM weights (.pt) that 1-frame arms start from; the UNet must be
    theirs: for CIFAR-10 --num-res-blocks 3 --dropout 0.3 --schedule cosine, arm 1-frame-4000."""
    reading: Flat[ReadingSettings] = field(default_factory=ReadingSettings)
    unet: Flat[UNetSettings] = field(default_factory=UNetSettings)
    process: Flat[ProcessSettings] = field(default_factory=ProcessSettings)
    frames: Flat[FrameSettings] = field(default_factory=FrameSettings)
    training: Flat[DiffusionTraining] = field(default_factory=DiffusionTraining)
    sampling: Flat[DiffusionSampling] = field(default_factory=DiffusionSampling)
    evaluation: Flat[DiffusionEvaluationSettings] = field(
        default_factory=DiffusionEvaluationSettings
    )
    machine: Flat[MachineSettings] = field(default_factory=MachineSettings)

    def __post_init__(self) -> None:
        """Refuse unknown names and settings that don't go together.

        Raises:
            ValueError: names the setting.
        """
        check_generation_name(self.data)
        for name in ("arms", "seeds"):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"{name} must name at least one, got none")
            unique(name, values)
        for seed in self.seeds:
            at_least("seeds", seed, 0)
        for arm in self.arms:
            self.sampling.check_steps(self.one_model(arm, seed=0).diffusion_steps)
        images = [arm for arm in self.arms if not diffusion_arm(arm).is_video]
        if self.evaluation.likelihood_images and not images:
            raise ValueError(
                "likelihood_images is for 1-frame arms, and none is among arms="
                f"{', '.join(self.arms)}: add one, or set it to 0"
            )

    def one_model(self, arm: str, seed: int) -> OneDiffusionSettings:
        """Settings of the model of an arm."""
        return OneDiffusionSettings(
            data=self.data,
            arm=arm,
            seed=seed,
            init_weights=self.init_weights,
            reading=self.reading,
            unet=self.unet,
            process=self.process,
            frames=self.frames,
            training=self.training,
            machine=self.machine,
        )

    def to_dict(self) -> dict[str, object]:
        """Plain values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DiffusionSettings":
        """Build from plain values, as a run's `config.json` holds them.

        Raises:
            ValueError: a key is unknown or a value is refused.
        """
        return settings_from_dict(cls, values)


def saved_diffusion(folder: Path) -> tuple[str, DiffusionSettings] | None:
    """Recipe and settings that the experiment in a folder was started with.

    Args:
        folder: any folder.

    Returns:
        None where the folder holds no such experiment.

    Raises:
        ValueError: the file is damaged or from another version.
    """
    return saved_settings(folder, GENERATE_DIFFUSION, DiffusionSettings.from_dict)


def saved_diffusion_model(folder: Path) -> tuple[str, OneDiffusionSettings] | None:
    """Recipe and settings of the model in a folder, as `saved_diffusion`.

    Raises:
        ValueError: the file is damaged or from another version.
    """
    return saved_settings(folder, GENERATE_DIFFUSION_MODEL, OneDiffusionSettings.from_dict)
