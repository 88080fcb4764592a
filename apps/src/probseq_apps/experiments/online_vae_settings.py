"""All settings of `probseq online vae`; importable without torch, for the command line.

Their docstrings are the command line's help.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from probseq_apps.data.names import CSV_PREFIX, DataError, own_path, unknown_name_message
from probseq_apps.experiments.checks import at_least, not_negative, positive, unique
from probseq_apps.experiments.saved import saved_settings
from probseq_apps.experiments.settings import settings_from_dict
from probseq_apps.settings.common import Flat

ONLINE_VAE = "online-vae"
MOVING_DIGITS = "moving-digits"

VAE_METHODS: dict[str, str] = {
    "ohsvgp": "OHSVGP: LegS, exact covariances",
    "ovc": "OVC: pivoted-Cholesky inducing points, shared by all latents",
    "ovc-per-dim": "OVC-per-dim: pivoted-Cholesky inducing points of every latent's own",
    "osvgp": "OSVGP: random inducing points, learned with the networks",
}


@dataclass(frozen=True, kw_only=True)
class ChannelSettings:
    """Stream."""

    num_tasks: int = 5
    """Parts that the series comes in, one after the other."""
    task_length: int | None = None
    """Time steps of a task; None: the whole series in equal parts. Later steps are left out."""
    num_frames: int = 200
    """moving-digits: length of the film."""
    test_share: float = 0.2
    """Share of each task's time steps, chosen at random for each seed, for evaluation."""
    time_column: str = "time"
    """csv: column of the stamps, numbers or ISO dates; all other columns are channels."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("num_tasks", self.num_tasks, 1)
        at_least("num_frames", self.num_frames, 1)
        if self.task_length is not None:
            at_least("task_length", self.task_length, 3)
        if not 0.0 < self.test_share < 1.0:
            raise ValueError(f"test_share must be between 0 and 1, got {self.test_share}")


@dataclass(frozen=True, kw_only=True)
class VaeSettings:
    """Model."""

    num_inducing: int = 30
    """Inducing variables M of every method."""
    num_latents: int = 6
    """Latent processes L."""
    hidden_dim: int = 64
    """Width of the layer inside encoder and decoder."""
    lengthscale: float = 0.3
    """Of the latents' RBF kernels to start from, in lengths of the first task; learned in the first
    task, then fixed."""
    noise: float = 0.01
    """Variance of the channels' noise to start from."""
    carry: bool = True
    """Keep what inducing variables knew of earlier tasks as a site; without it they are made from
    the newest task alone, as the thesis' equations read."""
    consolidation: float = 10.0
    """Weight of elastic weight consolidation of encoder and decoder; 0 for none, 1 for a Laplace
    approximation with the diagonal of the Fisher information."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        for name in ("num_inducing", "num_latents", "hidden_dim"):
            at_least(name, getattr(self, name), 1)
        for name in ("lengthscale", "noise"):
            positive(name, getattr(self, name))
        not_negative("consolidation", self.consolidation)


@dataclass(frozen=True, kw_only=True)
class VaeTrainingSettings:
    """Training and evaluation."""

    epochs: int = 100
    """Passes over each task."""
    batch_size: int | None = None
    """Time steps that an optimizer step decodes; None: all of the task."""
    learning_rate: float = 1e-2
    """Of Adam."""
    num_samples: int = 1
    """Draws of the latents per time step while training."""
    prediction_samples: int = 50
    """Draws of the latents per time step in predictions."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        for name in ("epochs", "num_samples", "prediction_samples"):
            at_least(name, getattr(self, name), 1)
        if self.batch_size is not None:
            at_least("batch_size", self.batch_size, 1)
        positive("learning_rate", self.learning_rate)


@dataclass(frozen=True, kw_only=True)
class OnlineVaeSettings:
    """What is compared, and on what."""

    data: str = MOVING_DIGITS
    """moving-digits (real digits on generated paths), or csv:PATH (a time column, and a channel in
    each other column)."""
    method: tuple[str, ...] = tuple(VAE_METHODS)
    """ohsvgp, ovc, ovc-per-dim (every latent its own inducing points), osvgp."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each method is trained once per seed."""
    stream: Flat[ChannelSettings] = field(default_factory=ChannelSettings)
    model: Flat[VaeSettings] = field(default_factory=VaeSettings)
    training: Flat[VaeTrainingSettings] = field(default_factory=VaeTrainingSettings)

    def __post_init__(self) -> None:
        """Refuse unknown names.

        Raises:
            ValueError: names the setting.
        """
        if self.data != MOVING_DIGITS and not self.data.startswith(CSV_PREFIX):
            known = (MOVING_DIGITS, f"{CSV_PREFIX}PATH")
            raise DataError(unknown_name_message("data set", self.data, known))
        own_path(self.data)  # refuses an empty path
        for name, values in (("method", self.method), ("seeds", self.seeds)):
            if not values:
                raise ValueError(f"{name} must name at least one, got none")
            unique(name, values)
        for name in self.method:
            if name not in VAE_METHODS:
                raise ValueError(unknown_name_message("method", name, VAE_METHODS))
        for seed in self.seeds:
            at_least("seeds", seed, 0)

    def to_dict(self) -> dict[str, object]:
        """Plain values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "OnlineVaeSettings":
        """Build from plain values, as a run's `config.json` holds them.

        Raises:
            ValueError: a key is unknown or a value is refused.
        """
        return settings_from_dict(cls, values)


def saved_online_vae(folder: Path) -> tuple[str, OnlineVaeSettings] | None:
    """Recipe and settings that the experiment in a folder was started with.

    Args:
        folder: any folder.

    Returns:
        None where the folder holds no such experiment.

    Raises:
        ValueError: the file is damaged or from another version.
    """
    return saved_settings(folder, ONLINE_VAE, OnlineVaeSettings.from_dict)
