"""All settings of `probseq generate`; importable without torch, for the command line.

Their docstrings are the command line's help.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from probseq_apps.data.names import check_generation_name
from probseq_apps.experiments.checks import at_least, unique, unlike_defaults
from probseq_apps.experiments.diffusion_groups import DiffusionSampling
from probseq_apps.experiments.generate_arms import Arm, all_arms
from probseq_apps.experiments.generate_groups import (
    CorruptionSettings,
    FeatureSettings,
    LossSettings,
    MachineSettings,
    ReadingSettings,
    StemName,
    TokenizerSettings,
    TokenizerTraining,
)
from probseq_apps.experiments.generate_prior_groups import (
    AutoregressiveSettings,
    GenerateEvaluationSettings,
    MaskedSettings,
    PriorChoice,
    PriorName,
    PriorTraining,
    SamplingSettings,
)
from probseq_apps.experiments.saved import saved_settings
from probseq_apps.experiments.settings import settings_from_dict
from probseq_apps.settings.common import Flat

GENERATE = "generate"
GENERATE_TOKENIZER = "generate-tokenizer"
GENERATE_PRIOR = "generate-prior"
GENERATE_SAMPLE = "generate-sample"


@dataclass(frozen=True, kw_only=True)
class OneTokenizerSettings:
    """One tokenizer, and the images it learns from."""

    data: str = "digits"
    """digits, mnist, cifar10, celeba, or folder:PATH."""
    frames: int = 8
    """Frames of a pseudo video; 1 for the image alone."""
    stem: StemName = "plain"
    """plain projects raw patches linearly; layernorm normalises them, which erases each patch's
    brightness and contrast."""
    seed: int = 0
    """Of weights, batches and noise."""
    reading: Flat[ReadingSettings] = field(default_factory=ReadingSettings)
    videos: Flat[CorruptionSettings] = field(default_factory=CorruptionSettings)
    tokenizer: Flat[TokenizerSettings] = field(default_factory=TokenizerSettings)
    loss: Flat[LossSettings] = field(default_factory=LossSettings)
    training: Flat[TokenizerTraining] = field(default_factory=TokenizerTraining)
    machine: Flat[MachineSettings] = field(default_factory=MachineSettings)

    def __post_init__(self) -> None:
        """Refuse what makes no tokenizer.

        Raises:
            ValueError: names the setting.
        """
        check_generation_name(self.data)
        _check_frames(self.frames)
        at_least("seed", self.seed, 0)

    def to_dict(self) -> dict[str, object]:
        """Plain values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "OneTokenizerSettings":
        """Build from plain values, as a run's `config.json` holds them.

        Raises:
            ValueError: a key is unknown or a value is refused.
        """
        return settings_from_dict(cls, values)


