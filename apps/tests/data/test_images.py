"""Images to classify and to generate: folders of one's own, sizes, out-of-distribution data."""

import shutil
import struct
from itertools import chain

import numpy as np
import pytest
import torch
from PIL import Image

from probseq_apps.data import image_folders
from probseq_apps.data.image_folders import read_images
from probseq_apps.data.images import ImageData, load_generation_data, load_images, load_ood_images
from probseq_apps.data.names import DataError
from probseq_apps.data.parts import Part, hold_out_validation
from pseudovideo.pixels import to_unit


@pytest.fixture
def flat(save, tmp_path):
    for label, name in enumerate(("cat", "dog")):
        for number in range(10):
            save(f"{name}/{number}.png", value=10 * number + label)
    return tmp_path


def sizes(data):
    return [len(part) for part in (data.train, data.validation, data.test)]


def first_values(data):
    return [part[:, 0, 0, 0].tolist() for part in (data.train, data.validation, data.test)]


def test_a_flat_folder_is_split_80_10_10_in_each_class(flat, put):
    for name in (".hidden/0.png", "cat/notes.txt", "cat/._0.png"):
        put(name, b"no image")
    data = load_images(f"folder:{flat}")
    assert data.class_names == ("cat", "dog")
    parts = (data.train, data.validation, data.test)
    assert [p.targets.bincount().tolist() for p in parts] == [[8, 8], [1, 1], [1, 1]]
    for part in parts:
        assert torch.equal(part.inputs[:, 0, 0, 0] % 10, part.targets)
    known = data.train.inputs.double().div(255)
    assert data.mean == pytest.approx(known.mean((0, 2, 3)).tolist())
    assert data.std == pytest.approx(known.std((0, 2, 3), correction=0).tolist())


@pytest.mark.parametrize("validation", ["val", "validation", "valid", None])
def test_parts_given_by_folders_are_kept(save, tmp_path, validation):
    for part, count in (("train", 10), (validation, 2), ("test", 3)):
        for number in range(count if part else 0):
            for name in "ab":
                save(f"{part}/{name}/{number}.bmp", mode="L", seed=number)
    for load in (load_images, load_generation_data):
        assert sizes(load(f"folder:{tmp_path}")) == ([20, 4, 6] if validation else [18, 2, 6])


def test_grey_images_stay_grey_and_one_in_colour_makes_all_colour(save, tmp_path):
    pixels = [save(f"{name}/{number}.png", mode="L") for name in "ab" for number in range(3)]
    assert load_images(f"folder:{tmp_path}").channels == 1
    save("a/colour.png")
    data = load_images(f"folder:{tmp_path}")
    assert data.channels == 3
    first = data.train.inputs[data.train.targets == 1][0]
    assert torch.equal(first[0], first[1])
    np.testing.assert_array_equal(first[0].numpy(), pixels[0])


@pytest.mark.parametrize("folders", [("",), ("a",), ("a", "b")])
def test_a_folder_to_generate_is_split_by_a_fixed_permutation(save, tmp_path, folders):
    for number in range(40):
        save(f"./{folders[number % len(folders)]}/{number:02}.png", value=number)
    data, again = (load_generation_data(f"folder:{tmp_path}") for _ in range(2))
    assert sizes(data) == [33, 3, 4]
    assert sorted(chain(*first_values(data))) == list(range(40))
    assert first_values(again) == first_values(data)
    if len(folders) < 2:
        assert data.labels is None
        assert first_values(data) == [sorted(part) for part in first_values(data)]
    else:
        assert data.class_names == folders
        for values, labels in zip(first_values(data), data.labels, strict=True):
            assert [value % 2 for value in values] == labels.tolist()


