"""Each attention layer learns in a transformer, and has a place for its class token."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from cgpt import CGPTConfig, SCGPTConfig
from kepsvgp import KEPSVGPConfig
from probseq.transformers import (
    TransformerConfig,
    categorical_log_likelihood,
    penalised_loss,
    predict_probabilities,
    text_transformer,
    vision_transformer,
)
from sgpa import SGPAConfig

BACKBONE = TransformerConfig(depth=2, dim=16, num_heads=2, hidden_dim=32, dropout=0.0)
# Settings, steps, batch, and the weight of the penalty at the end.
FITS = {
    "SGPA": (SGPAConfig(num_inducing=6), 160, 64, 1e-3),
    "standard SGPA": (SGPAConfig(num_inducing=6, variant="standard"), 160, 64, 1e-3),
    "CGPT": (CGPTConfig(), 100, 32, 1e-4),
    "SCGPT": (SCGPTConfig(num_inducing=6), 100, 32, 1e-4),
    "KEP-SVGP": (KEPSVGPConfig(rank=4, merge="addition"), 100, 64, 1e-4),
    "KEP-SVGP, concatenated": (KEPSVGPConfig(rank=4, merge="concatenation"), 100, 64, 1e-4),
}


def bars(count, seed):
    """Noisy images of one bar, horizontal (0) or vertical (1), anywhere."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (count,), generator=generator)
    images = 0.3 * torch.randn(count, 1, 8, 8, generator=generator)
    for image, label in zip(images[:, 0], labels, strict=True):
        at = int(torch.randint(0, 8, (), generator=generator))
        bar = image[at] if label == 0 else image[:, at]
        bar += 1.0
    return images, labels


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_a_small_fit_lowers_the_loss_and_beats_chance(name):
    attention, steps, size, weight = FITS[name]
    torch.manual_seed(0)
    model = vision_transformer(
        BACKBONE, attention, image_size=8, patch_size=2, channels=1, num_classes=2
    )
    images, labels = bars(256, seed=1)
    generator = torch.Generator().manual_seed(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for step in range(steps):
        batch = torch.randint(0, 256, (size,), generator=generator)
        out = model(images[batch], generator=generator)
        loss, nll, _ = penalised_loss(
            categorical_log_likelihood(out.logits, labels[batch]),
            out.penalty,
            penalty_scale=weight * attention.penalty_weight(step / steps),
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(nll.item())
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    tests, truth = bars(200, seed=3)
    probabilities = predict_probabilities(model.eval(), tests, generator=generator)
    assert (probabilities.argmax(-1) == truth).double().mean() > 0.8


@pytest.mark.parametrize(
    "attention",
    [
        SGPAConfig(variant="standard"),
        SCGPTConfig(num_inducing=5, inducing="mixed"),
        KEPSVGPConfig(rank=2, merge="concatenation"),
    ],
)
def test_layers_of_a_longest_length_have_a_place_for_the_class_token(attention):
    preset = replace(BACKBONE, pooling="cls"), attention
    image = vision_transformer(*preset, image_size=4, patch_size=2, channels=1, num_classes=2)
    text = text_transformer(*preset, vocab_size=5, max_length=6, num_classes=2)
    assert image(torch.randn(2, 1, 4, 4)).logits.isfinite().all()
    assert text(torch.ones(2, 6, dtype=torch.long)).logits.isfinite().all()
