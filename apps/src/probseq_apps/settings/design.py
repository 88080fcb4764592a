"""Settings of `probseq generate design`; recipes: `recipes/design.toml`."""

from typing import Annotated

from probseq.settings import Count, Settings
from probseq_apps.data.names import check_generation_name
from probseq_apps.settings.common import DISTINCT, SOME, Flat, Names, Recipes, check_known
from pseudovideo.spec import CORRUPTIONS, AtLeastTwo, CorruptionSpec, DesignSpec


class DesignSettings(Settings):
    """Which designs are ranked, and for which images."""

    data: str = "digits"
    """digits, gaussian-digits, mnist, cifar10, celeba, or folder:PATH (images of one size)."""
    image_size: Count = 8
    """Side in pixels to bring the images to."""
    num_train: AtLeastTwo | None = None
    """Read only so many training images; they must be more than the numbers of an image."""
    kinds: Names = tuple(kind for kind in CORRUPTIONS if kind != "colour")
    """What makes the frames before the image: blur, high-order-blur, first-order-noise,
    high-order-noise, matched-noise, repeat, pyramid, low-pass, colour (of colour images alone),
    patch-mask, blur-noise. The image alone is ranked beside them."""
    frames: Annotated[tuple[AtLeastTwo, ...], SOME, DISTINCT] = (4,)
    """Lengths T of the videos; each kind is ranked with each."""
    videos: Flat[CorruptionSpec] = CorruptionSpec()
    design: Flat[DesignSpec] = DesignSpec()

    def check(self) -> None:
        """Refuse unknown data and unknown kinds."""
        check_generation_name(self.data)
        for kind in self.kinds:
            check_known("kind", kind, CORRUPTIONS)


DESIGN_RECIPES = Recipes[DesignSettings]("design", DesignSettings)
