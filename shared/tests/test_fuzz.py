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
    positive,
    probabilities,
    size,
    tensors,
    unit,
)
from fuzzing.fuzz import FuzzSuite, Target
from probseq import fourier, gaussians, kernels, linalg, metrics, transformers
from probseq.metrics import image
from probseq.transformers import (
    Encoder,
    KernelAttention,
    Pooling,
    SequenceTransformer,
    SoftmaxAttention,
    TextTransformer,
    TransformerConfig,
    TransformerOutput,
    VisionTransformer,
)

MODULES = [kernels, gaussians, linalg, fourier, metrics, image, transformers]


# -- Kernels ----------------------------------------------------------------------------------

HYPERPARAMETERS = dict(
    dim=size("d"),
    batch_shape=st.sampled_from([(), (2,)]),
    lengthscale=SCALES,
    outputscale=SCALES,
)
SCALED = {k: v for k, v in HYPERPARAMETERS.items() if k != "lengthscale"}
KERNELS = [
    kernels.RBF,
    kernels.Matern12,
    kernels.Matern32,
    kernels.Matern52,
    kernels.Linear,
    kernels.Exponential,
]
ANY_KERNEL = st.sampled_from(KERNELS).flatmap(lambda kind: modules(kind, **HYPERPARAMETERS))
STATIONARY = st.sampled_from(KERNELS[:4]).flatmap(lambda kind: modules(kind, **HYPERPARAMETERS))
INPUTS = dict(x=tensors("n d"), z=tensors("m d"))

KERNEL_TARGETS = [
    *(Target(kernel, HYPERPARAMETERS) for kernel in KERNELS),
    *(Target(kernel, SCALED) for kernel in (kernels.Constant, kernels.White)),
    Target(kernels.Walk, dict(dim=size("d"), step=SCALES, outputscale=SCALES)),
    Target(kernels.Walk.set_step, dict(self=modules(kernels.Walk, dim=size("d")), step=SCALES)),
    Target(kernels.Periodic, HYPERPARAMETERS | dict(period=SCALES)),
    Target(kernels.RationalQuadratic, HYPERPARAMETERS | dict(alpha=SCALES)),
    Target(
        kernels.parse_kernel,
        dict(
            kernel=st.sampled_from(["rbf", "2*periodic(3) + linear", "rbf*(", "rbf(0)", "foo", ""]),
            dim=size("d"),
            lengthscale=SCALES,
            outputscale=SCALES,
        ),
    ),
    Target(kernels.Kernel.forward, dict(self=ANY_KERNEL, **INPUTS), non_finite=PASSES),
    Target(kernels.Kernel.diag, dict(self=ANY_KERNEL, x=INPUTS["x"]), non_finite=PASSES),
]

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
    "*Gaussian.rsample": dict(sample_shape=st.sampled_from([(), (2,), (2, 3)])),
    "gauss_kl": dict(q_sqrt=tensors("b m m", factor)),
    "safe_cholesky": dict(jitter=st.sampled_from([None, 1e-6, 1e-3]), max_tries=st.integers(1, 4)),
    "fourier*": dict(kernel=STATIONARY),
    "sample_frequencies": dict(kernel=STATIONARY),
    "*calibration*": dict(num_bins=st.integers(1, 20)),
    "f*_*pr*": dict(tpr=st.sampled_from([0.5, 0.95, 1.0])),
    "select_with_error": dict(
        max_error=st.floats(0.01, 0.5), num_coverages=st.integers(1, 20), level=st.just(0.95)
    ),
    "forgetting": dict(matrix=tensors("t t")),
    "mean_log_probs": dict(members=st.tuples(tensors("n c"), tensors("n c"))),
    "evaluate": dict(probs=tensors("n c", probabilities), labels=labels("n", "c")),
    "KLMatching.score": dict(self=TYPICAL, probs=tensors("m c", probabilities)),
    "FeatureMoments.of": dict(features=tensors("n d")),
    "frechet_*": dict(real=MOMENTS | tensors("n d"), fake=MOMENTS | tensors("m d")),
    "inception_score": dict(splits=st.integers(1, 2)),
    "RandomConvolution": dict(seed=st.just(0)),
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
BINS = built(metrics.calibration_bins, probs=tensors("n c", probabilities), labels=labels("n", "c"))
BIN_TARGETS = [
    Target(method, dict(self=BINS))
    for method in (metrics.CalibrationBins.expected_error, metrics.CalibrationBins.maximum_error)
]
WORDS = {
    **dict.fromkeys(
        ("JointGaussian", "JointGaussian.to", "DiagonalGaussian", "DiagonalGaussian.to"), PASSES
    ),
    "select_with_error": "threshold is infinite",
    "psnr": "infinity where the two are identical",
}

