"""Settings of `probseq language`; its recipes are a TOML file."""

from typing import Annotated, Literal

from probseq.settings import Count, NotNegative, Positive, Settings
from probseq.transformers.spec import TransformerConfig
from probseq_apps.engine.config import EpochTraining
from probseq_apps.settings.common import DISTINCT, Flat, Names, Recipes, Seeds, check_known, refuse
from sgpa.names import CovarianceName

# Names in words, and behind a colon what they are.
DECODERS = {
    "softmax": "softmax attention: maximum likelihood",
    "kernel": "kernel attention: over the number of tokens, maximum likelihood",
    "sgpa": "SGPA: causal sparse Gaussian process attention, over the number of tokens",
    "sgpa-features": "SGPA by random features: at constant cost a token",
    "sgpa-residual": "softmax + GP: a sparse Gaussian process is the deviation of the attention",
}
# Texts that every Python has: its documentation, and its own code.
TEXTS = ("python-docs", "python-code", "imdb", "cola")
TEXT_PREFIX = "text:"


class DecoderSettings(TransformerConfig):
    """Transformer."""

    depth: Count = 2
    dim: Count = 48
    num_heads: Count = 4
    hidden_dim: Count = 96
    dropout: NotNegative = 0.0
    context: Count = 48
    """Tokens of a sequence."""


class DecoderTraining(EpochTraining):
    """Training."""

    epochs: Count = 4
    batch_size: Count = 16
    learning_rate: Positive = 5e-3
    schedule: Literal["linear", "cosine", "constant"] = "cosine"
    checkpoint_every: Count = 10


class ProcessSettings(Settings):
    """Gaussian processes."""

    num_inducing: Count = 12
    """Inducing inputs of each head."""
    num_features: Count = 64
    """Random features of each head of sgpa-features."""
    covariance: CovarianceName = "inducing"
    """How sgpa draws tokens together."""
    kl_scale: NotNegative = 1e-5
    """Weight of the KL divergence of sgpa from token to token; a thousandth costs bits already."""
    num_samples: Count = 10
    """Samples of a prediction."""


class LanguageSettings(Settings):
    """What is compared, and on what."""

    data: str = "python-docs"
    """python-docs (the documentation that comes with Python), python-code (its own modules), imdb,
    cola, or text:PATH, a text file."""
    tokenizer: str = "characters"
    """characters of the training text, or the path of a tokenizer.json."""
    method: Names = ("softmax", "kernel", "sgpa", "sgpa-residual")
    """softmax, kernel, sgpa, sgpa-features, sgpa-residual."""
    seeds: Seeds = (0, 1, 2)
    """Each method is trained once per seed."""
    ood: Annotated[tuple[str, ...], DISTINCT] = ("python-code",)
    """Other texts to predict, named as `data` is."""
    train_size: Count | None = 150_000
    """Tokens to train on; None: all but those for validation and test."""
    test_size: Count = 20_000
    """Tokens of validation, test, and each other text."""
    model: Flat[DecoderSettings] = DecoderSettings()
    process: Flat[ProcessSettings] = ProcessSettings()
    training: Flat[DecoderTraining] = DecoderTraining()

    def check(self) -> None:
        """Refuse unknown methods and texts."""
        for name in self.method:
            check_known("method", name, DECODERS)
        for name in (self.data, *self.ood):
            refuse(name == TEXT_PREFIX, f"text {name!r} needs a path after the colon")
            if not name.startswith(TEXT_PREFIX):
                check_known("text", name, (*TEXTS, f"{TEXT_PREFIX}PATH"))
        unknown = self.tokenizer != "characters" and not self.tokenizer.endswith(".json")
        refuse(unknown, f"tokenizer must be characters or a tokenizer.json, got {self.tokenizer!r}")


LANGUAGE_RECIPES = Recipes("language", LanguageSettings)
