"""The commands of `probseq generate`: what each takes, and what it starts."""

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import arg

from probseq_apps.experiments.generate_settings import (
    EvaluateSettings,
    GenerateSettings,
    OnePriorSettings,
    OneTokenizerSettings,
    SampleSettings,
)
from probseq_apps.experiments.settings import RunOptions
from probseq_apps.recipes.generate import GENERATE_RECIPES
from probseq_apps.training.signals import exit_on_sigterm

_RECIPE = f"One of {', '.join(GENERATE_RECIPES)}."


@dataclass(frozen=True, kw_only=True)
class GenerateRun:
    """Tokenizers of images and of pseudo videos, their priors, samples, metrics, and a report.

    Every setting comes from a recipe, and flags override it. The defaults shown are those of the
    recipe named by --recipe; without one, of the recipe that suits --data.
    """

    recipe: Annotated[str, arg(help=_RECIPE)] = "digits-small"
    settings: Annotated[GenerateSettings, arg(name="")] = field(default_factory=GenerateSettings)
    run: Annotated[RunOptions, arg(name="")] = field(default_factory=RunOptions)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.run.debug

    def execute(self) -> None:
        """Run the comparison."""
        with terminable():
            from probseq_apps.experiments.generate import Generate
            from probseq_apps.run import run

            run(Generate(self.settings), self.run, recipe=self.recipe)


@dataclass(frozen=True, kw_only=True)
class GenerateTokenizer:
    """Train one tokenizer: a VQ-VAE for --frames 1, a C-ViViT for more.

    The defaults shown are those of the recipe named by --recipe; without one, of the recipe that
    suits --data. The folder is what the other commands take as --tokenizer.
    """

    recipe: Annotated[str, arg(help=_RECIPE)] = "digits-small"
    settings: Annotated[OneTokenizerSettings, arg(name="")] = field(
        default_factory=OneTokenizerSettings
    )
    run: Annotated[RunOptions, arg(name="")] = field(default_factory=RunOptions)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.run.debug

    def execute(self) -> None:
        """Train it."""
        with terminable():
            from probseq_apps.experiments.generate_tokenizer import tokenizer_command

            tokenizer_command(self.settings, self.run, recipe=self.recipe)


@dataclass(frozen=True, kw_only=True)
class GeneratePrior:
    """Train one prior over the tokens of a tokenizer.

    The images are encoded once; their tokens stay in the folder. The defaults shown are those of
    the recipe named by --recipe; without one, of the recipe that the tokenizer came from.
    """

    recipe: Annotated[str, arg(help=_RECIPE)] = "digits-small"
    settings: Annotated[OnePriorSettings, arg(name="")] = field(default_factory=OnePriorSettings)
    run: Annotated[RunOptions, arg(name="")] = field(default_factory=RunOptions)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.run.debug

    def execute(self) -> None:
        """Train it."""
        with terminable():
            from probseq_apps.experiments.generate_prior import prior_command

            prior_command(self.settings, self.run, recipe=self.recipe)


@dataclass(frozen=True, kw_only=True)
class GenerateSample:
    """Draw images: a grid and strips of frames as PNG, a film as GIF, all frames as .npz.

    From --prior with its --tokenizer, or from --model. The defaults of the sampling are those of
    the run that prior or model lies in, else of the recipe that it was trained with.
    """

    settings: Annotated[SampleSettings, arg(name="")] = field(default_factory=SampleSettings)
    run: Annotated[RunOptions, arg(name="")] = field(default_factory=RunOptions)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.run.debug

    def execute(self) -> None:
        """Draw them."""
        with terminable():
            from probseq_apps.experiments.generate_measure import sample_command

            sample_command(self.settings, self.run)


@dataclass(frozen=True, kw_only=True)
class GenerateEvaluate:
    """Measure how far samples or reconstructions are from real images.

    Prints JSON, and stores it as metrics.json. The classifier is trained as long as in the run that
    the tokenizer or the samples lie in, else as in their recipe.
    """

    settings: Annotated[EvaluateSettings, arg(name="")]
    run: Annotated[RunOptions, arg(name="")] = field(default_factory=RunOptions)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.run.debug

    def execute(self) -> None:
        """Measure and print."""
        with terminable():
            from probseq_apps.experiments.generate_measure import evaluate_command

            evaluate_command(self.settings, self.run)


@contextmanager
def terminable() -> Generator[None]:
    """Context manager in which SIGTERM cleans up, says so, and exits with 143."""
    try:
        with exit_on_sigterm():
            yield
    except SystemExit as stop:
        if stop.code == 128 + signal.SIGTERM:
            print("probseq: terminated", file=sys.stderr)
        raise
