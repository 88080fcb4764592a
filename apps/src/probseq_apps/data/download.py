"""Fetch the standard image sets from where torchvision fetches them, sums checked."""

from pathlib import Path
from typing import Literal
from urllib.error import URLError

from probseq.errors import MissingExtraError, require
from probseq_apps.data.errors import DataError


def download_images(name: str, part: Literal["train", "test"], data_dir: Path) -> None:
    """Fetch the files of a set that are not there yet.

    The addresses and MD5 sums are torchvision's. Archives stay packed: the readers open them as
    they are.

    Args:
        name: one of the standard image sets.
        part: SVHN and MNIST have files of their own for each part; CIFAR has one archive.
        data_dir: directory for the files; made if it isn't there.

    Raises:
        DataError: no mirror answers, or what came is damaged.
    """
    from torchvision.datasets.utils import download_url

    for folder, filename, urls, md5 in _published(name, part):
        failures: list[str] = []
        for url in urls:
            try:
                download_url(url, str(data_dir / folder), filename, md5)
                break
            except (RuntimeError, URLError, OSError) as error:
                failures.append(f"{url}: {error}")
        else:
            raise DataError(f"{filename} of {name!r} could not be fetched: {'; '.join(failures)}")


def download_celeba(data_dir: Path) -> None:
    """Fetch the aligned images of CelebA and their division into parts, unless they are there.

    The archive stays packed. It lies with Google Drive, which needs the package gdown and often
    refuses: then the message tells where to put the files by hand.

    Args:
        data_dir: directory for the files, which go to ``celeba`` in it.

    Raises:
        DataError: the files cannot be fetched, or what came is damaged.
    """
    from torchvision.datasets import CelebA
    from torchvision.datasets.utils import download_file_from_google_drive

    folder = data_dir / CelebA.base_folder
    wanted = ("img_align_celeba.zip", "list_eval_partition.txt")
    by_hand = f"put {' and '.join(wanted)} into {folder} yourself"
    try:
        gdown = require("gdown.exceptions", extra="celeba", distribution="probseq-apps")
    except MissingExtraError as error:
        raise DataError(f"'celeba' cannot be fetched: {error}; or {by_hand}") from error
    for file_id, md5, filename in CelebA.file_list:
        if filename in wanted:
            try:
                download_file_from_google_drive(file_id, str(folder), filename, md5)
            except (RuntimeError, URLError, OSError, gdown.FileURLRetrievalError) as error:
                raise DataError(
                    f"{filename} of 'celeba' could not be fetched: {error}; {by_hand}"
                ) from error


def _published(name: str, part: str) -> list[tuple[str, str, list[str], str]]:
    """Folder, file name, addresses and MD5 sum of each file."""
    from torchvision.datasets import CIFAR10, CIFAR100, MNIST, SVHN, FashionMNIST

    if name in ("cifar10", "cifar100"):
        cifar = CIFAR10 if name == "cifar10" else CIFAR100
        return [("", cifar.filename, [cifar.url], cifar.tgz_md5)]
    if name == "svhn":
        url, filename, md5 = SVHN.split_list[part]
        return [("", filename, [url], md5)]
    published = MNIST if name == "mnist" else FashionMNIST
    prefix = "train" if part == "train" else "t10k"
    return [
        (
            f"{published.__name__}/raw",
            filename,
            [f"{mirror}{filename}" for mirror in published.mirrors],
            md5,
        )
        for filename, md5 in published.resources
        if filename.startswith(prefix)
    ]
