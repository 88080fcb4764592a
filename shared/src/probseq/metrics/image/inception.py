"""Inception features from a weights file, through torch-fidelity (extra ``image``)."""

import hashlib
import io
import pickle
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.errors import require
from probseq.metrics.image._images import as_colour, check_images
from probseq.metrics.image.extractors import FeatureExtractor, FrozenExtractor, ImageFeatures

# Of weights-inception-2015-12-05-6726825d.pth (torch-fidelity) and its twin
# pt_inception-2015-12-05-6726825d.pth (pytorch-fid): TensorFlow's network, converted. The end of
# either name is how this hash begins, as torch.hub names files.
INCEPTION_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"

_LAYERS = ("2048", "logits_unbiased")


class InceptionFeatures(FrozenExtractor):
    """The Inception network of FID: 2,048 features before the last layer, and 1,008 classes.

    Images are rounded to the 256 levels of a picture file and resized to 299 × 299 as TensorFlow 1
    did; grey ones become colour. Class probabilities leave out the last bias, as in the original
    inception score. Random weights make features that are nearly constant.

    Attributes:
        sha256: hash of the file of weights; a distance is an FID only if it is `INCEPTION_SHA256`.

    Raises:
        FileNotFoundError: there is no such file.
        MissingExtraError: torch-fidelity is not installed.
    """

    def __init__(self, weights: Path | str) -> None:
        weights = Path(weights)
        if not weights.is_file():
            raise FileNotFoundError(
                f"weights must be the file of Inception weights, and {weights} is not there: "
                "torch-fidelity's releases have weights-inception-2015-12-05-6726825d.pth"
            )
        content = weights.read_bytes()
        self_hash = hashlib.sha256(content).hexdigest()
        is_published = self_hash == INCEPTION_SHA256
        super().__init__("inception" if is_published else f"inception-{self_hash[:8]}", 2048)
        self.sha256 = self_hash
        module = require(
            "torch_fidelity.feature_extractor_inceptionv3", extra="image", distribution="probseq"
        )
        try:
            tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            # The library would unpickle whatever a file holds: it is given tensors, written anew.
            plain = io.BytesIO()
            torch.save(tensors, plain)
            plain.seek(0)
            self.network = module.FeatureExtractorInceptionV3(
                self.name, list(_LAYERS), feature_extractor_weights_path=plain
            )
        except (pickle.UnpicklingError, RuntimeError, TypeError, EOFError, KeyError) as error:
            raise ValueError(
                f"weights must hold the tensors of the Inception network and nothing else, "
                f"and {weights} does not: {str(error).splitlines()[0]}"
            ) from error
        self.freeze()

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "n c h w"]) -> ImageFeatures:
        """Return features and class probabilities of a batch."""
        images = as_colour(check_images("images", images))
        levels = ((images.clamp(-1.0, 1.0) + 1.0) * 127.5).round().to(torch.uint8)
        features, logits = self.network(levels)
        return ImageFeatures(features, logits.softmax(dim=1))


def distance_name(extractor: FeatureExtractor) -> str:
    """Return the name of the Fréchet distance of an extractor's features.

    "FID" for the Inception weights that all papers share, else "FD(name)".
    """
    if isinstance(extractor, InceptionFeatures) and extractor.sha256 == INCEPTION_SHA256:
        return "FID"
    return f"FD({extractor.name})"