def test_folders_that_make_no_data_set_are_refused_with_the_reason(save, tmp_path):
    name = f"folder:{tmp_path}"

    def refused(load, message, name=name, **options):
        with pytest.raises(DataError, match=message):
            load(name, **options)

    refused(load_images, "none does not exist", name=f"{name}/none")
    for number in range(19):
        save(f"{number}.png")
    refused(load_generation_data, "at least 20 images.* holds 19")
    save("deep.png")
    Image.fromarray(np.full((8, 8), 60_000, dtype=np.uint16)).save(tmp_path / "deep.png")
    refused(load_generation_data, r"deep\.png has more than 8 bits")
    save("deep.png", size=(20, 10))
    refused(load_generation_data, r"8x8 pixels, .*deep\.png has 20x10 pixels; set image_size")
    assert load_generation_data(name, image_size=6).train.shape[1:] == (3, 6, 6)
    save("more/x.png")
    refused(load_generation_data, r"images and folders of images \(more\)", image_size=8)
    save("train/a/0.png")
    save("train/b/0.png")
    refused(load_images, "a folder train but no folder test")
    save("test/c/0.png")
    save("test/a/0.png")
    refused(load_images, "classes that the training part lacks: c")


def test_a_picture_is_read_as_it_is_seen(tmp_path):
    """A red bar at the top that the camera held sideways, and blue that alpha hides."""
    for number in range(20):
        Image.fromarray(np.full((8, 8), number, dtype=np.uint8)).save(tmp_path / f"{number:02}.png")
    upright = np.zeros((8, 8, 3), dtype=np.uint8)
    upright[:2, :, 0] = 255
    for orientation, stored in ((6, np.rot90(upright)), (3, upright[::-1, ::-1])):
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture = Image.fromarray(np.ascontiguousarray(stored))
        picture.save(tmp_path / f"turned{orientation}.png", exif=exif)
    hidden = np.zeros((8, 8, 4), dtype=np.uint8)
    hidden[..., 2], hidden[:4, :, 3] = 255, 128
    Image.fromarray(hidden).save(tmp_path / "hidden.png")
    palette = Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).convert("P")
    palette.save(tmp_path / "palette.png", transparency=0)
    names = [f"turned{orientation}.png" for orientation in (6, 3)]
    turned, other, layered, whole = read_images(
        [tmp_path / name for name in (*names, "hidden.png", "palette.png")], None
    ).pixels
    for image in (turned, other):
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), upright)
    assert (whole == 255).all()
    assert (layered[:, 4:] == 255).all()
    assert layered[:, 0, 0].tolist() == [127, 127, 255]
    notes = load_generation_data(f"folder:{tmp_path}").notes
    assert any("2 of 24 images were turned as their EXIF orientation says" in n for n in notes)
    assert any("2 of 24 images have transparent pixels and were laid on white" in n for n in notes)
    assert any("20 of 24 images were grey and became colour" in n for n in notes)


def test_folders_are_read_at_any_depth_and_what_was_changed_or_passed_over_is_told(
    save, put, tmp_path
):
    for label, name in enumerate(("cat", "dog")):
        for number in range(6):
            save(f"{name}/{number}.png", value=20 * number + label)
            save(f"{name}/more/{number}/deep.jfif", value=20 * number + 10 + label)
    root = tmp_path
    put("cat/phone.heic", b"?")
    put("dog/.hidden/x.png", b"?")
    put("dog/more/.x/y.png", b"?")
    put("dog/README", b"?")
    data = load_images(f"folder:{root}")
    assert sum(sizes(data)) == 24
    assert torch.cat([p.targets for p in (data.train, data.test)]).bincount().min() > 9
    for name in ("cat/lost.png", "lost/1.png"):  # as DVC and git-annex leave them
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).symlink_to(root / "nothing")
    (root / "cat" / "link").symlink_to(root / "dog")
    with pytest.raises(DataError, match="lost holds no images"):
        load_images(f"folder:{root}")
    (note,) = load_generation_data(f"folder:{root}").notes
    for reason in (
        *("ending .heic (1)", "ending none (1)", "hidden files and folders (2)"),
        *("links to nothing (2)", "linked folders below others (1)", "lost without images (1)"),
    ):
        assert reason in note
    shutil.rmtree(root / "lost")
    save("cat/wide.png", size=(20, 10))
    notes = load_images(f"folder:{root}", image_size=12).notes
    assert any("1 of 25 images were cropped to their middle square" in note for note in notes)
    assert any("25 of 25 images were enlarged to 12 pixels" in note for note in notes)


