"""Public functions of ``kepsvgp`` succeed with numbers or refuse by name, whatever they get."""

from hypothesis import strategies as st

import kepsvgp
from probseq.testing.arguments import (
    BACKBONE,
    COUNTS,
    GENERATORS,
    PASSES,
    SHARES,
    TEXT_BACKBONE,
    attended,
    bools,
    built,
    images,
    labels,
    modules,
    positive,
    tensors,
)
from probseq.testing.fuzz import FuzzSuite, Target
from probseq.transformers import (
    TextTransformer,
    TransformerConfig,
    VisionTransformer,
    text_transformer,
    vision_transformer,
)

COMMON = dict(
    rank=st.integers(1, 2),
    merge=st.sampled_from(["addition", "concatenation", "concatenation-low-rank"]),
    branches=st.sampled_from(["er", "ee", "rr"]),
    shared_u=st.booleans(),
    eta=st.sampled_from([0.0, 10.0]),
    projection_tokens=st.sampled_from([None, 3]),
    initial_posterior=st.sampled_from(["random", "prior"]),
)
HEADS = COMMON | dict(
    dim=st.just(4),
    num_heads=st.sampled_from([1, 2]),
    max_tokens=st.just(4),
    dropout=st.sampled_from([0.0, 0.1]),
)
LAYERS = st.sampled_from(["last", "all", (0,)])
CONFIGS = built(kepsvgp.KEPSVGPConfig, **COMMON, layers=LAYERS)
VISION = dict(
    backbone=built(TransformerConfig, **BACKBONE),
    attention=CONFIGS,
    image_size=st.just(4),
    patch_size=st.just(2),
    channels=st.just(1),
    num_classes=st.just(3),
)
TEXT = dict(
    backbone=built(TransformerConfig, **TEXT_BACKBONE),
    attention=CONFIGS,
    vocab_size=st.just(5),
    max_length=st.just(4),
    num_classes=st.just(3),
)
SAMPLED = dict(generator=GENERATORS, num_samples=st.none() | COUNTS)
IMAGES = images("b 1 4 4")
TOKENS = dict(tokens=labels("b t", "4"), mask=st.none() | bools("b t"))
ATTEND = attended()
MEANS = {name: ATTEND[name] for name in ("x", "mask")}
ATTENTION = modules(kepsvgp.KernelEigenPairAttention, **HEADS)

TARGETS = [
    Target(kepsvgp.KernelEigenPairAttention, HEADS),
    Target(
        kepsvgp.KernelEigenPairAttention.forward,
        dict(self=ATTENTION, **ATTEND),
        non_finite=PASSES,
    ),
    Target(
        kepsvgp.KernelEigenPairAttention.penalties,
        dict(self=ATTENTION, **MEANS),
        non_finite=PASSES,
    ),
    Target(
        kepsvgp.KernelEigenPairAttention.kernel, dict(self=ATTENTION, **MEANS), non_finite=PASSES
    ),
    Target(kepsvgp.KEPSVGPConfig, COMMON | dict(layers=LAYERS)),
    Target(
        VisionTransformer.forward,
        dict(self=modules(vision_transformer, **VISION), images=IMAGES) | SAMPLED,
        non_finite=PASSES,
    ),
    Target(
        TextTransformer.forward,
        dict(self=modules(text_transformer, **TEXT), **TOKENS) | SAMPLED,
    ),
    Target(
        kepsvgp.negative_elbo,
        dict(
            logits=tensors("s b c") | tensors("b c"),
            labels=labels("b", "c"),
            penalty=tensors("", positive),
            penalty_scale=SHARES,
        ),
        non_finite=PASSES,
    ),
    Target(
        kepsvgp.attention_spectrum,
        dict(
            model=modules(vision_transformer, **VISION),
            batches=st.lists(st.tuples(IMAGES), min_size=1, max_size=2),
        ),
    ),
]

NOT_FUZZED = {
    "KEPSVGPConfig.build": "called by the builders of transformers",
    "KEPSVGPConfig.check": "a part of its constructor",
}


class TestFuzz(FuzzSuite):
    modules = (kepsvgp,)
    targets = TARGETS
    reasons = NOT_FUZZED
    calls = 8