@dataclass(frozen=True, kw_only=True)
class OnePriorSettings:
    """One prior over the tokens of a tokenizer that is trained."""

    tokenizer: str = ""
    """Folder of the tokenizer: of `generate tokenizer`, or in tokenizers/ of `generate run`."""
    prior: PriorName = "autoregressive"
    """autoregressive (ImageGPT, VideoGPT) or masked (MaskGIT, Phenaki)."""
    seed: int = 0
    """Of weights, batches and noise."""
    autoregressive: Flat[AutoregressiveSettings] = field(default_factory=AutoregressiveSettings)
    masked: Flat[MaskedSettings] = field(default_factory=MaskedSettings)
    training: Flat[PriorTraining] = field(default_factory=PriorTraining)
    machine: Flat[MachineSettings] = field(default_factory=MachineSettings)

    def __post_init__(self) -> None:
        """Refuse what cannot be trained.

        Raises:
            ValueError: names the setting.
        """
        at_least("seed", self.seed, 0)
        self.training.train_config(self.machine, self.steps, seed=self.seed)

    def check_given(self) -> None:
        """Refuse a command line without a tokenizer."""
        if not self.tokenizer:
            raise ValueError("tokenizer must be given: name the folder of a trained tokenizer")

    @property
    def steps(self) -> int:
        """Optimizer steps."""
        if self.prior == "autoregressive":
            return self.autoregressive.ar_steps
        return self.masked.masked_steps

    def to_dict(self) -> dict[str, object]:
        """Plain values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "OnePriorSettings":
        """Build from plain values, as a run's `config.json` holds them.

        Raises:
            ValueError: a key is unknown or a value is refused.
        """
        return settings_from_dict(cls, values)


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """Images to draw."""

    tokenizer: str = ""
    """Folder of the tokenizer."""
    prior: str = ""
    """Folder of the prior that was trained on its tokens."""
    model: str = ""
    """Folder of a model without tokens, in models/ of `generate diffusion` or `generate hvae`; in
    place of tokenizer and prior."""
    num: int = 64
    """Images to draw."""
    seed: int = 0
    """Of the draws: that of a run's model gives the run's own samples, from a prior where --num is
    the run's, too."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    sampling: Flat[SamplingSettings] = field(default_factory=SamplingSettings)
    diffusion: Flat[DiffusionSampling] = field(default_factory=DiffusionSampling)

    def __post_init__(self) -> None:
        """Refuse numbers out of range, two things to draw from, and settings of the other.

        Raises:
            ValueError: names the setting.
        """
        at_least("num", self.num, 1)
        at_least("seed", self.seed, 0)
        if self.model and (self.tokenizer or self.prior):
            raise ValueError(
                "model is in place of tokenizer and prior, got both: name the model, or the others"
            )
        if self.model and (given := unlike_defaults(self.sampling)):
            raise ValueError(
                f"{given[0]} is for tokenizer and prior, and model has no tokens: leave it out"
            )
        if not self.model and (given := unlike_defaults(self.diffusion)):
            raise ValueError(
                f"{given[0]} is for model, a diffusion model, and none is named: name one, "
                "or leave it out"
            )

    def check_given(self) -> None:
        """Refuse a command line without anything to draw from."""
        for name in ("tokenizer", "prior"):
            if not self.model and not getattr(self, name):
                raise ValueError(
                    f"{name} must be given: name the folder of a trained one, or name --model"
                )


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """What to measure: samples, a tokenizer's reconstructions, or both."""

    samples: str | None = None
    """File samples.npz of `generate sample`, or in samples/ of `generate run`."""
    tokenizer: str | None = None
    """Folder of a tokenizer."""
    data: str | None = None
    """Images to compare with; None: those that the tokenizer was trained on, else digits."""
    seed: int = 0
    """Of the classifier whose features serve without Inception's; `generate run` has 0."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    num_images: int | None = None
    """Test images to reconstruct; None: all."""
    reading: Flat[ReadingSettings] = field(default_factory=ReadingSettings)
    features: Flat[FeatureSettings] = field(default_factory=FeatureSettings)

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        if self.data is not None:
            check_generation_name(self.data)
        at_least("seed", self.seed, 0)
        if self.num_images is not None:
            at_least("num_images", self.num_images, 2)

    def check_given(self) -> None:
        """Refuse a command line without anything to measure."""
        if self.samples is None and self.tokenizer is None:
            raise ValueError("samples or tokenizer must be named: there is nothing to measure")


@dataclass(frozen=True, kw_only=True)
class GenerateSettings:
    """What is compared, and on what."""

    data: str = "digits"
    """digits, mnist, cifar10, celeba, or folder:PATH (images of one size, in it or in folders in
    it)."""
    frames: tuple[int, ...] = (1, 8)
    """Lengths of the pseudo videos; 1 for the image alone, others even."""
    controls: bool = True
    """Also the controls of equal bits: as many identical frames, and one frame in half patches."""
    stem: tuple[StemName, ...] = ("plain", "layernorm")
    """plain projects raw patches linearly; layernorm normalises them, which erases each patch's
    brightness and contrast."""
    seeds: tuple[int, ...] = (0,)
    """Each tokenizer and prior is trained once per seed."""
    reading: Flat[ReadingSettings] = field(default_factory=ReadingSettings)
    videos: Flat[CorruptionSettings] = field(default_factory=CorruptionSettings)
    tokenizer: Flat[TokenizerSettings] = field(default_factory=TokenizerSettings)
    loss: Flat[LossSettings] = field(default_factory=LossSettings)
    training: Flat[TokenizerTraining] = field(default_factory=TokenizerTraining)
    priors: Flat[PriorChoice] = field(default_factory=PriorChoice)
    autoregressive: Flat[AutoregressiveSettings] = field(default_factory=AutoregressiveSettings)
    masked: Flat[MaskedSettings] = field(default_factory=MaskedSettings)
    prior_training: Flat[PriorTraining] = field(default_factory=PriorTraining)
    sampling: Flat[SamplingSettings] = field(default_factory=SamplingSettings)
    evaluation: Flat[GenerateEvaluationSettings] = field(default_factory=GenerateEvaluationSettings)
    machine: Flat[MachineSettings] = field(default_factory=MachineSettings)

    def __post_init__(self) -> None:
        """Refuse unknown names and settings that don't go together.

        Raises:
            ValueError: names the setting.
        """
        check_generation_name(self.data)
        for name in ("frames", "stem", "seeds"):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"{name} must name at least one, got none")
            unique(name, values)
        for number in self.frames:
            _check_frames(number)
        for seed in self.seeds:
            at_least("seeds", seed, 0)
        if self.controls and max(self.frames) > 1 and self.tokenizer.patch_size % 2:
            raise ValueError(
                "patch_size must be even for the control with half patches, "
                f"got {self.tokenizer.patch_size}: change it, or leave the controls out"
            )
        for prior in self.priors.prior:
            self.one_prior("", prior, seed=0)
        if self.priors.prior:
            self._check_prior_choice()

    def _check_prior_choice(self) -> None:
        """Refuse priors on tokenizers that aren't trained; of several arms some may be missing."""
        choice = self.priors
        if not set(choice.prior_stem) <= set(self.stem) or not choice.prior_stem:
            raise ValueError(
                f"prior_stem must be among stem={', '.join(self.stem)}, got "
                f"{', '.join(choice.prior_stem) or 'none'}: name trained ones, or no prior"
            )
        kinds = tuple(dict.fromkeys(arm.kind for arm in self.arms))
        if not set(choice.prior_arms) & set(kinds):
            raise ValueError(
                f"prior_arms must name an arm of this run ({', '.join(kinds)}), got "
                f"{', '.join(choice.prior_arms) or 'none'}: name one that is trained, or no prior"
            )

    @property
    def arms(self) -> tuple[Arm, ...]:
        """All arms, in the order of the tables."""
        return all_arms(
            self.frames,
            self.tokenizer.patch_size,
            self.videos.corruption,
            controls=self.controls,
        )

    def has_priors(self, arm: Arm, stem: str) -> bool:
        """Whether priors are trained on the tokens of an arm."""
        return arm.kind in self.priors.prior_arms and stem in self.priors.prior_stem

    def one_tokenizer(self, arm: Arm, stem: StemName, seed: int) -> OneTokenizerSettings:
        """Settings of the tokenizer of an arm."""
        return OneTokenizerSettings(
            data=self.data,
            frames=arm.frames,
            stem=stem,
            seed=seed,
            reading=self.reading,
            videos=replace(self.videos, corruption=arm.corruption),
            tokenizer=replace(self.tokenizer, patch_size=arm.patch_size),
            loss=self.loss,
            training=self.training,
            machine=self.machine,
        )

    def one_prior(self, tokenizer: str, prior: PriorName, seed: int) -> OnePriorSettings:
        """Settings of a prior on the tokens of a tokenizer."""
        return OnePriorSettings(
            tokenizer=tokenizer,
            prior=prior,
            seed=seed,
            autoregressive=self.autoregressive,
            masked=self.masked,
            training=self.prior_training,
            machine=self.machine,
        )

    def to_dict(self) -> dict[str, object]:
        """Plain values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "GenerateSettings":
        """Build from plain values, as a run's `config.json` holds them.

        Raises:
            ValueError: a key is unknown or a value is refused.
        """
        return settings_from_dict(cls, values)


def sample_config(settings: SampleSettings) -> dict[str, object]:
    """What the `config.json` of `generate sample` holds."""
    return {"experiment": GENERATE_SAMPLE, "settings": asdict(settings)}


def saved_generate(folder: Path) -> tuple[str, GenerateSettings] | None:
    """Recipe and settings that the experiment in a folder was started with.

    Args:
        folder: any folder.

    Returns:
        None where the folder holds no such experiment.

    Raises:
        ValueError: the file is damaged or from another version.
    """
    return saved_settings(folder, GENERATE, GenerateSettings.from_dict)


def saved_tokenizer(folder: Path) -> tuple[str, OneTokenizerSettings] | None:
    """Recipe and settings of the tokenizer in a folder, as `saved_generate`.

    Raises:
        ValueError: the file is damaged or from another version.
    """
    return saved_settings(folder, GENERATE_TOKENIZER, OneTokenizerSettings.from_dict)


def saved_prior(folder: Path) -> tuple[str, OnePriorSettings] | None:
    """Recipe and settings of the prior in a folder, as `saved_generate`.

    Raises:
        ValueError: the file is damaged or from another version.
    """
    return saved_settings(folder, GENERATE_PRIOR, OnePriorSettings.from_dict)


def _check_frames(number: int) -> None:
    if number != 1 and (number < 2 or number % 2):
        raise ValueError(f"frames must be 1 or even, got {number}: tokens span two frames")
