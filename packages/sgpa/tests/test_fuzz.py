"""Public functions of ``sgpa`` succeed with numbers or refuse by name, whatever they get."""

from functools import wraps

import torch
from hypothesis import strategies as st

import sgpa
from probseq.testing.arguments import (
    BACKBONE,
    COUNTS,
    GENERATORS,
    PASSES,
    SCALES,
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
    TransformerOutput,
    VisionTransformer,
    text_transformer,
    vision_transformer,
)

HEADS = dict(
    dim=st.just(4),
    num_heads=st.sampled_from([1, 2]),
    kernel=st.sampled_from(["rbf", "exponential"]),
    covariance=st.sampled_from(["diag", "full"]),
    initial_variance=st.sampled_from([None, 0.5]),
    dropout=st.sampled_from([0.0, 0.1]),
    jitter=st.sampled_from([1e-6, 1e-4]),
)
GLOBAL = HEADS | dict(
    num_inducing=COUNTS,
    variant=st.sampled_from(["orthogonal", "decoupled"]),
    covariance=st.sampled_from(["diag", "inducing", "full"]),
    kl_weighting=st.sampled_from(["sequence", "dataset"]),
    num_data=st.sampled_from([None, 10]),
    initial_posterior=st.sampled_from(["random", "prior"]),
    num_features=st.sampled_from([None, 4]),
)
STANDARD = HEADS | dict(max_tokens=st.just(4))
SETTINGS = dict(num_inducing=COUNTS, kernel=HEADS["kernel"], covariance=GLOBAL["covariance"])
RESIDUAL = {n: HEADS[n] for n in ("dim", "num_heads", "dropout", "jitter")} | dict(
    num_inducing=COUNTS,
    causal=st.booleans(),
    initial_variance=SCALES,
    rho=SCALES,
    num_data=st.sampled_from([None, 10]),
)
PROCESS = {n: RESIDUAL[n] for n in ("num_heads", "num_inducing", "rho", "jitter")} | dict(
    query_width=COUNTS, value_width=COUNTS, initial_variance=SCALES
)
RESIDUAL_SETTINGS = {n: RESIDUAL[n] for n in ("num_inducing", "initial_variance", "rho", "jitter")}
VARIANTS = st.sampled_from(["orthogonal", "decoupled", "standard"])
CONFIGS = built(sgpa.SGPAConfig, **SETTINGS, variant=VARIANTS)
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
TOKENS = dict(tokens=labels("b t", "4"), mask=st.none() | bools("b t"))
ATTEND = attended()
POINTS = {name: ATTEND[name] for name in ("x", "mask")}
MEANS = {name: ATTEND[name] for name in ("x", "mask", "token_map")}


@wraps(sgpa.predict_regression)
def predict_regression(model, likelihood, images, num_samples, generator):
    return sgpa.predict_regression(
        model, likelihood, images, num_samples=num_samples, generator=generator
    )


def output(logits):
    return lambda images, **_: TransformerOutput(logits, torch.zeros(()))