def test_images_of_the_training_part_among_the_others_are_counted(save, tmp_path):
    for part, count in (("train", 12), ("val", 3), ("test", 4)):
        for number in range(count):
            save(f"{part}/{number}.png", value=number + (100 if part == "val" else 0))
    save("test/other.png", value=200)
    notes = load_generation_data(f"folder:{tmp_path}").notes
    assert notes == (f"{tmp_path.name}: 4 of 5 test images are in the training part, too",)
    # Parts have their usual names in any case, and what lies beside them is counted.
    (tmp_path / "train").rename(tmp_path / "Training")
    (tmp_path / "test").rename(tmp_path / "TEST")
    save("beside.png")
    save("more/beside.png")
    data = load_generation_data(f"folder:{tmp_path}")
    assert (*map(len, (data.train, data.validation, data.test)),) == (12, 3, 5)
    assert any("outside the folders Training, val, TEST (2)" in note for note in data.notes)


def test_parts_that_might_be_read_as_classes_are_refused(save, tmp_path):
    for count, (folders, message) in enumerate(
        (
            (("seg_train", "seg_test"), "seg_train and seg_test: rename"),
            (("train", "held-out-test"), "train and held-out-test: rename"),
            (("test", "cats"), "a folder test but no folder train"),
            (("train", "test", "val", "validation"), "one folder of .* val and validation"),
            (("set/train", "set/test"), "set is in parts"),
        )
    ):
        for folder in folders:
            for number in range(20):
                save(f"{count}/{folder}/{number}.png", value=number)
        with pytest.raises(DataError, match=message):
            load_generation_data(f"folder:{tmp_path / str(count)}")


def icc_profile(columns, gamma):
    """Return a version-2 ICC profile of a display: primaries as XYZ under D50, and a power."""

    def number(value):
        return struct.pack(">i", round(value * 65536))

    curve = struct.pack(">4sIIH", b"curv", 0, 1, round(gamma * 256)) + b"\0\0"
    white = b"".join(map(number, (0.9642, 1.0, 0.8249)))
    tags = {b"wtpt": b"XYZ \0\0\0\0" + white}
    for name, column in zip("rgb", columns, strict=True):
        tags[f"{name}XYZ".encode()] = b"XYZ \0\0\0\0" + b"".join(map(number, column))
        tags[f"{name}TRC".encode()] = curve
    start, table, body = 128 + 4 + 12 * len(tags), b"", b""
    for name, content in tags.items():
        table += struct.pack(">4sII", name, start + len(body), len(content))
        body += content
    size = start + len(body)
    head = struct.pack(">I4sI", size, b"test", 0x02400000) + b"mntrRGB XYZ " + bytes(12) + b"acsp"
    head = head.ljust(68, b"\0") + white
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + body


