"""A model of each class comes back from its folder, and no other class is taken."""

from pathlib import Path
from typing import Any

import pytest
from tiny_video import SIZES, UNET

from probseq.pretrained import Pretrained, fingerprint
from probseq.settings import Settings
from pseudovideo import diffusion, hvae, priors, tokenizers
from pseudovideo.pretrained import load_pretrained
from pseudovideo.spec import TokenizerConfig

TOKENS = {"dim": 8, "num_heads": 2, "codebook_size": 8, "code_dim": 4, "image_size": 8}
PRIOR = {"codebook_size": 5, "grid": (1, 2, 3), "dim": 8, "depth": 1, "num_heads": 2}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (
            tokenizers.VQVAE,
            TokenizerConfig(num_frames=1, temporal_patch=1, temporal_depth=0, **TOKENS),
        ),
        (tokenizers.CViViT, TokenizerConfig(num_frames=4, **TOKENS)),
        (priors.AutoregressivePrior, priors.AutoregressiveConfig(**PRIOR)),
        (priors.MaskedPrior, priors.MaskedConfig(**PRIOR)),
        (diffusion.ImageDiffusion, diffusion.ImageDiffusionConfig(**SIZES)),
        (diffusion.VideoDiffusion, diffusion.VideoDiffusionConfig(**SIZES, one_way=True)),
        (hvae.HeatHVAE, hvae.HVAEConfig(**UNET)),
        (hvae.LearnedEncoderHVAE, hvae.HVAEConfig(**UNET)),
    ],
)
def test_a_model_of_each_class_comes_back(kind: Any, config: Any, tmp_path: Path) -> None:
    model = kind(config)
    model.save_pretrained(tmp_path)
    back = load_pretrained(tmp_path)
    assert type(back) is kind
    assert back.config == model.config
    assert not back.training
    assert fingerprint(back) == fingerprint(model)


class StrangerConfig(Settings):
    """No settings."""


class Stranger(Pretrained):
    """A model that is none of this package's."""

    config_class = StrangerConfig

    def __init__(self, config: StrangerConfig) -> None:
        super().__init__()
        self.config = config


def test_a_model_of_another_class_is_refused(tmp_path: Path) -> None:
    Stranger(StrangerConfig()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"must hold one of VQVAE, .*, got a Stranger"):
        load_pretrained(tmp_path)
