"""Public functions of ``sgpa`` succeed with numbers or refuse by name, whatever they get."""

from functools import wraps

import torch

import sgpa
from fuzzing.annotations import backbone_targets, derive, instances
from fuzzing.arguments import COUNTS, GENERATORS, tensors
from fuzzing.fuzz import FuzzSuite, Target
from probseq.transformers import TransformerOutput

NOT_FUZZED = {
    "*Config.build": "called by the builders of transformers",
    "SGPAConfig.check": "a part of its constructor",
    "*.from_kernel": "takes another layer's state",
    "RegressionModel*": "a transformer and a likelihood, each fuzzed by itself",
}


@wraps(sgpa.predict_regression)
def predict_regression(model, likelihood, images, num_samples, generator):
    return sgpa.predict_regression(
        model, likelihood, images, num_samples=num_samples, generator=generator
    )


def output(logits):
    return lambda images, **_: TransformerOutput(logits, torch.zeros(()))


PREDICTION = Target(
    predict_regression,
    dict(
        model=tensors("s n 1").map(output),
        likelihood=instances(sgpa.LaplaceLikelihood),
        images=tensors("n 1"),
        num_samples=COUNTS,
        generator=GENERATORS,
    ),
)
BACKBONES = backbone_targets(instances(sgpa.SGPAConfig))
TARGETS = derive([sgpa], NOT_FUZZED, [PREDICTION, *BACKBONES])


class TestFuzz(FuzzSuite):
    modules = (sgpa,)
    targets = TARGETS
    reasons = NOT_FUZZED
    calls = 8