def test_colours_of_a_profile_become_those_of_srgb(tmp_path):
    """Against the matrices of both spaces in float64, with alpha and without."""
    adobe = np.array(
        [[0.60974, 0.31111, 0.01947], [0.20528, 0.62567, 0.06087], [0.14919, 0.06322, 0.74457]]
    )
    srgb = np.array(
        [[0.43607, 0.22249, 0.01392], [0.38515, 0.71687, 0.09708], [0.14307, 0.06061, 0.71410]]
    )
    levels = np.random.default_rng(0).integers(60, 190, (16, 16, 3), dtype=np.uint8)
    linear = np.clip((levels / 255) ** 2.2 @ adobe @ np.linalg.inv(srgb), 0, 1)
    expected = 255 * np.where(
        linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear
    )
    profile = icc_profile(adobe, 2.2)
    picture = Image.fromarray(levels)
    layer = picture.convert("RGBA")
    picture.save(tmp_path / "plain.png", icc_profile=profile)
    layer.save(tmp_path / "layer.png", icc_profile=profile)
    picture.save(tmp_path / "damaged.png", icc_profile=b"?" * 200)
    paths = [tmp_path / f"{name}.png" for name in ("plain", "layer", "damaged")]
    plain, layered, damaged = read_images(paths, None).pixels.permute(0, 2, 3, 1).numpy()
    assert np.abs(levels - expected).max() > 20
    np.testing.assert_allclose(plain, expected, atol=2)
    np.testing.assert_array_equal(layered, plain)
    np.testing.assert_array_equal(damaged, levels)
    notes = " ".join(read_images(paths, None).notes)
    assert "2 of 3 images were converted from their colour profile" in notes
    assert "1 of 3 images have a colour profile that cannot be read" in notes


def test_a_telephones_picture_with_others_behind_it_is_no_animation(tmp_path):
    first, second = (Image.new("RGB", (8, 8), (level, 0, 0)) for level in (200, 20))
    for name, form in (("phone.jpg", "MPO"), ("pages.webp", "WEBP")):
        first.save(tmp_path / name, form, save_all=True, append_images=[second])
    images = read_images([tmp_path / "phone.jpg", tmp_path / "pages.webp"], None)
    assert (images.pixels[:, 0] > 190).all()
    assert images.notes == ("1 of 2 images hold several pictures, of which the first was taken",)


def test_all_files_that_cannot_be_read_are_named_before_others_are_decoded(
    flat, put, save, monkeypatch
):
    for name in ("cat/3.png", "dog/4.png"):
        put(name, b"no image")
    path = flat / "dog" / "5.png"
    save("dog/5.png")
    path.write_bytes(path.read_bytes()[:100])  # its header is sound
    decoded = []
    as_displayed = image_folders.as_displayed
    monkeypatch.setattr(
        image_folders, "as_displayed", lambda *args: decoded.append(args) or as_displayed(*args)
    )
    with pytest.raises(DataError, match=r"2 of 20 images .*3\.png.*; .*4\.png.*skip_unreadable"):
        load_images(f"folder:{flat}")
    assert not decoded
    parts, _, notes = image_folders.read_folder(
        flat, image_size=None, classes=True, skip_unreadable=True
    )
    assert sum(map(len, parts)) == 17
    for part in parts:
        assert torch.equal(part.inputs[:, 0, 0, 0] % 10, part.targets)
    assert "files that cannot be read were left out (3): " in notes[0]
    assert load_generation_data(f"folder:{flat}", skip_unreadable=True).notes == notes


def test_a_folder_serves_as_out_of_distribution_data_without_classes_or_parts(flat, save):
    like = load_images("digits")
    for folder, count in (("", 20), ("cat", 10)):
        found = load_ood_images(f"folder:{flat / folder}", like)
        assert found.inputs.shape == (count, 1, 8, 8)
    # A folder of its own for the test is all that is taken, where there is one.
    save("test/a.png", value=3)
    assert len(load_ood_images(f"folder:{flat}", like)) == 1


def test_images_that_occur_in_both_sets_are_no_out_of_distribution_data(write_mnist, tmp_path):
    # Two of the other set's images are known; another two of them are equal.
    images = write_mnist(test=6)
    images[5] = images[4]
    write_mnist(test_images=images)

    def part(rows):
        return Part(images[rows, None], torch.zeros(len(images[rows]), dtype=torch.int64))

    rows = (slice(0, 1), slice(0, 0), slice(2, 3))
    like = ImageData("mine", *map(part, rows), (0.0,), (1.0,))
    ood = load_ood_images("mnist", like, data_dir=tmp_path)
    assert torch.equal(ood.inputs[:, 0], images[[1, 3, 4]])
    assert ood.targets.tolist() == [1, 3, 4]


