import io
import struct

import numpy as np
import pytest
import torch

from probseq_apps.data.image_files import IMAGE_INFO
from probseq_apps.data.images import ImageData, load_ood_images, load_test_images
from probseq_apps.data.names import DataError
from probseq_apps.data.parts import Part
from probseq_apps.data.sets import load_data


def write_idx(folder, images_by_part):
    folder.mkdir(parents=True)
    for prefix, images in images_by_part.items():
        labels = np.arange(len(images), dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (folder / f"{prefix}-{kind}-ubyte").write_bytes(header + array.tobytes())


def random_bytes(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def tiny_mnist(tmp_path):
    images = {"train": random_bytes(20, 28, 28), "t10k": random_bytes(6, 28, 28, seed=1)}
    write_idx(tmp_path / "MNIST" / "raw", images)
    return tmp_path


def test_mnist_is_read_where_torchvision_puts_it(tiny_mnist):
    from torchvision.datasets import MNIST

    data = load_data("mnist", data_dir=tiny_mnist)
    assert (len(data.train), len(data.validation), len(data.test)) == (18, 2, 6)
    assert torch.equal(data.test.inputs[:, 0], MNIST(tiny_mnist, train=False).data)
    assert (data.mean, data.std) == ((0.1307,), (0.3081,))
    assert any("20 of the standard 60,000" in note for note in data.notes)


def test_mnist_is_never_taken_for_fashion_mnist(tiny_mnist):
    with pytest.raises(DataError, match=r"no files of 'fashion-mnist'"):
        load_data("fashion-mnist", data_dir=tiny_mnist)


def test_loading_writes_and_deletes_nothing(tiny_mnist):
    def listing():
        return sorted((str(path), path.stat().st_mtime_ns) for path in tiny_mnist.rglob("*"))

    before = listing()
    load_data("mnist", data_dir=tiny_mnist)
    with pytest.raises(DataError):
        load_data("cifar10", data_dir=tiny_mnist)
    assert listing() == before


def test_images_without_labels_are_refused(tiny_mnist):
    (tiny_mnist / "MNIST" / "raw" / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="only one of train-images and train-labels"):
        load_data("mnist", data_dir=tiny_mnist)


def test_images_of_another_size_and_labels_out_of_range_are_refused(tmp_path):
    (tmp_path / "mnist").mkdir()
    path = tmp_path / "mnist" / "mnist.npz"
    np.savez(path, x_test=random_bytes(2, 27, 27), y_test=np.zeros(2, int))
    with pytest.raises(DataError, match=r"\(1, 28, 28\), got \(1, 27, 27\)"):
        load_test_images("mnist", data_dir=tmp_path)
    np.savez(path, x_test=random_bytes(2, 28, 28), y_test=np.array([3, 10]))
    with pytest.raises(DataError, match="row 1 has 10"):
        load_test_images("mnist", data_dir=tmp_path)


def test_a_missing_absent_or_empty_data_directory_is_named(tmp_path):
    with pytest.raises(DataError, match="'mnist' is read from files"):
        load_data("mnist")
    with pytest.raises(DataError, match=r"nowhere does not exist"):
        load_data("cola", data_dir=tmp_path / "nowhere")
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match=r"void is empty"):
        load_data("imdb", data_dir=tmp_path / "void")


def test_texts_are_no_out_of_distribution_images():
    with pytest.raises(DataError, match="holds texts"):
        load_test_images("cola")


def test_the_complete_mnist_gives_the_known_statistics(shared_data):
    data = load_data("mnist", data_dir=shared_data)
    assert (len(data.train), len(data.validation), len(data.test)) == (55_000, 5_000, 10_000)
    assert data.notes == ()
    whole = torch.cat((data.train.inputs, data.validation.inputs)).double() / 255
    assert abs(float(whole.mean()) - 0.1307) < 1e-4
    assert abs(float(whole.std()) - 0.3081) < 1e-4
    assert data.test.targets[:5].tolist() == [7, 2, 1, 0, 4]


def test_sets_with_a_test_part_only_serve_for_evaluation_alone(shared_data):
    with pytest.raises(DataError, match="only the test part of 'fashion-mnist'"):
        load_data("fashion-mnist", data_dir=shared_data)
    like = load_data("digits")
    ood = load_ood_images("fashion-mnist", like, data_dir=shared_data)
    assert ood.inputs.shape == (4443, 1, 8, 8)


def test_class_names_and_order_are_those_of_the_real_files(shared_data):
    pytest.importorskip("pyarrow")
    import json

    import pyarrow.parquet as pq

    for name in ("cifar10", "cifar100"):
        metadata = pq.read_schema(shared_data / name / "test.parquet").metadata
        info = json.loads(metadata[b"huggingface"])["info"]["features"]["label"]
        assert tuple(info["names"]) == IMAGE_INFO[name].class_names


def test_shards_of_the_real_cifar10_are_read(shared_data, tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq
    from PIL import Image

    (tmp_path / "cifar10").mkdir()
    for name in ("train-0", "train-1", "test"):
        table = pq.read_table(shared_data / "cifar10" / f"{name}.parquet").slice(0, 30)
        pq.write_table(table, tmp_path / "cifar10" / f"{name}.parquet")
    data = load_data("cifar10", data_dir=tmp_path)
    assert (len(data.train), len(data.validation), len(data.test)) == (54, 6, 30)
    with Image.open(io.BytesIO(table["image"][3].as_py()["bytes"])) as image:
        expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(data.test.inputs[3].numpy(), expected)
    assert data.test.targets.tolist() == table["label"].to_pylist()


def test_images_that_occur_in_both_sets_are_no_out_of_distribution_data(tiny_mnist):
    shared = torch.from_numpy(random_bytes(6, 28, 28, seed=1)).unsqueeze(1)

    def part(images):
        return Part(images, torch.zeros(len(images), dtype=torch.int64))

    # Two of the other set's images are known; another two of them are equal.
    images = random_bytes(6, 28, 28, seed=1)
    images[5] = images[4]
    write_idx(tiny_mnist / "b" / "MNIST" / "raw", {"t10k": images})
    like = ImageData("mine", part(shared[:1]), part(shared[:0]), part(shared[2:3]), (0.0,), (1.0,))
    ood = load_ood_images("mnist", like, data_dir=tiny_mnist / "b")
    assert torch.equal(ood.inputs, shared[[1, 3, 4]])
    assert ood.targets.tolist() == [1, 3, 4]


def test_a_set_is_not_out_of_distribution_for_itself():
    digits = load_data("digits")
    with pytest.raises(DataError, match="must differ"):
        load_ood_images("digits", digits)
