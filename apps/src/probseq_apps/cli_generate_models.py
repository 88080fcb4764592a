"""`probseq generate diffusion` and `probseq generate hvae`: arguments, and what they start."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import tyro
from tyro.conf import OmitArgPrefixes, arg

from probseq_apps.cli_arguments import names_nothing, share_left, to_resume, value_of
from probseq_apps.cli_generate_commands import terminable
from probseq_apps.data.names import check_generation_name
from probseq_apps.experiments.diffusion_groups import ModelTraining
from probseq_apps.experiments.diffusion_settings import DiffusionSettings, saved_diffusion
from probseq_apps.experiments.hvae_settings import HvaeSettings, saved_hvae
from probseq_apps.experiments.settings import RunOptions
from probseq_apps.recipes.diffusion import (
    DIFFUSION_RECIPES,
    DIGITS_DIFFUSION,
    diffusion_recipe_name,
    load_diffusion_recipe,
)
from probseq_apps.recipes.hvae import (
    DIGITS_HVAE,
    HVAE_RECIPES,
    hvae_recipe_name,
    load_hvae_recipe,
)


@dataclass(frozen=True, kw_only=True)
class GenerateDiffusion:
    """Diffusion models of images and of their pseudo videos: train, sample, measure, report.

    Every setting comes from a recipe, and flags override it. The defaults shown are those of the
    recipe named by --recipe; without one, of the recipe that suits --data.
    """

    recipe: Annotated[str, arg(help=f"One of {', '.join(DIFFUSION_RECIPES)}.")] = DIGITS_DIFFUSION
    settings: Annotated[DiffusionSettings, arg(name="")] = field(default_factory=DiffusionSettings)
    run: Annotated[RunOptions, arg(name="")] = field(default_factory=RunOptions)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.run.debug

    def execute(self) -> None:
        """Run the comparison."""
        with terminable():
            from probseq_apps.experiments.compare_models import DiffusionModels
            from probseq_apps.run import run

            run(DiffusionModels(self.settings), self.run, recipe=self.recipe)


@dataclass(frozen=True, kw_only=True)
class GenerateHvae:
    """Hierarchical VAEs that share a decoder: the encoder blurs, or is learned.

    Every setting comes from a recipe, and flags override it. The defaults shown are those of the
    recipe named by --recipe; without one, of the recipe that suits --data.
    """

    recipe: Annotated[str, arg(help=f"One of {', '.join(HVAE_RECIPES)}.")] = DIGITS_HVAE
    settings: Annotated[HvaeSettings, arg(name="")] = field(default_factory=HvaeSettings)
    run: Annotated[RunOptions, arg(name="")] = field(default_factory=RunOptions)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.run.debug

    def execute(self) -> None:
        """Run the comparison."""
        with terminable():
            from probseq_apps.experiments.compare_models import HvaeModels
            from probseq_apps.run import run

            run(HvaeModels(self.settings), self.run, recipe=self.recipe)


def parse_diffusion(arguments: list[str]) -> GenerateDiffusion:
    """Read the arguments of `probseq generate diffusion`.

    Raises:
        ValueError: a setting is refused.
    """
    return tyro.cli(
        OmitArgPrefixes[GenerateDiffusion],
        prog="probseq generate diffusion",
        args=arguments,
        default=_default_diffusion(arguments),
    )


def parse_hvae(arguments: list[str]) -> GenerateHvae:
    """Read the arguments of `probseq generate hvae`.

    Raises:
        ValueError: a setting is refused.
    """
    return tyro.cli(
        OmitArgPrefixes[GenerateHvae],
        prog="probseq generate hvae",
        args=arguments,
        default=_default_hvae(arguments),
    )


def _default_diffusion(arguments: Sequence[str]) -> GenerateDiffusion:
    """What `generate diffusion` does where no flag says otherwise.

    The settings of the recipe, or of the run to resume; they must be known before the flags are
    read, since they are the flags' defaults.

    Raises:
        ValueError: the recipe, the data set or an arm is unknown.
    """
    if names_nothing(arguments) and (folder := to_resume(arguments)) is not None:
        saved = saved_diffusion(folder)
        if saved is not None:
            return GenerateDiffusion(recipe=saved[0], settings=saved[1])
    recipe, data = _recipe_and_data(arguments)
    recipe = recipe or diffusion_recipe_name(data or "digits")
    settings = load_diffusion_recipe(recipe)
    settings = replace(
        settings,
        data=data or settings.data,
        training=replace(settings.training, warmup_steps=_warmup(settings.training, arguments)),
    )
    return GenerateDiffusion(recipe=recipe, settings=settings)


def _default_hvae(arguments: Sequence[str]) -> GenerateHvae:
    """What `generate hvae` does where no flag says otherwise, as `_default_diffusion`."""
    if names_nothing(arguments) and (folder := to_resume(arguments)) is not None:
        saved = saved_hvae(folder)
        if saved is not None:
            return GenerateHvae(recipe=saved[0], settings=saved[1])
    recipe, data = _recipe_and_data(arguments)
    recipe = recipe or hvae_recipe_name(data or "digits")
    settings = load_hvae_recipe(recipe)
    settings = replace(
        settings,
        data=data or settings.data,
        training=replace(settings.training, warmup_steps=_warmup(settings.training, arguments)),
    )
    return GenerateHvae(recipe=recipe, settings=settings)


def _recipe_and_data(arguments: Sequence[str]) -> tuple[str | None, str | None]:
    recipe, data = value_of("--recipe", arguments), value_of("--data", arguments)
    if data is not None:
        check_generation_name(data)
    return recipe, data


def _warmup(training: ModelTraining, arguments: Sequence[str]) -> int:
    """A recipe's warm-up, shortened as much as a flag shortens the training."""
    return int(training.warmup_steps * share_left("--steps", training.steps, arguments))
