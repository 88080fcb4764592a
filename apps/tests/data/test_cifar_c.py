import numpy as np
import pytest

from probseq_apps.data.corruptions import available_cifar_c, read_cifar_c
from probseq_apps.data.names import DataError


@pytest.fixture
def published(tmp_path):
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    np.save(folder / "fog.npy", images)
    np.save(folder / "frost.npy", images[::-1])
    np.save(folder / "labels.npy", np.tile(np.array([3, 1, 0, 9], dtype=np.uint8), 5))
    return tmp_path, images


def test_a_severity_is_a_fifth_of_the_file(published):
    directory, images = published
    part = read_cifar_c("cifar10", directory, "fog", 2)
    np.testing.assert_array_equal(part.inputs.numpy(), images[4:8].transpose(0, 3, 1, 2))
    assert part.targets.tolist() == [3, 1, 0, 9]
    part.inputs.zero_()
    np.testing.assert_array_equal(np.load(directory / "CIFAR-10-C" / "fog.npy"), images)


def test_what_is_there_is_listed(published):
    directory, _ = published
    assert available_cifar_c("cifar10", directory) == ("fog", "frost")
    assert available_cifar_c("cifar100", directory) == ()
    assert available_cifar_c("mnist", directory) == ()


def test_unknown_corruptions_and_severities_are_refused(published):
    directory, _ = published
    with pytest.raises(DataError, match=r"did you mean 'frost'.*CIFAR-10-C"):
        read_cifar_c("cifar10", directory, "frosts", 1)
    with pytest.raises(DataError, match="severity must be"):
        read_cifar_c("cifar10", directory, "fog", 6)
    with pytest.raises(DataError, match="unknown corruption 'fog'"):
        read_cifar_c("mnist", directory, "fog", 1)


def test_damaged_files_are_named(published):
    directory, images = published
    folder = directory / "CIFAR-10-C"
    np.save(folder / "fog.npy", images[:19])
    with pytest.raises(DataError, match=r"fog\.npy must hold five severities"):
        read_cifar_c("cifar10", directory, "fog", 1)
    (folder / "fog.npy").write_bytes((folder / "frost.npy").read_bytes()[:500])
    with pytest.raises(DataError, match=r"fog\.npy cannot be read"):
        read_cifar_c("cifar10", directory, "fog", 1)
    np.save(folder / "fog.npy", np.array([object()] * 5), allow_pickle=True)
    with pytest.raises(DataError, match=r"fog\.npy cannot be read"):
        read_cifar_c("cifar10", directory, "fog", 1)
    np.save(folder / "labels.npy", np.full(20, 10))
    with pytest.raises(DataError, match=r"labels\.npy.*row 0 has 10"):
        read_cifar_c("cifar10", directory, "frost", 1)
    (folder / "labels.npy").unlink()
    with pytest.raises(DataError, match=r"labels\.npy cannot be read"):
        read_cifar_c("cifar10", directory, "frost", 1)
