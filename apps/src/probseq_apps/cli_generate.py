"""`probseq generate`: `run` does all at once for tokenizers and priors, other commands a step each.

`diffusion` and `hvae` do all at once for models that need no tokens.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import tyro
from tyro.conf import OmitArgPrefixes

from probseq_apps.cli_arguments import (
    Command,
    names_nothing,
    refuse,
    share_left,
    to_resume,
    value_of,
)
from probseq_apps.cli_generate_commands import (
    GenerateEvaluate,
    GeneratePrior,
    GenerateRun,
    GenerateSample,
    GenerateTokenizer,
)
from probseq_apps.cli_generate_models import parse_diffusion, parse_hvae
from probseq_apps.data.names import check_generation_name, unknown_name_message
from probseq_apps.experiments.diffusion_groups import DiffusionSampling
from probseq_apps.experiments.diffusion_settings import saved_diffusion, saved_diffusion_model
from probseq_apps.experiments.generate_groups import FeatureSettings
from probseq_apps.experiments.generate_settings import (
    EvaluateSettings,
    GenerateSettings,
    SampleSettings,
    saved_generate,
    saved_prior,
    saved_tokenizer,
)
from probseq_apps.recipes.diffusion import load_diffusion_recipe
from probseq_apps.recipes.generate import (
    for_images,
    generate_recipe_name,
    load_generate_recipe,
)

_STEPS = {
    "run": "tokenizers, tokens, priors, samples, metrics and report in one go",
    "tokenizer": "train one tokenizer on the pseudo videos of images",
    "prior": "train one prior on the tokens of a tokenizer",
    "diffusion": "diffusion models of images and of pseudo videos: train, sample, measure, compare",
    "hvae": "hierarchical VAEs with a blurring or a learned encoder: train, sample, compare",
    "sample": "draw images from a prior or a model: pictures, a film, and an array",
    "evaluate": "measure samples, or a tokenizer's reconstructions",
}


def parse_generate(arguments: list[str]) -> Command:
    """Read the arguments of `probseq generate` and of its steps."""
    step, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if step in ("-h", "--help"):
        print(_help())
        raise SystemExit(0)
    if step not in _STEPS:
        refuse(unknown_name_message("step of generate", step, _STEPS))
    try:
        return _PARSERS[step](rest)
    except (ValueError, OSError) as error:
        refuse(str(error))


def _parse_run(arguments: list[str]) -> GenerateRun:
    return tyro.cli(
        OmitArgPrefixes[GenerateRun],
        prog="probseq generate run",
        args=arguments,
        default=_default_run(arguments),
    )


def _parse_tokenizer(arguments: list[str]) -> GenerateTokenizer:
    return tyro.cli(
        OmitArgPrefixes[GenerateTokenizer],
        prog="probseq generate tokenizer",
        args=arguments,
        default=_default_tokenizer(arguments),
    )


def _parse_prior(arguments: list[str]) -> GeneratePrior:
    command = tyro.cli(
        OmitArgPrefixes[GeneratePrior],
        prog="probseq generate prior",
        args=arguments,
        default=_default_prior(arguments),
    )
    _required("tokenizer", command.settings.tokenizer, "the folder of a trained tokenizer")
    return command


def _parse_sample(arguments: list[str]) -> GenerateSample:
    command = tyro.cli(
        OmitArgPrefixes[GenerateSample],
        prog="probseq generate sample",
        args=arguments,
        default=_default_sample(arguments),
    )
    if not command.settings.model:
        also = ", or name --model"
        _required("tokenizer", command.settings.tokenizer, f"the folder of a trained one{also}")
        _required("prior", command.settings.prior, f"the folder of a trained one{also}")
    return command


def _parse_evaluate(arguments: list[str]) -> GenerateEvaluate:
    prog, default = "probseq generate evaluate", _default_evaluate(arguments)
    if default is None:
        return tyro.cli(OmitArgPrefixes[GenerateEvaluate], prog=prog, args=arguments)
    return tyro.cli(OmitArgPrefixes[GenerateEvaluate], prog=prog, args=arguments, default=default)


def _required(name: str, value: str, what: str) -> None:
    if not value:
        raise ValueError(f"{name} must be given: name {what}")


def _default_run(arguments: Sequence[str]) -> GenerateRun:
    """What `generate run` does where no flag says otherwise.

    The settings of the recipe, or of the run to resume; they must be known before the flags are
    read, since they are the flags' defaults.

    Raises:
        ValueError: the recipe or the data set is unknown.
    """
    if names_nothing(arguments) and (folder := to_resume(arguments)) is not None:
        saved = saved_generate(folder)
        if saved is not None:
            return GenerateRun(recipe=saved[0], settings=saved[1])
    recipe, settings = _recipe_for(arguments)
    return GenerateRun(recipe=recipe, settings=settings)


def _default_tokenizer(arguments: Sequence[str]) -> GenerateTokenizer:
    """What `generate tokenizer` does where no flag says otherwise, as `_default_run`."""
    if names_nothing(arguments) and (folder := to_resume(arguments)) is not None:
        saved = saved_tokenizer(folder)
        if saved is not None:
            return GenerateTokenizer(recipe=saved[0], settings=saved[1])
    recipe, settings = _recipe_for(arguments)
    longest = max((a for a in settings.arms if a.kind == "frames"), key=lambda a: a.frames)
    one = settings.one_tokenizer(longest, settings.stem[0], settings.seeds[0])
    return GenerateTokenizer(recipe=recipe, settings=one)


def _default_prior(arguments: Sequence[str]) -> GeneratePrior:
    """What `generate prior` does where no flag says otherwise, as `_default_run`."""
    tokenizer = value_of("--tokenizer", arguments) or ""
    recipe = value_of("--recipe", arguments)
    if recipe is None and (folder := to_resume(arguments)) is not None:
        saved = saved_prior(folder)
        if saved is not None:
            settings = replace(saved[1], tokenizer=tokenizer or saved[1].tokenizer)
            return GeneratePrior(recipe=saved[0], settings=settings)
    if recipe is None and tokenizer:
        # A folder that cannot be read is refused when the command runs.
        with suppress(ValueError, OSError):
            found = saved_tokenizer(Path(tokenizer))
            recipe = None if found is None else found[0]
    recipe = recipe or "digits-small"
    settings = _shorter(load_generate_recipe(recipe), arguments)
    one = settings.one_prior(tokenizer, "autoregressive", seed=0)
    return GeneratePrior(recipe=recipe, settings=one)


def _default_sample(arguments: Sequence[str]) -> GenerateSample:
    """What `generate sample` does where no flag says otherwise: what drew a run's own samples."""
    model = value_of("--model", arguments)
    if model is not None:
        drawn = _drawn_with(Path(model))
        return GenerateSample(settings=SampleSettings(model=model, diffusion=drawn))
    prior = value_of("--prior", arguments)
    found = None if prior is None else _made_with(Path(prior), saved_prior)
    return GenerateSample(
        settings=SampleSettings() if found is None else SampleSettings(sampling=found.sampling)
    )


