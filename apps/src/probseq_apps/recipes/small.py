"""Settings that two CPU cores finish; the defaults of the command line."""

from probseq_apps.experiments.settings import (
    ClassifySettings,
    EvaluationSettings,
    ModelSettings,
    SgpaSettings,
    TrainingSettings,
)

# One corruption of each kind, at the ends and the middle of the scale.
_FEW_CORRUPTIONS = ("gaussian_noise", "gaussian_blur", "contrast", "pixelate")
_FEW_SEVERITIES = (1, 3, 5)
# Adam moves a logarithm by about the learning rate a step. The authors' unit prior variance is unit
# noise on every head, and their random posterior tens of thousands of nats: a short training ends
# before either has come down.
_LITTLE_NOISE = 0.02


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
        training=TrainingSettings(epochs=50, batch_size=128, learning_rate=1e-2, validate_every=10),
        evaluation=EvaluationSettings(
            shift=True,
            corruptions=_FEW_CORRUPTIONS,
            severities=_FEW_SEVERITIES,
            ood=("rotations",),
        ),
    )


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
        training=TrainingSettings(epochs=10, learning_rate=5e-4, select="last"),
    )
