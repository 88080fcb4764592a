"""Public functions of ``probseq`` succeed with numbers or refuse by name, whatever they get."""

from functools import wraps

import torch
from hypothesis import strategies as st

from fuzzing.annotations import derive
from fuzzing.arguments import (
    BACKBONE,
    COUNTS,
    GENERATORS,
    PASSES,
    SCALES,
    TEXT_BACKBONE,
    attended,
    bools,
    built,
    factor,
    images,
    labels,
    modules,
    probabilities,
    size,
    tensors,
    unit,
)
from fuzzing.fuzz import FuzzSuite, Target
from probseq import fourier, gaussians, kernels, linalg, metrics, transformers
from probseq.metrics import image
from probseq.transformers import KernelAttention, TransformerConfig, TransformerOutput

MODULES = [kernels, gaussians, linalg, fourier, metrics, image, transformers]


# -- Kernels ----------------------------------------------------------------------------------

KERNELS = [
    kernels.RBF,
    kernels.Matern12,
    kernels.Matern32,
    kernels.Matern52,
    kernels.Linear,
    kernels.Exponential,
]
HYPERPARAMETERS = dict(
    dim=size("d"), batch_shape=st.sampled_from([(), (2,)]), lengthscale=SCALES, outputscale=SCALES
)
ANY_KERNEL = st.sampled_from(KERNELS).flatmap(lambda kind: modules(kind, **HYPERPARAMETERS))
STATIONARY = st.sampled_from(KERNELS[:4]).flatmap(lambda kind: modules(kind, **HYPERPARAMETERS))

# -- Gaussians, metrics, and metrics of images ------------------------------------------------

MOMENTS = tensors("n d", dtype=torch.float64).map(image.FeatureMoments.of)
SMALL = tensors("n 3 8 8", unit, torch.float32)
BYTES = tensors("n 3 8 8", lambda *a: 99 * unit(*a).abs(), torch.uint8)
TYPICAL = built(
    metrics.KLMatching.fit,
    **dict(probs=tensors("n c", probabilities), labels=labels("n", "c")),
)


def pooled():
    """A network that takes images of any number of channels."""
    return torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool3d((2, 1, 1)), torch.nn.Flatten(), torch.nn.Linear(2, 3)
    )


def random_convolution():
    return image.RandomConvolution(3)


def module_features():
    return image.ModuleFeatures(pooled(), name="pooled", dimension=3)


def classifier_features():
    return image.ClassifierFeatures(pooled(), torch.nn.Linear(3, 4), name="small")


EXTRACTORS = built(random_convolution) | built(module_features) | built(classifier_features)

ENTRIES = {
    **{
        f"{kind}.*": dict(self=ANY_KERNEL)
        for kind in ("Kernel", "ARDKernel", "StationaryKernel", "Sum", "Product")
    },
    "parse_kernel": dict(
        kernel=st.sampled_from(["rbf", "2*periodic(3) + linear", "rbf*(", "rbf(0)", "foo", ""])
    ),
    "gauss_kl": dict(q_sqrt=tensors("b m m", factor)),
    "fourier*": dict(kernel=STATIONARY),
    "sample_frequencies": dict(kernel=STATIONARY),
    "select_with_error": dict(
        max_error=st.floats(0.01, 0.5), num_coverages=st.integers(1, 20), level=st.just(0.95)
    ),
    "forgetting": dict(matrix=tensors("t t")),
    "evaluate": dict(probs=tensors("n c", probabilities), labels=labels("n", "c")),
    "KLMatching.score": dict(self=TYPICAL, probs=tensors("m c", probabilities)),
    "frechet_*": dict(real=MOMENTS | tensors("n d"), fake=MOMENTS | tensors("m d")),
    "ModuleFeatures": dict(module=st.just(pooled()), name=st.just("pooled"), dimension=st.just(3)),
    "ClassifierFeatures": dict(
        trunk=st.just(pooled()), head=st.just(torch.nn.Linear(3, 4)), name=st.just("small")
    ),
    "RandomConvolution.forward": dict(self=built(random_convolution), images=SMALL),
    "ModuleFeatures.forward": dict(self=built(module_features), images=SMALL),
    "ClassifierFeatures.forward": dict(self=built(classifier_features), images=SMALL),
    "extract_features": dict(extractor=EXTRACTORS, images=SMALL | BYTES),
    "distance_name": dict(extractor=EXTRACTORS),
}
WORDS = {
    **dict.fromkeys(
        ("JointGaussian", "JointGaussian.to", "DiagonalGaussian", "DiagonalGaussian.to"), PASSES
    ),
    "select_with_error": "threshold is infinite",
    "psnr": "infinity where the two are identical",
}