def _drawn_with(model: Path) -> DiffusionSampling:
    """How a run drew from a diffusion model of its own, else how the model's recipe does."""
    with suppress(ValueError, OSError):
        run = saved_diffusion(model.resolve().parent.parent)
        if run is not None:
            return run[1].sampling
        own = saved_diffusion_model(model)
        if own is not None:
            return load_diffusion_recipe(own[0]).sampling
    return DiffusionSampling()


def _default_evaluate(arguments: Sequence[str]) -> GenerateEvaluate | None:
    """What `generate evaluate` does where no flag says otherwise: with the classifier of a run.

    Returns:
        None where nothing is named that could be measured.
    """
    tokenizer, samples = value_of("--tokenizer", arguments), value_of("--samples", arguments)
    if tokenizer is not None:
        found = _made_with(Path(tokenizer), saved_tokenizer)
    elif samples is not None:
        found = _made_with(Path(samples), saved_generate)
    else:
        return None
    if found is None:
        data = value_of("--data", arguments) or "digits"
        found = load_generate_recipe(generate_recipe_name(data))
    steps = found.evaluation.features.classifier_steps
    features = FeatureSettings(classifier_steps=steps)
    return GenerateEvaluate(
        settings=EvaluateSettings(samples=samples, tokenizer=tokenizer, features=features)
    )


def _made_with(
    part: Path, saved: Callable[[Path], tuple[str, object] | None]
) -> GenerateSettings | None:
    """Settings of the run that a tokenizer, a prior or samples lie in, else of their recipe.

    Args:
        part: its folder or file.
        saved: reads recipe and settings of the folder.

    Returns:
        None where nothing tells; a part that cannot be read is refused when the command runs.
    """
    with suppress(ValueError, OSError):
        run = saved_generate(part.resolve().parent.parent)
        if run is not None:
            return run[1]
        own = saved(part)
        return None if own is None else load_generate_recipe(own[0])
    return None


def _shorter(settings: GenerateSettings, arguments: Sequence[str]) -> GenerateSettings:
    """A recipe whose warm-ups are shortened as much as flags shorten the training.

    Warm-ups that flags name count as named, and those of longer trainings stay.
    """
    training, priors = settings.training, settings.prior_training
    share = share_left("--steps", training.steps, arguments)
    prior_share = min(
        share_left("--ar-steps", settings.autoregressive.ar_steps, arguments),
        share_left("--masked-steps", settings.masked.masked_steps, arguments),
    )
    return replace(
        settings,
        training=replace(training, warmup_steps=int(training.warmup_steps * share)),
        prior_training=replace(
            priors, prior_warmup_steps=int(priors.prior_warmup_steps * prior_share)
        ),
    )


def _recipe_for(arguments: Sequence[str]) -> tuple[str, GenerateSettings]:
    recipe, data = value_of("--recipe", arguments), value_of("--data", arguments)
    if data is not None:
        check_generation_name(data)
    recipe = recipe or generate_recipe_name(data or "digits")
    settings = _shorter(load_generate_recipe(recipe), arguments)
    return recipe, for_images(settings, data or settings.data)


def _help() -> str:
    width = max(map(len, _STEPS))
    lines = [f"  {name.ljust(width)}  {summary}" for name, summary in _STEPS.items()]
    return "\n".join(
        [
            "usage: probseq generate STEP [options]",
            "",
            "Generate images through pseudo videos: an image is the last frame of its corruptions.",
            "",
            "steps:",
            *lines,
            "",
            "`probseq generate STEP --help` lists the options of a step.",
        ]
    )


_PARSERS = {
    "run": _parse_run,
    "tokenizer": _parse_tokenizer,
    "prior": _parse_prior,
    "diffusion": parse_diffusion,
    "hvae": parse_hvae,
    "sample": _parse_sample,
    "evaluate": _parse_evaluate,
}
