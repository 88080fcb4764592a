"""Settings of UNets and of classes, for `pseudovideo.spec`; importing this loads no torch."""

from typing import Annotated, Any

from probseq.settings import Bound, Count, Rate, Settings

_DISTINCT = Bound("without repetitions", lambda names: len(set(names)) == len(names))
# Improved DDPM's.
_MULTIPLIERS: dict[int, tuple[int, ...]] = {
    32: (1, 2, 2, 2),
    64: (1, 2, 3, 4),
    256: (1, 1, 2, 2, 4, 4),
}
# Images of fewer pixels are halved twice, others three times where they can be.
_HALVED_TWICE = 32
# Sizes at which there is attention where none are named.
_ATTENTION = range(6, 17)


class UNetSpec(Settings):
    """Sizes of a UNet, whatever the images; the defaults are improved DDPM's."""

    base_channels: Count = 128
    """Channels at full size; even."""
    channel_multipliers: tuple[Count, ...] | None = None
    """Channels at each size as multiples of the base, from full size down, halving each time; None:
    1 2 2 2, for 64 pixels 1 2 3 4, for fewer than 32 and for what halves only twice 1 2 2."""
    num_res_blocks: Count = 2
    """Residual blocks at each size on the way down; one more on the way up."""
    attention_sizes: tuple[Count, ...] | None = None
    """Sizes in pixels at which there is attention, besides the middle; None: those from 6 to 16."""
    num_heads: Count = 4
    """Attention heads; must divide the channels where there is attention."""
    num_groups: Count = 32
    """Groups of the normalisation; must divide all channels."""
    dropout: Rate = 0.0
    """Share of features that are zeroed in training."""

    def check(self) -> None:
        """Refuse a UNet without levels."""
        if self.channel_multipliers is not None and not self.channel_multipliers:
            raise ValueError("channel_multipliers must name at least one, got none")

    def for_images(self, image_size: int, channels: int) -> "UNetConfig":
        """Return the settings of a UNet of such images."""
        return UNetConfig(**unet_values(self, image_size, channels))


class ClassSpec(Settings):
    """Classes of what a model learns."""

    num_classes: Count | None = None
    """Classes K, with labels 0..K-1; None: the model knows none and takes no labels."""
    label_dropout: Rate = 0.0
    """Probability with which training hides a label, so that the model learns to do without one as
    well, which guidance needs; 0 for a model that always has one."""
    class_names: Annotated[tuple[str, ...], _DISTINCT] | None = None
    """Names of the classes, in the order of their labels; None: they are their numbers."""
    class_counts: tuple[Count, ...] | None = None
    """Training images of each class: samples that nobody names a class for have these shares.
    None: all classes are equally likely."""

    def check(self) -> None:
        """Refuse labels that are hidden where there are none, and other numbers of names."""
        for name in ("class_names", "class_counts"):
            values = getattr(self, name)
            if values is not None and len(values) != (self.num_classes or 0):
                raise ValueError(
                    f"{name} must be num_classes={self.num_classes or 0}, got {len(values)}"
                )
        if self.label_dropout and self.num_classes is None:
            raise ValueError(
                f"label_dropout must be 0 without num_classes, got {self.label_dropout}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes, or else their numbers."""
        return self.class_names or tuple(map(str, range(self.num_classes or 0)))

    @property
    def num_tokens(self) -> int | None:
        """Number of labels for a network: the classes, and where labels are hidden that of none."""
        return None if self.num_classes is None else self.num_classes + (self.label_dropout > 0)


class UNetConfig(UNetSpec, ClassSpec):
    """Settings of a UNet; the defaults are improved DDPM's for 32 by 32 colour images."""

    image_size: Count = 32
    """Height and width in pixels."""
    channels: Count = 3
    """1 for grey images, 3 for colour."""
    channel_multipliers: tuple[Count, ...] = (1, 2, 2, 2)
    """Width of each level in units of `base_channels`; each level but the last halves the image.
    See `channel_multipliers_for`."""
    attention_sizes: tuple[Count, ...] = (16, 8)
    """Sizes in pixels at which there is attention, besides the middle."""

    def check(self) -> None:
        """Refuse what makes no UNet."""
        levels = len(self.channel_multipliers)
        if self.image_size % 2 ** (levels - 1):
            raise ValueError(
                f"image_size must be a multiple of {2 ** (levels - 1)}, since a UNet of {levels} "
                f"levels halves it {levels - 1} times, got {self.image_size}"
            )
        if set(self.attention_sizes) - set(self.sizes):
            raise ValueError(
                f"attention_sizes must be among the sizes of the feature maps {self.sizes}, "
                f"got {self.attention_sizes}"
            )
        if self.base_channels % 2 or self.base_channels % self.num_groups:
            raise ValueError(
                f"base_channels must be even and a multiple of num_groups={self.num_groups}, "
                f"got {self.base_channels}"
            )
        if self.sizes[-1] == 1 and self.widths[-1] == self.num_groups:
            raise ValueError(
                f"num_groups must be below the {self.widths[-1]} channels of the last level, whose "
                "maps are single pixels: groups of one number are 0 once normalised, got "
                f"{self.num_groups}"
            )
        levels_of = zip(self.widths, self.sizes, strict=True)
        attended = {width for width, size in levels_of if size in self.attention_sizes}
        for width in sorted(attended | {self.widths[-1]}):
            if width % self.num_heads:
                raise ValueError(
                    "num_heads must divide the width of every level with attention and of the "
                    f"last, of which one is {width}, got {self.num_heads}"
                )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return (self.channels, self.image_size, self.image_size)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level."""
        return tuple(self.base_channels * m for m in self.channel_multipliers)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Height of the feature maps of each level."""
        return tuple(self.image_size >> level for level in range(len(self.channel_multipliers)))

    @property
    def time_width(self) -> int:
        """Width e of the time's embedding."""
        return 4 * self.base_channels


def unet_values(
    spec: UNetSpec, image_size: int, channels: int, classes: ClassSpec | None = None
) -> dict[str, Any]:
    """Return the values of a `UNetConfig`, or of a model with one, for images and their classes."""
    multipliers = spec.channel_multipliers or channel_multipliers_for(image_size)
    attended = spec.attention_sizes
    if attended is None:
        sizes = (image_size >> level for level in range(len(multipliers)))
        attended = tuple(size for size in sizes if size in _ATTENTION)
    values = {"image_size": image_size, "channels": channels}
    values |= {"channel_multipliers": multipliers, "attention_sizes": attended}
    return {**spec.to_dict(), **values, **(classes or ClassSpec()).to_dict()}


def channel_multipliers_for(image_size: int) -> tuple[int, ...]:
    """Return the widths of a UNet's levels: improved DDPM's at 32, 64, 256 pixels, else ours."""
    if image_size % 4:
        raise ValueError(
            f"image_size must be a multiple of 4, to be halved twice, got {image_size}: "
            "take another, or set channel_multipliers"
        )
    twice = image_size < _HALVED_TWICE or image_size % 8
    return _MULTIPLIERS.get(image_size, (1, 2, 2) if twice else (1, 2, 2, 2))
