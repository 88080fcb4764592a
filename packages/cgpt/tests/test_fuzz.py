"""Public functions of ``cgpt`` succeed with numbers or refuse by name, whatever they get."""

from hypothesis import strategies as st

import cgpt
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
    noise=st.sampled_from([0.1, 0.5]),
    regulariser=st.sampled_from(["joint", "marginals", "jensen"]),
    canonical_prior=st.sampled_from(["noise-free", "noisy"]),
    sample_in_training=st.booleans(),
    jitter=st.sampled_from([None, 1e-4]),
)
HEADS = dict(dim=st.just(4), num_heads=st.sampled_from([1, 2]), dropout=st.sampled_from([0.0, 0.1]))
FULL = (
    HEADS
    | COMMON
    | dict(
        conditional=st.sampled_from(["nystrom", "exact"]),
        nugget=st.sampled_from([0.01, 0.1]),
        query_scale=st.sampled_from([0.5, 1.0]),
        key_scale=st.sampled_from([0.5, 1.0]),
        lengthscale=st.sampled_from([None, 1.0]),
    )
)
SPARSE = (
    HEADS
    | COMMON
    | dict(
        num_inducing=COUNTS,
        num_key_inducing=st.none() | COUNTS,
        learn_noise=st.booleans(),
        conditional=st.sampled_from(["sor", "fitc"]),
        inducing=st.sampled_from(["free", "mixed"]),
        max_tokens=st.sampled_from([None, 4]),
        jitter=st.sampled_from([1e-6, 1e-4]),
    )
)
WEIGHTS = dict(alpha_start=SHARES, alpha=SHARES)
FULL_SETTINGS = COMMON | WEIGHTS | dict(conditional=FULL["conditional"], nugget=FULL["nugget"])
SPARSE_SETTINGS = (
    COMMON
    | WEIGHTS
    | {n: SPARSE[n] for n in ("num_inducing", "num_key_inducing", "conditional")}
    | {n: SPARSE[n] for n in ("inducing", "jitter")}
)
CONFIGS = built(cgpt.CGPTConfig, **COMMON) | built(cgpt.SCGPTConfig, **SPARSE_SETTINGS)
BACKBONES, TEXT_BACKBONES = (built(TransformerConfig, **b) for b in (BACKBONE, TEXT_BACKBONE))
VISION = dict(
    backbone=BACKBONES,
    attention=CONFIGS,
    image_size=st.just(4),
    patch_size=st.just(2),
    channels=st.just(1),
    num_classes=st.just(3),
)
TEXT = dict(
    backbone=TEXT_BACKBONES,
    attention=CONFIGS,
    vocab_size=st.just(5),
    max_length=st.just(4),
    num_classes=st.just(3),
)
SAMPLED = dict(generator=GENERATORS, num_samples=st.none() | COUNTS)
IMAGES = images("b 1 4 4")
MASK = st.none() | bools("b t")
ATTEND = attended()
MEANS = {name: ATTEND[name] for name in ("x", "mask")}

FULL_MODULES = modules(cgpt.CorrelatedGPAttention, **FULL)
SPARSE_MODULES = modules(cgpt.SparseCorrelatedGPAttention, **SPARSE)

TARGETS = [
    Target(cgpt.CorrelatedGPAttention, FULL),
    Target(cgpt.SparseCorrelatedGPAttention, SPARSE),
    Target(
        cgpt.CorrelatedGPAttention.forward, dict(self=FULL_MODULES, **ATTEND), non_finite=PASSES
    ),
    Target(
        cgpt.CorrelatedGPAttention.posterior, dict(self=FULL_MODULES, **MEANS), non_finite=PASSES
    ),
    Target(
        cgpt.SparseCorrelatedGPAttention.forward,
        dict(self=SPARSE_MODULES, **ATTEND),
        non_finite=PASSES,
    ),
    Target(
        cgpt.SparseCorrelatedGPAttention.posterior,
        dict(self=SPARSE_MODULES, **MEANS),
        non_finite=PASSES,
    ),
    Target(cgpt.CGPTConfig, FULL_SETTINGS),
    Target(cgpt.SCGPTConfig, SPARSE_SETTINGS),
    Target(cgpt.CGPTConfig.penalty_weight, dict(self=CONFIGS, progress=SHARES)),
    Target(
        VisionTransformer.forward,
        dict(self=modules(vision_transformer, **VISION), images=IMAGES) | SAMPLED,
        non_finite=PASSES,
    ),
    Target(
        TextTransformer.forward,
        dict(self=modules(text_transformer, **TEXT), tokens=labels("b t", "4"), mask=MASK)
        | SAMPLED,
    ),
    Target(
        cgpt.penalised_loss,
        dict(
            log_likelihood=tensors("s b") | tensors("b"),
            penalty=tensors("", positive),
            alpha=SHARES,
        ),
        non_finite=PASSES,
    ),
    Target(
        cgpt.alpha_schedule,
        dict(progress=SHARES, start=SHARES, end=SHARES),
    ),
    Target(
        cgpt.mean_cosine_similarity,
        dict(tokens=tensors("b t d"), mask=MASK),
        non_finite="NaN for sequences of fewer than two tokens",
    ),
    Target(
        cgpt.token_cosine_similarity,
        dict(model=modules(vision_transformer, **VISION), inputs=IMAGES, mask=st.none()) | SAMPLED,
        non_finite="NaN for sequences of fewer than two tokens",
    ),
    Target(
        cgpt.token_cosine_similarity,
        dict(model=modules(text_transformer, **TEXT), inputs=labels("b t", "4"), mask=MASK)
        | SAMPLED,
        non_finite="NaN for sequences of fewer than two tokens",
    ),
]

NOT_FUZZED = {
    "CGPTConfig.build": "called by the builders of transformers",
    "CGPTConfig.check": "a part of its constructor",
    "*.from_kernel": "takes another layer's state",
    "SCGPTConfig.build": "called by the builders of transformers",
}


class TestFuzz(FuzzSuite):
    modules = (cgpt,)
    targets = TARGETS
    reasons = NOT_FUZZED
    calls = 8