TARGETS = [
    Target(sgpa.SparseGPAttention, GLOBAL),
    Target(sgpa.StandardSparseGPAttention, STANDARD),
    Target(
        sgpa.SparseGPAttention.forward,
        dict(self=modules(sgpa.SparseGPAttention, **GLOBAL), **ATTEND),
        non_finite=PASSES,
    ),
    Target(
        sgpa.StandardSparseGPAttention.forward,
        dict(self=modules(sgpa.StandardSparseGPAttention, **STANDARD), **ATTEND),
        non_finite=PASSES,
    ),
    Target(
        sgpa.SparseGPAttention.posterior,
        dict(self=modules(sgpa.SparseGPAttention, **GLOBAL), **MEANS),
        non_finite=PASSES,
    ),
    Target(sgpa.ResidualSparseGPAttention, RESIDUAL),
    Target(
        sgpa.ResidualSparseGPAttention.forward,
        dict(self=modules(sgpa.ResidualSparseGPAttention, **RESIDUAL), **ATTEND),
        non_finite=PASSES,
    ),
    Target(
        sgpa.ResidualSparseGPAttention.posterior,
        dict(self=modules(sgpa.ResidualSparseGPAttention, **RESIDUAL), **POINTS),
        non_finite=PASSES,
    ),
    Target(
        sgpa.ResidualSparseGPAttention.place_inducing,
        dict(
            self=modules(sgpa.ResidualSparseGPAttention, **RESIDUAL),
            generator=GENERATORS,
            **POINTS,
        ),
        non_finite=PASSES,
    ),
    Target(
        sgpa.ResidualSparseGPAttention.kl,
        dict(self=modules(sgpa.ResidualSparseGPAttention, **RESIDUAL)),
    ),
    Target(sgpa.QueryProcess, PROCESS),
    Target(
        sgpa.QueryProcess.set_deviation,
        dict(self=modules(sgpa.QueryProcess, **PROCESS), deviation=SCALES),
    ),
    Target(sgpa.ResidualSGPAConfig, RESIDUAL_SETTINGS),
    Target(
        sgpa.ResidualSGPAConfig.penalty_weight,
        dict(self=built(sgpa.ResidualSGPAConfig, **RESIDUAL_SETTINGS), progress=SHARES),
    ),
    Target(
        sgpa.SGPAConfig,
        {n: s for n, s in GLOBAL.items() if n not in ("dim", "num_heads", "dropout", "num_data")}
        | dict(kl_anneal=SHARES),
    ),
    Target(sgpa.SGPAConfig.penalty_weight, dict(self=CONFIGS, progress=SHARES)),
    Target(
        VisionTransformer.forward,
        dict(self=modules(vision_transformer, **VISION), images=images("b 1 4 4")) | SAMPLED,
        non_finite=PASSES,
    ),
    Target(
        TextTransformer.forward,
        dict(self=modules(text_transformer, **TEXT), **TOKENS) | SAMPLED,
    ),
    Target(sgpa.LaplaceLikelihood, dict(scale=SCALES)),
    Target(
        sgpa.LaplaceLikelihood.log_prob,
        dict(
            self=modules(sgpa.LaplaceLikelihood, scale=SCALES),
            outputs=tensors("s b 1") | tensors("b 1"),
            targets=tensors("b"),
        ),
        non_finite=PASSES,
    ),
    Target(
        sgpa.categorical_log_likelihood,
        dict(logits=tensors("s b c") | tensors("b c"), labels=labels("b", "c")),
        non_finite=PASSES,
    ),
    Target(
        sgpa.negative_elbo,
        dict(
            log_likelihood=tensors("s b") | tensors("b"),
            penalty=tensors("", positive),
            kl_scale=SHARES,
        ),
        non_finite=PASSES,
    ),
    Target(sgpa.kl_annealing, dict(progress=SHARES, fraction=SHARES)),
    Target(
        predict_regression,
        dict(
            model=tensors("s n 1").map(output),
            likelihood=built(sgpa.LaplaceLikelihood, scale=1.0),
            images=tensors("n 1"),
            num_samples=COUNTS,
            generator=GENERATORS,
        ),
    ),
]

NOT_FUZZED = {
    "*Config.build": "called by the builders of transformers",
    "SGPAConfig.check": "a part of its constructor",
    "QueryProcess.*": "called by the residual layer and by replace_attention, which check tokens",
    "replace_attention": "DropInSuite tests it",
    **dict.fromkeys(
        ("calibrate", "load_calibrated", "tune_deviation"),
        "takes a trained model: test_calibration refuses bad arguments",
    ),
    "Calibrated*": "made by calibrate",
    "Causal*": "test_causal tests it",
    **dict.fromkeys(
        ("ResidualSparseGPAttention.init_cache", "ResidualSparseGPAttention.step"),
        "test_causal tests it",
    ),
    "*.from_kernel": "takes another layer's state",
    "RegressionModel*": "a transformer and a likelihood, each fuzzed by itself",
}


class TestFuzz(FuzzSuite):
    modules = (sgpa,)
    targets = TARGETS
    reasons = NOT_FUZZED
    calls = 8
