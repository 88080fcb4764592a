import re
import urllib.error

import numpy as np
import pytest
from scipy.io import savemat

from probseq_apps.data.errors import DataError
from probseq_apps.data.sets import load_data, load_test_images


@pytest.fixture
def fetched(monkeypatch):
    """Records what would be fetched, and fetches nothing."""
    calls = []

    def record(url, root, filename=None, md5=None):
        calls.append((url, root, filename, md5))

    monkeypatch.setattr("torchvision.datasets.utils.download_url", record)
    return calls


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100", "svhn"])
def test_published_files_are_fetched_with_their_sums(fetched, tmp_path, name):
    directory = tmp_path / "new"
    with pytest.raises(DataError, match="no files of"):
        load_test_images(name, data_dir=directory, download=True)
    assert len(fetched) == (2 if "mnist" in name else 1)
    for url, root, filename, md5 in fetched:
        assert re.match(r"https?://.*/" + re.escape(filename) + "$", url)
        assert root.startswith(str(directory))
        assert re.fullmatch("[0-9a-f]{32}", md5)
        assert "train-images" not in filename


def test_what_is_there_is_not_fetched_again(fetched, tmp_path):
    for part in ("train", "test"):
        content = {"X": np.zeros((32, 32, 3, 9), np.uint8), "y": np.ones((9, 1), np.uint8)}
        savemat(tmp_path / f"{part}_32x32.mat", content)
    load_data("svhn", data_dir=tmp_path, download=True)
    assert fetched == []


def test_fetched_files_are_found(monkeypatch, tmp_path):
    def write(url, root, filename=None, md5=None):
        content = {"X": np.zeros((32, 32, 3, 9), np.uint8), "y": np.ones((9, 1), np.uint8)}
        (tmp_path / "new").mkdir(exist_ok=True)
        savemat(f"{root}/{filename}", content)

    monkeypatch.setattr("torchvision.datasets.utils.download_url", write)
    assert len(load_data("svhn", data_dir=tmp_path / "new", download=True).test) == 9


def test_each_mirror_is_tried_before_giving_up(monkeypatch, tmp_path):
    tried = []

    def fail(url, root, filename=None, md5=None):
        tried.append(url)
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", fail)
    with pytest.raises(DataError, match=r"could not be fetched: .*no network"):
        load_data("mnist", data_dir=tmp_path, download=True)
    assert len(tried) == 2
    assert tried[0] != tried[1]


def test_fetching_needs_a_directory_and_a_set_that_can_be_fetched(fetched, tmp_path):
    with pytest.raises(DataError, match="--data-dir"):
        load_data("mnist", download=True)
    with pytest.raises(DataError, match="'cola' cannot be fetched"):
        load_data("cola", data_dir=tmp_path, download=True)
    assert fetched == []