# -- Transformers -----------------------------------------------------------------------------


def attention(index):
    return KernelAttention(4, 2)


ATTENTION = dict(attention=st.just(attention))
CONFIG = built(TransformerConfig, **BACKBONE)
TEXT_CONFIG = built(TransformerConfig, **TEXT_BACKBONE)
VISION = dict(
    **dict(config=CONFIG, backbone=CONFIG, image_size=st.just(4), patch_size=st.just(2)),
    **dict(channels=st.just(1), num_classes=st.just(3), images=images("b 1 4 4")),
)
TEXT = dict(
    **dict(config=TEXT_CONFIG, backbone=TEXT_CONFIG, max_length=st.just(4)),
    **dict(vocab_size=st.just(5), num_classes=st.just(3), tokens=labels("b t", "4")),
    **dict(mask=st.none() | bools("b t")),
)
SEQUENCE = TEXT | dict(input_dim=st.just(3), num_outputs=st.just(2), x=tensors("b t 3"))
ENTRIES |= {
    "Encoder*": ATTENTION | dict(config=CONFIG),
    "VisionTransformer*": ATTENTION | VISION,
    "TextTransformer*": ATTENTION | TEXT,
    "SequenceTransformer*": ATTENTION | SEQUENCE,
    "*_transformer": dict(attention=built(transformers.KernelConfig)),
    "vision_transformer": VISION,
    "text_transformer": TEXT,
    "sequence_transformer": SEQUENCE,
    "*Attention.forward": attended() | dict(num_samples=st.none()),  # they draw nothing
}


@wraps(transformers.predict_probabilities)
def predict(model, images, num_samples, generator):
    return transformers.predict_probabilities(
        model, images, num_samples=num_samples, generator=generator
    )


def output(logits):
    return lambda images, **_: TransformerOutput(logits, torch.zeros(()))


PREDICT = Target(
    predict,
    dict(
        model=tensors("s n c").map(output),
        images=images("n 1 4 4"),
        num_samples=COUNTS,
        generator=GENERATORS,
    ),
)

NOT_FUZZED = {
    "Kernel": "abstract: its subclasses are",
    "ARDKernel": "abstract: its subclasses are",
    "*.spectra": "a share, given by a quadrature",
    "Kernel.extra_repr": "takes nothing",
    "*.limits": "takes the units of data: tested by fits",
    "FeatureMoments": "made by its method of",
    "KLMatching": "made by its fit, whose scores are fuzzed with what it gives",
    "LPIPS": "needs weights, and its own tests refuse bad ones",
    "LPIPS.forward": "needs weights",
    "LPIPS.train": "takes a flag",
    "InceptionFeatures": "needs weights, and its own tests refuse bad ones",
    "InceptionFeatures.forward": "needs weights",
    "AttentionConfig": "abstract: its subclasses are",
    "evaluate_ood": "the scores and metrics of two pairs, each fuzzed by itself",
    "AttentionConfig.penalty_weight": "one",
    "KernelConfig.build": "called by the builders of transformers",
    "SoftmaxConfig.build": "called by the builders of transformers",
    "TransformerConfig.check": "a part of its constructor",
    "TokenMap": "made by the backbone alone",
    "TokenMap.parameters": "takes nothing",
    "Predictor": "made of functions",
    "Predictor.<lambda>": "hands on what it is given",
    "Predictor.penalty": "takes a model",
    "Predictor.predict": "takes a model",
    "Predictor.score": "takes a model",
    "SmallClassifier": "a network of fixed sizes",
    "SmallClassifier.forward": "called by the extractor of features, which is fuzzed",
    "active_dropout": "takes a model",
    "without_attention": "takes a model",
    "copy_kernel_weights": "takes two models",
    "class_predictions": "takes what a model gives",
    "ensemble": "takes what predictors give",
    "evaluate_sets": "the metrics of each set, which are fuzzed",
    "evaluate_numbers": "the metrics of each set, which are fuzzed",
    "is_constant": "takes what the metrics take",
    "severities_of": "takes names",
}
TARGETS = derive(MODULES, NOT_FUZZED, [PREDICT], entries=ENTRIES, words=WORDS)


class TestFuzz(FuzzSuite):
    modules = MODULES
    targets = TARGETS
    reasons = NOT_FUZZED