# -- Transformers -----------------------------------------------------------------------------

CONFIGS = built(TransformerConfig, **BACKBONE)
TEXT_CONFIGS = built(TransformerConfig, **TEXT_BACKBONE)
HEADS = dict(dim=st.just(4), num_heads=st.sampled_from([1, 2]), dropout=st.sampled_from([0.0, 0.1]))
KERNEL_HEADS = HEADS | dict(
    kernel=st.sampled_from(["rbf", "exponential"]),
    symmetric=st.booleans(),
    initial_variance=st.sampled_from([None, 0.5]),
)


def attention(index):
    return KernelAttention(4, 2)


KERNEL_SETTINGS = {
    "kernel": st.sampled_from(["rbf", "exponential", "auto"]),
    **{name: KERNEL_HEADS[name] for name in ("symmetric", "initial_variance")},
}
OF_DATA = dict(
    attention=built(transformers.KernelConfig, **KERNEL_SETTINGS),
    kernel=KERNEL_HEADS["kernel"],
    initial_variance=KERNEL_HEADS["initial_variance"],
    num_data=st.none() | COUNTS,
)
ATTENTION = st.just(attention)


def without_config(arguments):
    return {name: strategy for name, strategy in arguments.items() if name != "config"}


MASK = st.none() | bools("b t")
ATTEND = attended() | dict(num_samples=st.none())  # they draw nothing
SIZES = dict(max_length=st.just(4), attention=ATTENTION)
VISION = dict(
    config=CONFIGS,
    image_size=st.just(4),
    patch_size=st.just(2),
    channels=st.just(1),
    num_classes=st.just(3),
    attention=ATTENTION,
)
TEXT = dict(config=TEXT_CONFIGS, vocab_size=st.just(5), num_classes=st.just(3)) | SIZES
SEQUENCE = (
    dict(config=TEXT_CONFIGS, input_dim=st.just(3), num_outputs=st.just(2), positions=st.booleans())
    | SIZES
)
VISION_OF_SETTINGS = dict(backbone=CONFIGS) | without_config(VISION) | OF_DATA
TEXT_OF_SETTINGS = dict(backbone=TEXT_CONFIGS) | without_config(TEXT) | OF_DATA
SEQUENCE_OF_SETTINGS = dict(backbone=TEXT_CONFIGS) | without_config(SEQUENCE) | OF_DATA
SAMPLED = dict(generator=GENERATORS, num_samples=st.none() | COUNTS)
TOKENS = labels("b t", "4")


@wraps(transformers.predict_probabilities)
def predict(model, images, num_samples, generator, average):
    return transformers.predict_probabilities(
        model, images, num_samples=num_samples, generator=generator, average=average
    )


def output(logits):
    return lambda images, **_: TransformerOutput(logits, torch.zeros(()))


