"""Settings that make no HVAE are refused where they are made."""

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
        ({"sigma_min": 30.0}, "sigma_max must be above sigma_min=30.0"),
        ({"image_size": 7}, "image_size must be a multiple of 2"),
    ],
)
def test_refused_settings_are_named(
    tiny: Callable[..., HVAEConfig], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**settings)
