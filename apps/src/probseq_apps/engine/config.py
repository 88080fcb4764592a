"""The settings of one training run; importable without torch, for the command line."""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

Schedule = Literal["linear", "cosine", "constant"]
Selection = Literal["best", "last"]
Precision = Literal["float32", "bf16"]

# Settings that came after runs had been stored without them.
_LATER = frozenset(("steps", "warmup_steps", "ema_decay"))

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train, whatever the model.

    Attributes:
        epochs: passes over the training data; left at 0 where `steps` tells the length.
        steps: optimizer steps of the whole run, in place of `epochs`; a pass that the last step
            cuts short counts as an epoch.
        batch_size: examples per optimizer step, over all ranks together.
        learning_rate: step size of Adam after the warm-up.
        final_learning_rate: step size at the last step; ignored by the constant schedule.
        warmup_epochs: epochs in which the step size rises linearly from about zero.
        warmup_steps: the same in steps, for a length in `steps`.
        schedule: shape of the way from `learning_rate` to `final_learning_rate`.
        weight_decay: decoupled weight decay; above zero, AdamW takes the place of Adam.
        grad_clip: largest norm of the whole gradient, or of each network's own where several play
            against each other; None leaves it alone.
        validate_every: epochs between two validations; the last epoch always ends with one.
        select: keep the weights of the best validation score, or those of the last step.
        checkpoint_every: epochs between two checkpoints; the last epoch always ends with one, and
            five minutes after the last one another is due, wherever the run stands.
        ema_decay: decay of an exponential moving average of the parameters, which is what is
            validated, selected and loaded from the finished run, see `WeightAverage`; None for
            the parameters themselves.
        seed: seed of the batch order and of all noise.
        device: `auto` (CUDA if there is any, else the CPU), `cpu`, `cuda` or `cuda:N`.
        precision: `bf16` runs forward passes under autocast; parameters stay float32.
        compile: train through `torch.compile`.
        tensorboard: also write the metrics as TensorBoard events (extra `tensorboard`).
    """

    batch_size: int
    learning_rate: float
    epochs: int = 0
    steps: int | None = None
    final_learning_rate: float = 1e-5
    warmup_epochs: int = 0
    warmup_steps: int = 0
    schedule: Schedule = "linear"
    weight_decay: float = 0.0
    grad_clip: float | None = None
    validate_every: int = 1
    select: Selection = "best"
    checkpoint_every: int = 1
    ema_decay: float | None = None
    seed: int = 0
    device: str = "auto"
    precision: Precision = "float32"
    compile: bool = False
    tensorboard: bool = False

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant.

        Raises:
            ValueError: a value has the wrong type or lies outside its range.
        """
        for name in ("batch_size", "validate_every", "checkpoint_every"):
            _check_int(name, getattr(self, name), minimum=1)
        for name in ("warmup_epochs", "warmup_steps", "seed"):
            _check_int(name, getattr(self, name), minimum=0)
        for name in ("final_learning_rate", "weight_decay"):
            _check_float(name, getattr(self, name), positive=False)
        _check_float("learning_rate", self.learning_rate, positive=True)
        if self.schedule != "constant" and self.final_learning_rate > self.learning_rate:
            raise ValueError(
                f"final_learning_rate must be at most learning_rate={self.learning_rate}, "
                f"got {self.final_learning_rate}"
            )
        if self.grad_clip is not None:
            _check_float("grad_clip", self.grad_clip, positive=True)
        for name, kind in (
            ("schedule", Schedule),
            ("select", Selection),
            ("precision", Precision),
        ):
            _check_choice(name, getattr(self, name), get_args(kind))
        for name in ("compile", "tensorboard"):
            value = getattr(self, name)
            # A string would do as a truth value, and "False" would be true.
            if not isinstance(value, bool):
                raise ValueError(f"{name} must be true or false, got {value!r}")
        self._check_length()
        if self.ema_decay is not None:
            _check_float("ema_decay", self.ema_decay, positive=True)
            if self.ema_decay >= 1.0:
                raise ValueError(f"ema_decay must be below 1, got {self.ema_decay}")
        if not _DEVICE.fullmatch(str(self.device)):
            raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {self.device!r}")

    def _check_length(self) -> None:
        """The length is given once, and the warm-up in its unit."""
        unit, other = ("epochs", "steps") if self.steps is None else ("steps", "epochs")
        length, warmup = getattr(self, unit), getattr(self, f"warmup_{unit}")
        _check_int(unit, length, minimum=1)
        for name in (other, f"warmup_{other}"):
            if getattr(self, name):
                raise ValueError(
                    f"{name} must be left out where {unit}={length} tells the length, "
                    f"got {getattr(self, name)!r}"
                )
        if warmup >= length:
            raise ValueError(f"warmup_{unit} must be less than {unit}={length}, got {warmup}")

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "TrainConfig":
        """Build from plain values, as JSON holds them.

        Args:
            values: field names with their values; fields left out keep their defaults.

        Raises:
            ValueError: a key is unknown, a key without default is missing, or a value is refused.
        """
        names = [field.name for field in fields(cls)]
        for key in values:
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1, cutoff=0.0)[0]
                raise ValueError(f"unknown training setting {key!r}, did you mean {near!r}?")
        length = "epochs" if values.get("steps") is None else "steps"
        missing = [n for n in (length, "batch_size", "learning_rate") if n not in values]
        if missing:
            raise ValueError(f"training settings lack {', '.join(missing)}: give a value for each")
        # JSON writes 1.0 and 1 alike in some hands.
        floats = ("learning_rate", "final_learning_rate", "weight_decay", "grad_clip", "ema_decay")
        plain = {
            name: float(value) if name in floats and type(value) is int else value
            for name, value in values.items()
        }
        return cls(**plain)  # pyright: ignore[reportArgumentType]  (checked by __post_init__)

    def to_dict(self) -> dict[str, object]:
        """Plain values that JSON can hold and `from_dict` reads.

        Later settings are left out while they are unused, so that a run started before there were
        any compares equal with itself and can be resumed.
        """
        return {name: value for name, value in asdict(self).items() if value or name not in _LATER}


def _check_int(name: str, value: object, *, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}")


def _check_float(name: str, value: object, *, positive: bool) -> None:
    wanted = "a finite number above 0" if positive else "a finite number of at least 0"
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value < 0
        or (positive and value == 0)
    ):
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
