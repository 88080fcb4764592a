"""Pictures as a viewer shows them: turned as EXIF says, and on white where they are transparent."""

from PIL import Image, ImageOps

ORIENTATION = 0x0112
"""EXIF's tag of the orientation; 1 is upright."""


def as_displayed(file: Image.Image, mode: str) -> tuple[Image.Image, list[str]]:
    """Return an opened picture as it is seen, and what was done to it.

    The mode is "L" or "RGB".
    """
    changed: list[str] = []
    if getattr(file, "is_animated", False):
        changed.append("are animations, of which the first picture was taken")
    if file.getexif().get(ORIENTATION, 1) != 1:
        changed.append("were turned as their EXIF orientation says")
    image = ImageOps.exif_transpose(file)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        if layer.getchannel("A").getextrema()[0] != 255:
            changed.append("have transparent pixels and were laid on white")
        image = Image.new("RGBA", layer.size, "white")
        image.alpha_composite(layer)
    return image.convert(mode), changed