TRANSFORMER_TARGETS = [
    Target(TransformerConfig, BACKBONE),
    Target(TransformerConfig.to_dict, dict(self=CONFIGS)),
    Target(
        TransformerConfig.from_dict, dict(settings=CONFIGS.map(lambda config: config.to_dict()))
    ),
    Target(SoftmaxAttention, HEADS),
    Target(KernelAttention, KERNEL_HEADS),
    Target(
        SoftmaxAttention.forward,
        dict(self=modules(SoftmaxAttention, **HEADS), **ATTEND),
        non_finite=PASSES,
    ),
    Target(
        KernelAttention.forward,
        dict(self=modules(KernelAttention, **KERNEL_HEADS), **ATTEND),
        non_finite=PASSES,
    ),
    Target(
        transformers.kernel_attention,
        dict(
            queries=tensors("b n d"),
            keys=tensors("b m d"),
            values=tensors("b m c"),
            kernel=KERNEL_HEADS["kernel"],
            key_mask=st.none() | bools("b m"),
        ),
        non_finite=PASSES,
    ),
    Target(transformers.rbf_matrix, INPUTS, non_finite=PASSES),
    Target(
        transformers.categorical_log_likelihood,
        dict(logits=tensors("n c"), labels=labels("n", "c")),
        non_finite=PASSES,
    ),
    Target(
        transformers.penalised_loss,
        dict(
            log_likelihood=tensors("n") | tensors("s n"),
            penalty=tensors("", positive),
            penalty_scale=st.sampled_from([0.0, 0.5, 1.0]),
        ),
        non_finite=PASSES,
    ),
    Target(transformers.repeat_samples, dict(x=tensors("b n"), num_samples=COUNTS)),
    Target(Pooling, dict(kind=BACKBONE["pooling"], dim=COUNTS, max_tokens=COUNTS)),
    Target(
        Pooling.forward,
        dict(
            self=modules(Pooling, kind=BACKBONE["pooling"], dim=4),
            x=tensors("b t 4"),
            mask=MASK,
        ),
        non_finite=PASSES,
    ),
    Target(Encoder, dict(config=CONFIGS, attention=ATTENTION)),
    Target(
        Encoder.forward,
        dict(self=modules(Encoder, config=CONFIGS, attention=ATTENTION), x=ATTEND["x"], mask=MASK)
        | SAMPLED,
        non_finite=PASSES,
    ),
    Target(VisionTransformer, VISION),
    Target(
        VisionTransformer.forward,
        dict(self=modules(VisionTransformer, **VISION), images=images("b 1 4 4")) | SAMPLED,
        non_finite=PASSES,
    ),
    Target(TextTransformer, TEXT),
    Target(
        TextTransformer.forward,
        dict(self=modules(TextTransformer, **TEXT), tokens=TOKENS, mask=MASK) | SAMPLED,
    ),
    Target(SequenceTransformer, SEQUENCE),
    Target(
        SequenceTransformer.forward,
        dict(self=modules(SequenceTransformer, **SEQUENCE), x=tensors("b t 3"), mask=MASK)
        | SAMPLED,
        non_finite=PASSES,
    ),
    Target(transformers.vision_transformer, VISION_OF_SETTINGS),
    Target(transformers.text_transformer, TEXT_OF_SETTINGS),
    Target(transformers.sequence_transformer, SEQUENCE_OF_SETTINGS),
    Target(transformers.KernelConfig, KERNEL_SETTINGS),
    Target(transformers.SoftmaxConfig, {}),
    Target(
        predict,
        dict(
            model=tensors("s n c").map(output),
            images=images("n 1 4 4"),
            num_samples=COUNTS,
            generator=GENERATORS,
            average=st.sampled_from(["probabilities", "logits"]),
        ),
    ),
]

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
    "check_torch_fidelity": "takes no arguments",
    "torch_fidelity_metrics": "another library's numbers, tested beside ours",
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
TARGETS = derive(
    [gaussians, linalg, fourier, metrics, image],
    NOT_FUZZED,
    [*KERNEL_TARGETS, *BIN_TARGETS, *TRANSFORMER_TARGETS],
    entries=ENTRIES,
    words=WORDS,
)


class TestFuzz(FuzzSuite):
    modules = MODULES
    targets = TARGETS
    reasons = NOT_FUZZED
