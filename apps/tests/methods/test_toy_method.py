"""A method of one's own: a line in METHODS and a field of the settings."""

import pytest
import torch

from probseq.transformers import KernelAttention
from probseq.transformers.spec import AttentionConfig
from probseq_apps.data.images import load_images
from probseq_apps.engine.trainer import Step
from probseq_apps.experiments.classify import classification_loss, penalty_of, preparation
from probseq_apps.methods.build import build
from probseq_apps.settings.classify import ClassifySettings, ImageAndTextSettings
from probseq_apps.settings.methods import METHODS, Method


class ToyConfig(AttentionConfig):
    """Kernel attention of a variance that is a setting."""

    variance: float = 0.5

    def build(self, place):
        backbone = place.backbone
        return KernelAttention(backbone.dim, backbone.num_heads, initial_variance=self.variance)

    def penalty_weight(self, progress):
        return 2.0 * progress


class WithToy(ClassifySettings):
    """Settings with one more field."""

    toy: ToyConfig = ToyConfig()


def test_a_new_method_is_a_line_and_a_field_and_trains(monkeypatch):
    monkeypatch.setitem(METHODS, "toy", Method("a toy", "toy"))
    settings = WithToy.from_dict(
        {"method": ["toy+ts", "toy+ensemble"], "toy": {"variance": 0.25}, "model": {"dim": 16}}
    )
    assert isinstance(settings.model, ImageAndTextSettings)
    data = load_images("digits")
    model = build(METHODS["toy"], settings, data, seed=0)
    variances = {round(a.kernel.outputscale.mean().item(), 6) for a in model.encoder.attention}
    assert variances == {0.25}
    weight = penalty_of(METHODS["toy"], settings)
    assert weight is not None
    assert weight(0.5) == pytest.approx(1.0)
    batch, step = (
        (data.train.inputs[:8], data.train.targets[:8]),
        Step(1, 0, 0.5, torch.Generator()),
    )
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = classification_loss(
        preparation(data), lambda x, generator: x, weight, model, batch, step
    ).loss
    loss.backward()
    optimizer.step()
    changed = [
        not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)
    ]
    assert all(changed)
