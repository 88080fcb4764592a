"""All settings of `probseq generate hvae`; importable without torch, for the command line.

Their docstrings are the command line's help.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from probseq_apps.data.names import check_generation_name, unknown_name_message
from probseq_apps.experiments.checks import at_least, positive, unique
from probseq_apps.experiments.diffusion_groups import ModelTraining, UNetSettings
from probseq_apps.experiments.generate_groups import (
    FeatureSettings,
    MachineSettings,
    ReadingSettings,
)
from probseq_apps.experiments.saved import saved_settings
from probseq_apps.experiments.settings import settings_from_dict
from probseq_apps.settings.common import Flat

GENERATE_HVAE = "generate-hvae"
GENERATE_HVAE_MODEL = "generate-hvae-model"
HvaeArm = Literal["heat", "learned"]
HVAE_ARMS: tuple[HvaeArm, ...] = get_args(HvaeArm)


@dataclass(frozen=True, kw_only=True)
class HvaeSizes:
    """Latent frames."""

    num_levels: int = 18
    """Latent frames between the image and the prior."""
    sigma_min: float = 0.5
    """heat: blur of the first latent frame, in pixels."""
    sigma_max: float = 20.0
    """heat: blur of the last latent frame, in pixels."""
    noise_std: float = 0.02
    """heat: standard deviation of the encoder's noise, for images in -1..1."""
    learned_noise_std: float = 0.3
    """learned: the same. With 0.02 the encoder copies the image, and what is drawn is noise: the
    prior then asks for frames that the decoder has never seen."""
    delta_factor: float = 1.25
    """Standard deviation of the noise in sampling, as a multiple of the encoder's."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("num_levels", self.num_levels, 2)
        for name in ("sigma_min", "noise_std", "learned_noise_std", "delta_factor"):
            positive(name, getattr(self, name))
        if not self.sigma_min < self.sigma_max < float("inf"):
            raise ValueError(
                f"sigma_max must be finite and above sigma_min={self.sigma_min}, "
                f"got {self.sigma_max}"
            )


@dataclass(frozen=True, kw_only=True)
class HvaeEvaluationSettings:
    """Evaluation."""

    num_samples: int = 10_000
    """Images drawn from each model."""
    bound_images: int = 10_000
    """Test images whose likelihood is bounded, fewer where there are fewer."""
    features: Flat[FeatureSettings] = field(default_factory=FeatureSettings)

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("num_samples", self.num_samples, 2)
        at_least("bound_images", self.bound_images, 1)


@dataclass(frozen=True, kw_only=True)
class OneHvaeSettings:
    """One HVAE, and the images it learns from."""

    data: str = "digits"
    """digits, mnist, cifar10, celeba, or folder:PATH."""
    binarize: bool = True
    """Make pixels above 127 white, all others black."""
    arm: HvaeArm = "heat"
    """heat or learned."""
    seed: int = 0
    """Of weights, batches and noise."""
    reading: Flat[ReadingSettings] = field(default_factory=ReadingSettings)
    unet: Flat[UNetSettings] = field(default_factory=UNetSettings)
    sizes: Flat[HvaeSizes] = field(default_factory=HvaeSizes)
    training: Flat[ModelTraining] = field(default_factory=ModelTraining)
    machine: Flat[MachineSettings] = field(default_factory=MachineSettings)

    def __post_init__(self) -> None:
        """Refuse what makes no model.

        Raises:
            ValueError: names the setting.
        """
        check_generation_name(self.data)
        _check_arm(self.arm)
        at_least("seed", self.seed, 0)

    def to_dict(self) -> dict[str, object]:
        """Plain values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "OneHvaeSettings":
        """Build from plain values, as a model's `config.json` holds them.

        Raises:
            ValueError: a key is unknown or a value is refused.
        """
        return settings_from_dict(cls, values)


@dataclass(frozen=True, kw_only=True)
class HvaeSettings:
    """What is compared, and on what."""

    data: str = "digits"
    """digits, mnist, cifar10, celeba, or folder:PATH (images of one size, in it or in folders in
    it)."""
    binarize: bool = True
    """Make pixels above 127 white, all others black; for grey images."""
    arms: tuple[HvaeArm, ...] = HVAE_ARMS
    """Models to compare, with the same decoder: heat (the encoder blurs), learned (the encoder is
    trained, too)."""
    seeds: tuple[int, ...] = (0,)
    """Each model is trained once per seed."""
    reading: Flat[ReadingSettings] = field(default_factory=ReadingSettings)
    unet: Flat[UNetSettings] = field(default_factory=UNetSettings)
    sizes: Flat[HvaeSizes] = field(default_factory=HvaeSizes)
    training: Flat[ModelTraining] = field(default_factory=ModelTraining)
    evaluation: Flat[HvaeEvaluationSettings] = field(default_factory=HvaeEvaluationSettings)
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
        for arm in self.arms:
            _check_arm(arm)
        for seed in self.seeds:
            at_least("seeds", seed, 0)

    def one_model(self, arm: HvaeArm, seed: int) -> OneHvaeSettings:
        """Settings of the model of an arm."""
        return OneHvaeSettings(
            data=self.data,
            binarize=self.binarize,
            arm=arm,
            seed=seed,
            reading=self.reading,
            unet=self.unet,
            sizes=self.sizes,
            training=self.training,
            machine=self.machine,
        )

    def to_dict(self) -> dict[str, object]:
        """Plain values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "HvaeSettings":
        """Build from plain values, as a run's `config.json` holds them.

        Raises:
            ValueError: a key is unknown or a value is refused.
        """
        return settings_from_dict(cls, values)


def saved_hvae(folder: Path) -> tuple[str, HvaeSettings] | None:
    """Recipe and settings that the experiment in a folder was started with.

    Args:
        folder: any folder.

    Returns:
        None where the folder holds no such experiment.

    Raises:
        ValueError: the file is damaged or from another version.
    """
    return saved_settings(folder, GENERATE_HVAE, HvaeSettings.from_dict)


def saved_hvae_model(folder: Path) -> tuple[str, OneHvaeSettings] | None:
    """Recipe and settings of the model in a folder, as `saved_hvae`.

    Raises:
        ValueError: the file is damaged or from another version.
    """
    return saved_settings(folder, GENERATE_HVAE_MODEL, OneHvaeSettings.from_dict)


def _check_arm(arm: str) -> None:
    if arm not in HVAE_ARMS:
        raise ValueError(unknown_name_message("arm", arm, HVAE_ARMS))
