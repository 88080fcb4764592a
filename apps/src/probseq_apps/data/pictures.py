"""Pictures as a viewer shows them: turned as EXIF says, in sRGB, on white where transparent."""

import io
from typing import Any

from PIL import Image, ImageCms, ImageOps

ORIENTATION = 0x0112
"""EXIF's tag of the orientation; 1 is upright."""

# Modes that a profile is of, by the name of its colours.
_MODES = {"GRAY": "L", "RGB ": "RGB", "CMYK": "CMYK", "Lab ": "LAB"}


def as_displayed(file: Image.Image, mode: str) -> tuple[Image.Image, list[str]]:
    """Return an opened picture as it is seen, and what was done to it.

    The mode is "L" or "RGB".
    """
    changed: list[str] = []
    # A telephone's MPO has the picture first, and small ones or maps of it behind.
    if getattr(file, "is_animated", False) and file.format != "MPO":
        changed.append("hold several pictures, of which the first was taken")
    if file.getexif().get(ORIENTATION, 1) != 1:
        changed.append("were turned as their EXIF orientation says")
    profile = file.info.get("icc_profile")
    image = ImageOps.exif_transpose(file)
    alpha = None
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        alpha = layer.getchannel("A")
        image = image.convert("L" if image.mode == "LA" else "RGB")
    if profile:
        image, how = _in_srgb(image, profile)
        changed += how
    if alpha is not None:
        if alpha.getextrema()[0] != 255:
            changed.append("have transparent pixels and were laid on white")
        layer = image.convert("RGBA")
        layer.putalpha(alpha)
        image = Image.new("RGBA", layer.size, "white")
        image.alpha_composite(layer)
    return image.convert(mode), changed


def _in_srgb(image: Image.Image, content: bytes) -> tuple[Image.Image, list[str]]:
    """Return an image with its profile's colours as those of sRGB, and what was done."""
    try:
        profile: Any = ImageCms.ImageCmsProfile(io.BytesIO(content))
        if (profile.profile.profile_description or "").startswith("sRGB"):
            return image, []
        colours = image.convert(_MODES[profile.profile.xcolor_space])
        srgb = ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(colours, profile, srgb, outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, KeyError, ValueError):
        return image, ["have a colour profile that cannot be read, and were taken for sRGB"]
    return converted or colours, ["were converted from their colour profile to sRGB"]
