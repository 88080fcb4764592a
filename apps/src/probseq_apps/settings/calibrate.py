"""Settings of `probseq calibrate`."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated

from probseq.settings import Bound, Count, Index, Positive, Settings
from probseq_apps.settings.common import DISTINCT, Share, require

_OF_IMAGES = {"mean", "std", "size", "crop"}
_OF_MODELS = {"model", "data", "output", "max_length", "laplace", "batch_size", *_OF_IMAGES}


class CalibrateSettings(Settings):
    """A model or its outputs, held-out data, and the decision to make."""

    logits: Path | None = None
    """Outputs of a model on held-out data: an .npz with `logits` (or `probabilities`) and `labels`,
    or a CSV with a column a class and `label`."""
    test: Path | None = None
    """Another such file, or data as of --data: the calibrated model is measured on it."""
    model: Annotated[tuple[str, ...], DISTINCT] = ()
    """A folder of transformers or timm, timm:NAME+FILE, torchvision:NAME+FILE (weights of any
    architecture), or MODULE:FUNCTION of your own, which returns a model, or a pair of a model and a
    function from a picture or a text to what it takes. Several are tried as an ensemble."""
    data: Path | None = None
    """Held-out data, which the model was not trained on: a folder of images, CLASS/FILE, or a CSV
    of texts with columns `text` and `label`."""
    classes: Annotated[tuple[str, ...], DISTINCT] = ()
    """What the classes are called, in the order of the model's outputs."""
    output: str = ""
    """Key, attribute or number of the logits, where a model has several outputs."""
    mean: tuple[float, ...] = ()
    """Images: mean of each channel, of pixels from 0 to 1, as in training."""
    std: tuple[Positive, ...] = ()
    """Images: standard deviation of each channel, as in training."""
    size: Count | None = None
    """Images: pixels of a side, as in training."""
    crop: Annotated[float, Bound("above 0, at most 1", lambda value: 0.0 < value <= 1.0)] = 1.0
    """Images: this share of the shorter side is cut out of the middle."""
    max_length: Count = 512
    """Texts: most tokens, the rest is cut."""
    separator: str = ","
    """Between the cells of a CSV."""
    error_rate: Share | None = None
    """Errors among what is accepted that must not be exceeded, as .03."""
    coverage: Share = 0.9
    """Share of examples whose class is in their prediction set."""
    level: Share = 0.95
    """Probability with which the error rate holds."""
    laplace: bool = True
    """Try a Laplace posterior of the last layer, where that is linear."""
    batch_size: Count = 64
    """Examples that go through a model at once."""
    seed: Index = 0
    """Of the thirds of the data."""
    output_dir: Path = Path("calibrated")
    """Folder of the report and of what was fitted; files there are replaced."""

    def check(self) -> None:
        """Refuse what does not go together."""
        changed = {each.name for each in fields(self) if getattr(self, each.name) != each.default}
        if self.logits and (useless := sorted(changed & _OF_MODELS)):
            raise ValueError(f"logits must come without {', '.join(useless)}: no model is called")
        require(
            bool(self.mean) or not changed & {"size", "crop"}, "size and crop need mean and std"
        )
        require(len(self.mean) == len(self.std), "mean and std must be of the same channels")
        require(len(self.mean) in (0, 1, 3), "mean must be of 1 or 3 channels")
        require(not self.mean or self.size, "size must be given with mean and std")

    def check_complete(self) -> None:
        """Refuse a command line without data."""
        require(
            self.logits or (self.model and self.data),
            "logits must be named, or model and data: the least is an .npz with logits and labels",
        )
