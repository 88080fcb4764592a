"""What all arms of all seeds of a `probseq generate` experiment are measured with."""

from pathlib import Path
from typing import NamedTuple

from probseq.metrics.image import FeatureExtractor, FeatureMoments
from probseq_apps.data.images import GenerationData
from probseq_apps.experiments.generate_evaluation import evaluate_generation, reference_moments
from probseq_apps.experiments.generate_features import make_extractor
from probseq_apps.experiments.generate_files import CLASSIFIER, reference_file, write_result
from probseq_apps.experiments.generate_groups import FeatureSettings


class Ruler(NamedTuple):
    """What all arms of all seeds are measured with.

    Attributes:
        extractor: of features.
        reference: moments of the training images' features.
    """

    extractor: FeatureExtractor
    reference: FeatureMoments


def make_ruler(
    data: GenerationData, settings: FeatureSettings, folder: Path, *, device: str
) -> Ruler:
    """Make the ruler of an experiment, and measure the test images as if they were samples.

    Args:
        data: the images.
        settings: which features.
        folder: of the experiment.
        device: as `TrainConfig.device`.
    """
    extractor = make_extractor(
        data,
        settings,
        folder / CLASSIFIER,
        # All seeds are measured in the same features: spreads are those of the models alone.
        seed=0,
        device=device,
    )
    ruler = Ruler(extractor, reference_moments(extractor, data.train))
    if not reference_file(folder).exists():
        found = evaluate_generation(data.test[:, None], ruler.reference, ruler.extractor)
        write_result(reference_file(folder), found)
    return ruler


def check_features(settings: FeatureSettings) -> None:
    """Refuse weights that are not there, before anything is trained.

    Raises:
        FileNotFoundError: the file of Inception's weights is not there.
    """
    weights = settings.inception_weights
    if weights is not None and not Path(weights).is_file():
        raise FileNotFoundError(
            f"inception_weights must be a file of Inception's weights, and {weights} is not there"
        )
