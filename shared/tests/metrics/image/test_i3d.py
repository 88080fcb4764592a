"""I3D against a literal computation with torch's functions, from the names in a weights file."""

import hashlib
import re

import pytest
import torch
import torch.nn.functional as F

from probseq.metrics.image import I3DFeatures

# Channels that each block's branches put out (Szegedy et al. 2015, table 1).
BLOCKS = {
    "3b": (64, 96, 128, 16, 32, 32),
    "3c": (128, 128, 192, 32, 96, 64),
    "4b": (192, 96, 208, 16, 48, 64),
    "4c": (160, 112, 224, 24, 64, 64),
    "4d": (128, 128, 256, 24, 64, 64),
    "4e": (112, 144, 288, 32, 64, 64),
    "4f": (256, 160, 320, 32, 128, 128),
    "5b": (256, 160, 320, 32, 128, 128),
    "5c": (384, 192, 384, 48, 128, 128),
}
CLASSES = 5


def random_weights():
    generator = torch.Generator().manual_seed(0)
    state = {}

    def unit(name, inputs, outputs, side):
        fan = (inputs * side**3) ** 0.5
        weight = torch.randn(outputs, inputs, side, side, side, generator=generator) / fan
        state[f"{name}.conv3d.weight"] = weight
        for key, shift in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0)):
            state[f"{name}.bn.{key}"] = shift + 0.1 * torch.randn(outputs, generator=generator)
        # Small ones, so that what is added to them shows.
        state[f"{name}.bn.running_var"] = 0.2 + torch.rand(outputs, generator=generator)

    unit("Conv3d_1a_7x7", 3, 64, 7)
    unit("Conv3d_2b_1x1", 64, 64, 1)
    unit("Conv3d_2c_3x3", 64, 192, 3)
    inputs = 192
    for block, (b0, b1a, b1b, b2a, b2b, b3b) in BLOCKS.items():
        name = f"Mixed_{block}"
        unit(f"{name}.b0", inputs, b0, 1)
        unit(f"{name}.b1a", inputs, b1a, 1)
        unit(f"{name}.b1b", b1a, b1b, 3)
        unit(f"{name}.b2a", inputs, b2a, 1)
        unit(f"{name}.b2b", b2a, b2b, 3)
        unit(f"{name}.b3b", inputs, b3b, 1)
        inputs = b0 + b1b + b2b + b3b
    state["logits.conv3d.weight"] = torch.randn(CLASSES, 1024, 1, 1, 1, generator=generator) / 32
    state["logits.conv3d.bias"] = torch.randn(CLASSES, generator=generator)
    return state


def literal(state, videos):
    """Logits of videos (n, 3, t, 224, 224) with t a multiple of 8, so that halvings are exact."""

    def unit(name, x, **how):
        x = F.conv3d(x, state[f"{name}.conv3d.weight"].double(), **how)
        mean, variance, scale, shift = (
            state[f"{name}.bn.{key}"].double()[:, None, None, None]
            for key in ("running_mean", "running_var", "weight", "bias")
        )
        return ((x - mean) / (variance + 0.001).sqrt() * scale + shift).clamp(min=0)

    def pool(x, size, stride, pads):
        return F.max_pool3d(F.pad(x, pads, value=-torch.inf), size, stride)

    def block(name, x):
        first = unit(f"{name}.b1b", unit(f"{name}.b1a", x), padding=1)
        second = unit(f"{name}.b2b", unit(f"{name}.b2a", x), padding=1)
        pooled = F.max_pool3d(x, 3, 1, padding=1)
        return torch.cat([unit(f"{name}.b0", x), first, second, unit(f"{name}.b3b", pooled)], 1)

    # A window of 7 in steps of 2 lacks 5 of an even length: 2 before, 3 behind.
    x = unit("Conv3d_1a_7x7", F.pad(videos, (2, 3) * 3), stride=2)
    # One of 3 in steps of 2 lacks 1, behind.
    x = pool(x, (1, 3, 3), (1, 2, 2), (0, 1, 0, 1, 0, 0))
    x = unit("Conv3d_2c_3x3", unit("Conv3d_2b_1x1", x), padding=1)
    x = pool(x, (1, 3, 3), (1, 2, 2), (0, 1, 0, 1, 0, 0))
    for name in ("Mixed_3b", "Mixed_3c"):
        x = block(name, x)
    x = pool(x, 3, 2, (0, 1) * 3)
    for name in BLOCKS:
        if name.startswith("4"):
            x = block(f"Mixed_{name}", x)
    x = F.max_pool3d(x, 2, 2)
    for name in ("Mixed_5b", "Mixed_5c"):
        x = block(name, x)
    # Over pairs of frames and all pixels, then over time: ends count half as often.
    x = x.mean((3, 4))
    pairs = (x[:, :, :-1] + x[:, :, 1:]) / 2
    head = state["logits.conv3d.weight"].double().flatten(1)
    return pairs.mean(2) @ head.T + state["logits.conv3d.bias"].double()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "i3d.pt"
    torch.save(random_weights(), path)
    return path


@pytest.fixture(scope="module")
def videos():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (2, 16, 3, 20, 28), generator=generator).to(torch.uint8)


@pytest.mark.slow
def test_logits_are_those_of_the_layers_one_by_one(file, videos):
    extractor = I3DFeatures(file)
    levels = videos[0].double() / 127.5 - 1
    frames = F.interpolate(levels, size=(224, 224), mode="bilinear")
    expected = literal(random_weights(), frames.transpose(0, 1)[None])
    found = extractor.of(videos[:1])
    assert found.shape == (1, CLASSES) == (1, extractor.dimension)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)
    assert float(expected.std()) > 0.1
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert (extractor.sha256, extractor.name) == (digest, f"i3d-{digest[:8]}")
    assert not any(p.requires_grad for p in extractor.parameters())


@pytest.mark.slow
def test_short_videos_hold_their_frames_and_grey_ones_are_colour(file, videos):
    extractor = I3DFeatures(file).train()  # batch norms stay those of the file
    short = videos[:, :4, :1]
    held = short.repeat_interleave(3, dim=1).expand(-1, -1, 3, -1, -1)
    torch.testing.assert_close(extractor.of(short), extractor.of(held), rtol=1e-4, atol=1e-5)
    one = extractor(short[1:].double() / 127.5 - 1)
    torch.testing.assert_close(extractor.of(short, batch_size=1)[1:], one, rtol=1e-4, atol=1e-5)


def test_other_files_and_other_videos_are_refused(file, videos, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"weights must be the file of I3D's weights, and"):
        I3DFeatures(tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("no weights")
    lacking = random_weights()
    del lacking["Mixed_4d.b1b.bn.bias"]
    torch.save(lacking, tmp_path / "lacking.pt")
    torch.save({"logits.conv3d.weight": print}, tmp_path / "code.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "empty.pt").write_bytes(b"")
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    for name in ("text", "lacking", "code", "list", "empty", "tensor"):
        named = re.escape(str(tmp_path / f"{name}.pt"))
        with pytest.raises(ValueError, match=rf"weights must hold the tensors of I3D.*{named}"):
            I3DFeatures(tmp_path / f"{name}.pt")
    extractor = I3DFeatures(file)
    for wrong, message in (
        (videos[:0], r"videos must have shape \(n, t, c, h, w\)"),
        (videos.float(), r"videos must lie in -1\.\.1"),
        (videos[:, :, :2], r"videos must have shape"),
    ):
        with pytest.raises(ValueError, match=message):
            extractor.of(wrong)
    with pytest.raises(ValueError, match="batch_size"):
        extractor.of(videos, batch_size=0)
