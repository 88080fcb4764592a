"""The settings of one training run, its step sizes and seeds; importable without torch."""

import hashlib
import math
import re
from typing import Annotated, Any, Literal

from tyro.conf import arg

from probseq.settings import Bound, Count, Index, NotNegative, Positive, Settings

Schedule = Literal["linear", "cosine", "constant"]
Selection = Literal["best", "last"]
Precision = Literal["float32", "bf16"]
Fraction = Annotated[float, Bound("in (0, 1)", lambda value: 0 < value < 1)]
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
Device = Annotated[
    str, Bound("auto, cpu, cuda or cuda:N", lambda value: bool(_DEVICE.fullmatch(value)))
]


class Machine(Settings):
    """Machine."""

    device: Device = "auto"
    """auto (CUDA if there is any, else the CPU), cpu, cuda or cuda:N."""
    precision: Precision = "float32"
    """bf16 trains under autocast; parameters stay float32, and so do evaluation and sampling."""
    accumulate: Count = 1
    """Pieces that each process computes its part of a batch in, one after the other, so that large
    batches fit into memory."""


class Training(Settings):
    """Steps of the optimizer."""

    batch_size: Count = 64
    """Examples per optimizer step, over all processes together."""
    learning_rate: Annotated[Positive, arg(aliases=["--lr"])] = 1e-3
    """Step size of Adam after the warm-up."""
    final_learning_rate: Annotated[NotNegative, arg(aliases=["--final-lr"])] = 1e-5
    """Step size at the last step; ignored by the constant schedule."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay; above zero, AdamW takes the place of Adam."""
    grad_clip: Positive | None = None
    """Largest norm of the whole gradient, or of each network's own where several play against each
    other; None leaves it alone."""


class EpochTraining(Training, Machine):
    """Training."""

    epochs: Count = 30
    """Passes over the training data."""
    warmup_epochs: Index = 0
    """Epochs in which the step size rises linearly from about zero."""
    schedule: Schedule = "linear"
    """Shape of the way from the first to the final step size."""
    validate_every: Count = 1
    """Epochs between two validations; the last epoch always ends with one."""
    select: Selection = "best"
    """Keep the weights of the best validation score, or those of the last step."""
    checkpoint_every: Count | None = 10
    """Epochs between two checkpoints; the last epoch always ends with one, and five minutes after
    the last one another is due, wherever the run stands. None: by time alone."""
    compile: bool = False
    """Train through `torch.compile`."""

    def train_config(self, *, seed: int) -> "TrainConfig":
        """Return the settings of the training loop for one run."""
        return TrainConfig(**loop_values(self), seed=seed)

    def check(self) -> None:
        """Refuse a growing step size, and a warm-up that is all of the training."""
        if self.schedule != "constant" and self.final_learning_rate > self.learning_rate:
            raise ValueError(
                f"final_learning_rate must be at most learning_rate={self.learning_rate}, "
                f"got {self.final_learning_rate}"
            )
        if self.warmup_epochs >= max(self.epochs, 1):
            raise ValueError(
                f"warmup_epochs must be less than epochs={self.epochs}, got {self.warmup_epochs}"
            )


class TrainConfig(EpochTraining):
    """Training of any model: for so many epochs, or for so many steps."""

    epochs: Index = 0
    checkpoint_every: Count | None = 1
    steps: Count | None = None
    """Optimizer steps of the whole run, in place of `epochs`; a pass that the last step cuts short
    counts as an epoch."""
    warmup_steps: Index = 0
    """As `warmup_epochs`, for a length in `steps`."""
    ema_decay: Fraction | None = None
    """Decay of an exponential moving average of the parameters, which is what is validated,
    selected and loaded from the finished run; None for the parameters themselves."""
    seed: Index = 0
    """Of the batch order and of all noise."""

    def check(self) -> None:
        """Refuse a length given twice or not at all."""
        unit, other = ("epochs", "steps") if self.steps is None else ("steps", "epochs")
        length = getattr(self, unit)
        if not length:
            raise ValueError(f"epochs must be a whole number of at least 1, got {length}")
        for name in (other, f"warmup_{other}"):
            if getattr(self, name):
                raise ValueError(
                    f"{name} must be left out where {unit}={length} tells the length, "
                    f"got {getattr(self, name)!r}"
                )
        if self.steps is not None and self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps must be less than steps={self.steps}, got {self.warmup_steps}"
            )

    def steps_per_epoch(self, num_examples: int) -> int:
        """Return the optimizer steps of a pass over the data; the last batch may be smaller."""
        return -(-num_examples // self.batch_size)

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the optimizer steps of the whole run."""
        return self.epochs * steps_per_epoch if self.steps is None else self.steps

    def step_size(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate of an optimizer step, counted from 0.

        Warm-up: η·(step+1)/W for the first W steps. Then with u from 0 to 1 over the remaining
        steps, linear η + u(η_end − η), cosine η_end + ½(1 + cos πu)(η − η_end).
        """
        peak, final = self.learning_rate, self.final_learning_rate
        warmup = self.warmup_epochs * steps_per_epoch + self.warmup_steps
        if step < warmup:
            return peak * (step + 1) / warmup
        done = (step - warmup) / max(1, self.total_steps(steps_per_epoch) - 1 - warmup)
        match self.schedule:
            case "constant":
                return peak
            case "linear":
                return peak + done * (final - peak)
            case "cosine":
                return final + 0.5 * (1.0 + math.cos(math.pi * done)) * (peak - final)


def loop_values(settings: Settings) -> dict[str, Any]:
    """Return those of the settings of a command that the training loop has, too."""
    names = TrainConfig.__dataclass_fields__
    return {name: value for name, value in settings.to_dict().items() if name in names}


def derive_seed(seed: int, purpose: str, index: int = 0) -> int:
    """Return the seed of a random stream: another for each purpose, index and run's seed."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return int.from_bytes(digest[:6], "little")
