"""Which pseudo video is made of an image."""

from dataclasses import dataclass
from typing import Literal, get_args

CorruptionKind = Literal[
    "blur",
    "high-order-blur",
    "first-order-noise",
    "high-order-noise",
    "matched-noise",
    "repeat",
]
CORRUPTIONS: tuple[CorruptionKind, ...] = get_args(CorruptionKind)
# Section 5.3.2 of the thesis has two lengths of blurred videos: 8 frames and 18.
_SHORT, _SHORT_RATE, _LONG_RATE = 8, 0.05, 0.01
# Of exp(rate·i), beyond which a blur is 0/0.
_LARGEST_EXPONENT = 100.0


@dataclass(frozen=True, kw_only=True)
class PseudoVideoConfig:
    """A kind of pseudo video: frame T, the last, is the image, frame 1 the most corrupted.

    Attributes:
        num_frames: T; 1 for the image alone.
        kind: `blur` (recursive), `high-order-blur` (blur of the mean of all cleaner frames),
            `first-order-noise` and `high-order-noise` (section 5.4.2), `matched-noise` (first-order
            noise with the signal-to-noise ratios of the high-order one, an ablation), or `repeat`
            (T identical frames, a control of equal bits).
        blur_rate: step i of the blur has standard deviation exp(rate·i), i = 0..T−2. None becomes
            the thesis' (section 5.3.2): .05, its rate for 8 frames, up to 8 frames, and .01, its
            rate for 18, above.
        beta_min: noise variance of the step next to the image.
        beta_max: noise variance of the last step; linear between.
    """

    num_frames: int = 8
    kind: CorruptionKind = "blur"
    blur_rate: float | None = None
    beta_min: float = 1e-4
    beta_max: float = 0.05

    def __post_init__(self) -> None:
        """Refuse what makes no video.

        Raises:
            ValueError: names the setting.
        """
        # Numbers of numpy and 8.0 would not come back from JSON as they are.
        if type(self.num_frames) is not int:
            raise ValueError(
                f"num_frames must be an int, got {self.num_frames!r} of "
                f"{type(self.num_frames).__name__}"
            )
        if self.num_frames < 1:
            raise ValueError(f"num_frames must be at least 1, got {self.num_frames}")
        if self.kind not in CORRUPTIONS:
            raise ValueError(f"kind must be one of {', '.join(CORRUPTIONS)}, got {self.kind!r}")
        if self.blur_rate is None:
            rate = _SHORT_RATE if self.num_frames <= _SHORT else _LONG_RATE
            object.__setattr__(self, "blur_rate", rate)
        else:
            check_blur_rate("blur_rate", self.blur_rate, self.num_frames)
        if not 0.0 <= self.beta_min <= self.beta_max < 1.0:
            raise ValueError(
                "beta_min and beta_max must be 0 <= beta_min <= beta_max < 1, "
                f"got {self.beta_min} and {self.beta_max}"
            )

    @property
    def random(self) -> bool:
        """Whether videos of one image differ between epochs."""
        return self.num_frames > 1 and self.kind.endswith("noise")


def check_blur_rate(name: str, rate: float, num_frames: int) -> None:
    """Refuse a rate whose last step is 0/0.

    Args:
        name: of the argument.
        rate: standard deviations grow as exp(rate·i), i = 0..T−2.
        num_frames: T.

    Raises:
        ValueError: the rate or the last exponent is not finite, or too large.
    """
    if not abs(rate) * max(num_frames - 2, 1) <= _LARGEST_EXPONENT:
        raise ValueError(
            f"{name} must be at most {_LARGEST_EXPONENT:g} in absolute value, times "
            f"num_frames - 2={num_frames - 2} too, got {rate}"
        )
