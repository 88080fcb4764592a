"""The commands of `probseq`; importable without torch.

Modules are named as text, and imported when a command is asked for.
"""

from importlib import import_module
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A command.

    Attributes:
        summary: its line in `probseq --help`.
        settings: "module:Class", whose fields are the flags.
        run: "module:Experiment", built with the settings and driven by `run.run`; or a function of
            settings, options and `recipe=` (the latter two where the command has them).
        defaults: "module:name" of `settings.common.Recipes`, or of a function of a `Pick` that
            returns settings; "" for those of the class.
        kind: of its experiment in `config.json`; "" where it has no run to resume.
        files: whether it takes `Options` of files and running, and not only of what is shown.
        about: what its own --help says; without it the summary.
    """

    summary: str
    settings: str
    run: str
    defaults: str = ""
    kind: str = ""
    files: bool = True
    about: str = ""


def load(name: str) -> Any:
    """Import what "module:name" names, in this package."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"probseq_apps.{module}"), attribute)


# First words that are no commands of their own.
GROUPS = {
    "generate": "generate images through pseudo videos; `generate run` does all steps",
    "bench": "time attention, online processes, or image generation",
}

REGISTRY: dict[str, Entry] = {
    "classify": Entry(
        "train classifiers on one data set, compare accuracy and uncertainty (default: digits)",
        "settings.classify:ClassifySettings",
        "experiments.classify:Classify",
        "settings.classify:RECIPES",
        kind="classify",
    ),
    "regress": Entry(
        "predict a property of molecules, compare errors and uncertainty (default: zinc)",
        "settings.classify:RegressSettings",
        "experiments.regress:Regress",
        "settings.classify:REGRESS_RECIPES",
        kind="regress",
        about="Molecules need the extra `molecules` (RDKit).",
    ),
    "online": Entry(
        "learn a stream task by task, compare what methods remember (default: sp500)",
        "settings.online:OnlineSettings",
        "experiments.online:Online",
        "settings.online:ONLINE_RECIPES",
        kind="online",
    ),
    "online live": Entry(
        "learn lines `t,y` from standard input one by one; print a forecast after each",
        "settings.online:LiveSettings",
        "experiments.online:live_command",
        "settings.online:live_defaults",
        files=False,
        about="t is a number or an ISO date, and a forecast is `t,mean,sd`. Without --step the "
        "first line has none: how far the next stamp is becomes known with the second. With "
        "--state, a process that was killed goes on where it was; the flags of the model then need "
        "not be repeated. Lines that cannot be understood, that lie before --t0, or absurdly far "
        "ahead, are named on standard error and skipped.",
    ),
    "online vae": Entry(
        "learn a series of many channels with an online GP prior VAE (default: moving-digits)",
        "settings.online:OnlineVaeSettings",
        "experiments.online_vae:OnlineVae",
        "settings.online:ONLINE_VAE_RECIPES",
        kind="online-vae",
    ),
    "generate run": Entry(
        "tokenizers, tokens, priors, samples, metrics and report in one go",
        "settings.generate:GenerateSettings",
        "experiments.tokens:Tokens",
        "settings.generate:GENERATE_RECIPES",
        kind="generate",
    ),
    "generate tokenizer": Entry(
        "train one tokenizer on the pseudo videos of images",
        "settings.generate:TokenizerSettings",
        "experiments.single:TokenizerStage",
        "settings.generate:TOKENIZER_RECIPES",
        kind="generate-tokenizer",
        about="A VQ-VAE for --frames 1, a C-ViViT for more. The folder is what other commands take "
        "as --tokenizer.",
    ),
    "generate prior": Entry(
        "train one prior on the tokens of a tokenizer",
        "settings.generate:PriorSettings",
        "experiments.single:PriorStage",
        "settings.generate:PRIOR_RECIPES",
        kind="generate-prior",
        about="The images are encoded once; their tokens stay in the folder. Without --recipe the "
        "defaults are those of the recipe that the tokenizer came from.",
    ),
    "generate diffusion": Entry(
        "diffusion models of images and of pseudo videos: train, sample, measure, compare",
        "settings.models:DiffusionSettings",
        "experiments.image_models:Diffusion",
        "settings.models:DIFFUSION_RECIPES",
        kind="generate-diffusion",
    ),
    "generate hvae": Entry(
        "hierarchical VAEs with a blurring or a learned encoder: train, sample, compare",
        "settings.models:HvaeSettings",
        "experiments.image_models:Hvae",
        "settings.models:HVAE_RECIPES",
        kind="generate-hvae",
    ),
    "generate sample": Entry(
        "draw images from a prior or a model: pictures, a film, and an array",
        "settings.models:SampleSettings",
        "experiments.single:Sample",
        "settings.models:sample_defaults",
        about="From --prior with its --tokenizer, or from --model. The defaults of the sampling "
        "are those of the run that prior or model lies in, else of the recipe that it was trained "
        "with.",
    ),
    "generate evaluate": Entry(
        "measure samples, or a tokenizer's reconstructions",
        "settings.models:EvaluateSettings",
        "experiments.single:Evaluate",
        "settings.models:evaluate_defaults",
        about="Prints JSON, and stores it as metrics.json. The classifier is trained as long as in "
        "the run that the tokenizer or the samples lie in, else as in their recipe.",
    ),
    "report": Entry(
        "put a table of the papers beside what run folders hold",
        "report.papers:ReportSettings",
        "report.paper_report:report",
        files=False,
    ),
    "bench attention": Entry(
        "time the methods beside softmax attention: speed, and memory kept for training",
        "settings.bench:BenchSettings",
        "bench.attention:bench_attention",
        files=False,
    ),
    "bench online": Entry(
        "time updates of online Gaussian processes, and watch the memory of a long stream",
        "settings.bench:BenchOnlineSettings",
        "bench.online:bench_online",
        files=False,
    ),
    "bench generate": Entry(
        "time pseudo videos, tokenizers, priors, UNets and the Fréchet distance",
        "settings.bench:BenchGenerateSettings",
        "bench.generate:bench_generate",
        files=False,
    ),
}