@pytest.fixture
def write_mnist(tmp_path):
    def write(train=40, test=10, test_images=None):
        """Write MNIST with random images; return those for training, or the test's alone."""
        pixels = np.random.default_rng(0).integers(1, 256, (train + test, 28, 28), dtype=np.uint8)
        last = pixels[train:] if test_images is None else test_images.numpy()
        (tmp_path / "mnist").mkdir(exist_ok=True)
        np.savez(
            tmp_path / "mnist" / "mnist.npz",
            x_train=pixels[:train],
            y_train=np.arange(train) % 10,
            x_test=last,
            y_test=np.arange(len(last)) % 10,
        )
        return torch.from_numpy(pixels[:train] if test == 10 else last.copy())

    return write


def test_digits_are_enlarged_bilinearly_to_16_pixels_and_have_their_labels():
    data = load_generation_data("digits")
    assert sum(sizes(data)) == 1797
    assert (data.train.shape[1:], data.train.dtype) == ((1, 16, 16), torch.uint8)
    expected = data.test.double() / 127.5 - 1
    torch.testing.assert_close(to_unit(data.test).double(), expected, atol=1e-6, rtol=0)
    small = load_images("digits").test
    whole = torch.nn.functional.interpolate(small.inputs.double(), size=16, mode="bilinear")
    torch.testing.assert_close(data.test.double(), whole, atol=0.51, rtol=0)
    assert torch.equal(small.targets, data.labels.test)


@pytest.mark.parametrize("size", [None, 28, 31])
def test_mnist_is_padded_with_background_and_a_tenth_is_held_out(write_mnist, tmp_path, size):
    images = write_mnist()
    data = load_generation_data("mnist", data_dir=tmp_path, image_size=size)
    size = size or 32
    inner = slice((size - 28) // 2, (size - 28) // 2 + 28)
    border = torch.ones(size, size, dtype=torch.bool)
    border[inner, inner] = False
    for part, rows in zip((data.train, data.validation), hold_out_validation(40), strict=True):
        assert torch.equal(part[:, 0, inner, inner], images[rows])
        assert not part[:, :, border].any()
    assert data.test.shape == (10, 1, size, size)


@pytest.mark.parametrize(("size", "train"), [(14, 40), (7, 1250)])  # 1,250: in two chunks
def test_images_that_shrink_by_a_whole_factor_are_means_of_blocks(
    write_mnist, tmp_path, size, train
):
    images = write_mnist(train=train)
    data = load_generation_data("mnist", data_dir=tmp_path, image_size=size)
    for part, rows in zip((data.train, data.validation), hold_out_validation(train), strict=True):
        blocks = images[rows].double().reshape(-1, 1, size, 28 // size, size, 28 // size)
        assert (part.double() - blocks.mean((3, 5))).abs().max() <= 0.5
    assert load_generation_data("mnist", data_dir=tmp_path, image_size=20).train.shape[-1] == 20


def test_sets_of_digits_are_labelled_by_how_many_different_ones_they_show():
    digits, sets = load_images("digits"), load_images("digit-sets")
    for part in ("train", "validation", "test"):
        source, made = getattr(digits, part), getattr(sets, part)
        classes = {
            image.numpy().tobytes(): int(label)
            for image, label in zip(source.inputs, source.targets, strict=True)
        }
        for image, label in zip(made.inputs[:300], made.targets[:300], strict=True):
            quarters = [image[:, i : i + 8, j : j + 8] for i in (0, 8) for j in (0, 8)]
            shown = {classes[quarter.contiguous().numpy().tobytes()] for quarter in quarters}
            assert sets.class_names[label] == str(len(shown))
        shares = made.targets.bincount(minlength=4) / len(made)
        assert (shares - 0.25).abs().max() < 4 * (0.25 * 0.75 / len(made)) ** 0.5
