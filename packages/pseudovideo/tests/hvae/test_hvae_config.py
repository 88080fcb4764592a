"""Settings that make no HVAE are refused where they are made."""

import math
from collections.abc import Callable

import pytest

from pseudovideo.hvae import HVAEConfig


def test_the_defaults_are_the_papers() -> None:
    config = HVAEConfig()
    assert (config.num_levels, config.sigma_min, config.sigma_max) == (18, 0.5, 20.0)
    # 0.01 on pixels in 0..1 is 0.02 on −1..1.
    assert config.noise_std == 0.02
    assert config.delta == 1.25 * 0.02


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_levels": 1}, "num_levels must be an integer of at least 2, got 1"),
        ({"sigma_min": 30.0}, "sigmas must rise"),
        ({"noise_std": 0.0}, "noise_std must be a number above 0, got 0.0"),
        ({"noise_std": math.nan}, "noise_std must be a number above 0, got nan"),
        ({"delta_factor": -1.0}, "delta_factor must be a number above 0, got -1.0"),
        ({"image_size": 7}, "image_size must be a multiple of 2"),
    ],
)
def test_refused_settings_are_named(
    tiny: Callable[..., HVAEConfig], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**settings)
