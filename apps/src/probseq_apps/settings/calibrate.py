"""Settings of `probseq calibrate`; its recipes are a TOML file."""

from typing import Annotated, Literal, NamedTuple

from probseq.settings import Bound, Count, Index, Positive, Settings
from probseq_apps.data.names import CORRUPTION_NAMES, WORDS, data_kind
from probseq_apps.data.settings import DataSettings
from probseq_apps.settings.classify import EvaluationSettings
from probseq_apps.settings.common import DISTINCT, SOME, Flat, Names, Recipes, check_known, refuse

# Names in words, and behind a colon what they are. The last three are fitted on the training data,
# the others on validation data.
BASES = {
    "model": "the model as it is",
    "deviation": "GP beside its attention: a sparse Gaussian process",
    "tuned": "tuned GP: the same, its scales tuned on validation data",
    "mcd": "Monte Carlo dropout",
    "kflla": "Laplace: Kronecker-factored approximation of the last layer's posterior",
    "probe": "logistic regression: on what goes into the last layer",
    "heads": "five small networks: on what goes into the last layer",
}
ADDITIONS = {"ts": "temperature scaling", "ensemble": "mean over the models"}


class CalibrationRow(NamedTuple):
    """A row of the table."""

    base: str
    additions: tuple[str, ...]

    @property
    def title(self) -> str:
        """What it is, for reports."""
        return ", ".join((BASES[self.base], *(ADDITIONS[name] for name in self.additions)))

    @property
    def short_title(self) -> str:
        """Its name in words, as "Laplace + temperature"."""
        words = [{"ts": "temperature"}.get(name, name) for name in self.additions]
        return " + ".join((BASES[self.base].partition(":")[0], *words))


def parse_calibration(name: str) -> CalibrationRow:
    """Read `model`, `deviation+ts` or `mcd+ts+ensemble`."""
    base, *additions = name.split("+")
    check_known("method", base, BASES)
    for addition in additions:
        check_known(f"addition to {base!r}", addition, ADDITIONS)
    ordered = [addition for addition in ADDITIONS if addition in additions]
    refuse(additions != ordered, f"method {name!r} must take each addition once, +ts+ensemble")
    return CalibrationRow(base, tuple(additions))


class FitSettings(Settings):
    """Calibration."""

    layers: Literal["last", "all"] = "last"
    """Attention layers that get a deviation."""
    num_inducing: Count = 48
    """Inducing inputs of each head."""
    rho: Annotated[tuple[Positive, ...], SOME, DISTINCT] = (0.1,)
    """Standard deviations of the whitened inducing outputs to choose from."""
    tuning_steps: Index = 100
    """Steps that fit the scales of each head, for `tuned`."""
    validation_size: Annotated[int, Bound("at least 2", lambda value: value >= 2)] | None = 2000
    """Validation examples, drawn at random; None: all of them."""
    validation_corruptions: Annotated[tuple[str, ...], DISTINCT] = ()
    """Images: half of the validation images are changed by these, at all severities."""
    head_size: Count | None = 5000
    """Training examples that `kflla`, `probe` and `heads` are fitted on, drawn at random; None: all
    of them."""
    test_size: Count | None = None
    """Test examples, drawn at random; None: all of them."""
    batch_size: Count = 100
    """Examples that go through a model at once, samples not counted."""
    device: str = "auto"
    """cpu, cuda, cuda:N or auto."""

    def check(self) -> None:
        """Refuse unknown corruptions."""
        for name in self.validation_corruptions:
            check_known("corruption", name, CORRUPTION_NAMES)


class CalibrateSettings(Settings):
    """What is calibrated, on what."""

    model: tuple[str, ...] = ()
    """A folder of transformers or timm (config.json beside weights), timm:NAME+FILE or
    torchvision:NAME+FILE (weights as safetensors or a state dict); several of one data set are
    compared as seeds are, and are the members of `+ensemble`."""
    arguments: tuple[str, ...] = ()
    """What timm:NAME or torchvision:NAME is made with, as img_size=32."""
    data: str = "cifar10"
    """As of `classify`: what the models were trained on."""
    method: Names = (*(f"{b}{a}" for b in BASES for a in ("", "+ts")),)
    """model, deviation and tuned (where the attention is known), mcd (where the model has dropout),
    kflla, probe and heads (where logits come from a linear layer); each may be followed by +ts
    (temperature scaling) and +ensemble (mean over the models)."""
    normalise: Literal["model", "data"] = "model"
    """Mean and deviation that images are normalised by: those that come with the model, or the
    training set's."""
    reading: Flat[DataSettings] = DataSettings()
    max_length: Count = 128
    """Texts: most tokens of a sequence, the rest is cut."""
    fit: Flat[FitSettings] = FitSettings()
    evaluation: Flat[EvaluationSettings] = EvaluationSettings()

    def check(self) -> None:
        """Refuse unknown data and methods, and ensembles of one model."""
        is_text = data_kind(self.data) == "text"
        for name in self.method:
            row = parse_calibration(name)
            alone = "ensemble" in row.additions and len(self.model) == 1
            refuse(alone, f"method {name!r} needs at least two models, got 1")
            steps = row.base == "tuned" and not self.fit.tuning_steps
            refuse(steps, f"method {name!r} needs tuning_steps of at least 1, got 0")
        for item in self.arguments:
            refuse("=" not in item, f"arguments must be as img_size=32, got {item!r}")
        images = self.evaluation.shift or self.evaluation.ood or self.fit.validation_corruptions
        refuse(
            is_text and images, f"shift, ood and validation_corruptions are for images: {self.data}"
        )
        replaced = self.reading.tokenizer != WORDS or self.reading.embeddings is not None
        refuse(
            replaced,
            "tokenizer and embeddings must be left out: a model brings its own tokenizer",
        )

    def check_complete(self) -> None:
        """Refuse a command line without a model."""
        refuse(not self.model, "model must be given: a folder, timm:NAME+FILE or torchvision:...")


CALIBRATE_RECIPES = Recipes("calibrate", CalibrateSettings)
