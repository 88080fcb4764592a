"""Settings that two CPU cores finish; the defaults of the command line."""

from dataclasses import replace

from probseq_apps.experiments.method_settings import CgptSettings, KepsvgpSettings, SgpaSettings
from probseq_apps.experiments.settings import (
    ClassifySettings,
    EvaluationSettings,
    ModelSettings,
    TrainingSettings,
)

# One corruption of each kind, at the ends and the middle of the scale.
_FEW_CORRUPTIONS = ("gaussian_noise", "gaussian_blur", "contrast", "pixelate")
_FEW_SEVERITIES = (1, 3, 5)
# Adam moves a logarithm by about the learning rate a step. The authors' unit prior variance is unit
# noise on every head, and their random posterior tens of thousands of nats: a short training ends
# before either has come down.
_LITTLE_NOISE = 0.02
# The square of a sum over tokens starts in the hundreds: at the paper's weights it, and not the
# cross-entropy, is what a short training brings down.
_LITTLE_SVD = 0.1
# Thousands of nats for a sequence of 16 tokens: at the paper's weight 1, and still at 0.1, a short
# training makes the attention certain and useless.
_LITTLE_DENSITY = 1e-4


def digits_small() -> ClassifySettings:
    """The default: the 8x8 digits of scikit-learn, three methods, three seeds, two minutes."""
    return ClassifySettings(
        data="digits",
        model=ModelSettings(
            depth=2,
            dim=32,
            num_heads=4,
            hidden_dim=64,
            patch_size=4,
            initial_variance=_LITTLE_NOISE,
        ),
        sgpa=SgpaSettings(num_inducing=8, kl_anneal=0.5, initial_posterior="prior"),
        # Four tokens: neither rank nor inducing inputs can be more. At weight 1 the regulariser,
        # hundreds of nats, outweighs the cross-entropy of so short a training.
        cgpt=CgptSettings(scgpt_inducing=4, alpha=0.1),
        kepsvgp=KepsvgpSettings(rank=4, ksvd_weight=_LITTLE_SVD),
        training=TrainingSettings(epochs=50, batch_size=128, learning_rate=1e-2, validate_every=10),
        evaluation=EvaluationSettings(
            shift=True,
            corruptions=_FEW_CORRUPTIONS,
            severities=_FEW_SEVERITIES,
            ood=("rotations",),
        ),
    )


# Every method of the three papers, and their baselines.
ALL_METHODS = (
    *("mle", "mle+ts", "mle+kflla", "mcd-softmax", "svdkl"),
    *("kernel", "kernel+ts", "kernel+kflla", "kernel-asym", "mcd", "mfvi", "sngp"),
    *("sgpa", "cgpt", "scgpt", "kepsvgp", "kepsvgp+ts", "kepsvgp+kflla"),
    *("kernel+ensemble", "sgpa+ensemble", "kepsvgp+ensemble"),
)


def digits_all() -> ClassifySettings:
    """All methods on the digits, three seeds."""
    return replace(digits_small(), method=ALL_METHODS)


def mnist_all() -> ClassifySettings:
    """All methods on MNIST, three seeds."""
    return replace(mnist_small(), method=ALL_METHODS)


def mnist_small() -> ClassifySettings:
    """MNIST with 7x7 patches; Fashion-MNIST and rotated test images are the unknown."""
    return ClassifySettings(
        data="mnist",
        model=ModelSettings(
            depth=2,
            dim=64,
            num_heads=4,
            hidden_dim=128,
            patch_size=7,
            initial_variance=_LITTLE_NOISE,
        ),
        sgpa=SgpaSettings(num_inducing=16, kl_anneal=0.5, initial_posterior="prior"),
        cgpt=CgptSettings(scgpt_inducing=8, alpha=_LITTLE_DENSITY),
        kepsvgp=KepsvgpSettings(rank=8, ksvd_weight=_LITTLE_SVD),
        training=TrainingSettings(epochs=5, batch_size=128, checkpoint_every=1),
        evaluation=EvaluationSettings(ood=("fashion-mnist", "rotations")),
    )


def cifar10_small() -> ClassifySettings:
    """CIFAR-10 with 8x8 patches, a few epochs: a look, not a result."""
    return ClassifySettings(
        data="cifar10",
        seeds=(0,),
        model=ModelSettings(
            depth=3,
            dim=64,
            num_heads=4,
            hidden_dim=128,
            pooling="sequence",
            patch_size=8,
            initial_variance=_LITTLE_NOISE,
        ),
        sgpa=SgpaSettings(
            num_inducing=16, kl_anneal=0.5, initial_posterior="prior", warm_start_epochs=2
        ),
        cgpt=CgptSettings(scgpt_inducing=8, alpha=_LITTLE_DENSITY, cgpt_warm_start_epochs=2),
        kepsvgp=KepsvgpSettings(rank=8, ksvd_weight=_LITTLE_SVD),
        training=TrainingSettings(epochs=8, batch_size=100, checkpoint_every=1),
        evaluation=EvaluationSettings(
            shift=True, corruptions=_FEW_CORRUPTIONS, severities=_FEW_SEVERITIES
        ),
    )


def cola_small() -> ClassifySettings:
    """CoLA with short sequences and a few epochs."""
    return ClassifySettings(
        data="cola",
        seeds=(0,),
        model=ModelSettings(depth=2, dim=64, num_heads=4, hidden_dim=128, max_length=32),
        sgpa=SgpaSettings(num_inducing=5, kl_anneal=0.0, initial_posterior="prior"),
        cgpt=CgptSettings(scgpt_noise=0.5, scgpt_inducing=5, alpha=_LITTLE_DENSITY),
        kepsvgp=KepsvgpSettings(rank=5, ksvd_weight=_LITTLE_SVD),
        training=TrainingSettings(epochs=10, learning_rate=5e-4, select="last"),
    )
