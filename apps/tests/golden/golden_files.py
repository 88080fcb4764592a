"""Small files in every format that `probseq` reads, the same on every machine."""

import itertools
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from sklearn.datasets import load_digits

WORDS = "the a cat dog small red book sleeps reads runs quickly never old man saw her"
SMILES = """CCO CCCO CC(C)O c1ccccc1 CCN CC(=O)O CCCCC C1CCCCC1 CC#N CCOC CNC c1ccncc1 CC(C)=O
OCCO C=CC CCS CCCl Cc1ccccc1 NCCO CC(N)C(=O)O C1CCOC1 CCBr FC(F)F O=CO CC=O"""


def write_files(folder: Path, *, weights: bool) -> None:
    """Write `data`, standard sets, and `own`, a user's files; weights of networks are 150 MB."""
    random = np.random.default_rng(0)
    write_images(folder / "data", random)
    write_texts(folder, random)
    write_series(folder, random)
    write_molecules(folder)
    if weights:
        write_weights(folder / "own")
    for name, mode, shape in (("grey", "L", (16, 16)), ("colour", "RGB", (20, 24, 3))):
        for number in range(40):
            pixels = random.integers(0, 200, shape, np.uint8) + 27 * (number % 2)
            path = folder / "own" / name / f"class-{number % 2}" / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8), mode).save(path)


def pictures(random: np.random.Generator, count: int, side: int, channels: int) -> np.ndarray:
    """Enlarged digits with a tint, (count, side, side, channels) in bytes."""
    digits = load_digits().images[:count].repeat(side // 8 + 1, 1).repeat(side // 8 + 1, 2)
    tints = random.integers(6, 15, (count, 1, 1, channels))
    return (digits[:, :side, :side, None] * tints).astype(np.uint8)


def write_images(data: Path, random: np.random.Generator) -> None:
    """MNIST as NPZ, Fashion-MNIST as IDX, CIFAR and SVHN as Parquet, CelebA."""
    grey = pictures(random, 160, 28, 1)[..., 0]
    labels = load_digits().target[:160].astype(np.uint8)
    for name in ("mnist", "FashionMNIST/raw", "cifar10", "cifar100", "svhn", "CIFAR-10-C"):
        (data / name).mkdir(parents=True)
    known = {"x_train": grey[:120], "y_train": labels[:120]}
    np.savez(data / "mnist/mnist.npz", **known, x_test=grey[120:], y_test=labels[120:])
    for part, rows in (("train", slice(0, 120)), ("t10k", slice(120, 160))):
        for kind, array in (("images-idx3", 255 - grey[rows]), ("labels-idx1", labels[rows])):
            head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            path = data / f"FashionMNIST/raw/{part}-{kind}-ubyte"
            path.write_bytes(head + array.tobytes())
    colour = pictures(random, 120, 32, 3)
    for part, rows in (("train", slice(0, 80)), ("test", slice(80, 120))):
        # Images that are in both sets are left out where one is told apart from the other.
        own, negative = labels[:120][rows], 255 - colour[rows]
        fine = np.arange(len(own), dtype=np.uint8) % 100
        for name, images, numbers in (
            ("cifar10", colour[rows], own),
            ("svhn", negative, own),
            ("cifar100", negative, fine),
        ):
            encoded = [{"bytes": png(image), "path": ""} for image in images]
            table = pa.table({"image": encoded, "label": numbers})
            pq.write_table(table, data / f"{name}/{part}.parquet")
    contrast = np.concatenate([colour[80:] // k for k in range(1, 6)])
    for name, array in (("labels", np.tile(labels[80:120], 5)), ("contrast", contrast)):
        np.save(data / f"CIFAR-10-C/{name}.npy", array)
    faces = data / "celeba/img_align_celeba"
    faces.mkdir(parents=True)
    for number, image in enumerate(pictures(random, 30, 28, 3)):
        Image.fromarray(image).resize((178, 218)).save(faces / f"{number:06d}.jpg", format="PNG")
    parts = [f"{number:06d}.jpg {(number > 19) + (number > 23)}\n" for number in range(30)]
    (data / "celeba/list_eval_partition.txt").write_text("".join(parts))


def png(image: np.ndarray) -> bytes:
    """An encoded picture."""
    buffer = pa.BufferOutputStream()
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue().to_pybytes()


def write_texts(folder: Path, random: np.random.Generator) -> None:
    """CoLA, IMDB, a CSV of texts, a tokenizer, and sequences of vectors of three classes."""
    texts = [" ".join(random.choice(WORDS.split(), 4 + n % 5)) + f" {n}" for n in range(120)]
    own = folder / "own"
    own.mkdir()
    (folder / "data/cola").mkdir()
    for name, rows in (("in_domain_train", 0), ("in_domain_dev", 60), ("out_of_domain_dev", 90)):
        lines = [f"src\t{n % 2}\t\t{text}" for n, text in enumerate(texts)][rows : rows + 40]
        (folder / f"data/cola/{name}.tsv").write_text("\n".join(lines) + "\n")
    for part, text in itertools.product(("train", "test"), range(40)):
        path = folder / "data/aclImdb" / part / ("neg", "pos")[text % 2] / f"{text}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[text + 40 * (part == "test")])
    rows = [f"{text},{'yes' if n % 3 else 'no'}" for n, text in enumerate(texts)]
    (own / "reviews.csv").write_text("\n".join(["review,stars", *rows]) + "\n")
    lengths = [len(text.split()) for text in texts]
    vectors = random.standard_normal((sum(lengths), 6)).astype(np.float16)
    labels = [str(n % 3) for n in range(len(texts))]
    np.savez(own / "vectors.npz", labels=labels, lengths=lengths, values=vectors)
    from tokenizers import Tokenizer, models, pre_tokenizers

    numbers = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *WORDS.split()])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_padding()
    tokenizer.save(str(own / "tokenizer.json"))


def write_series(folder: Path, random: np.random.Generator) -> None:
    """Solar, audio, COVID, the two tables, and CSV files of a series and of channels."""
    data, own = folder / "data", folder / "own"
    for name in ("solar_irradiance", "audio_subband", "covid_deaths_brazil", "uci"):
        (data / name).mkdir()
    wave = np.sin(np.arange(31_250) / 7.0)
    noisy = wave[:240] + 0.1 * random.standard_normal(240)
    head = "year,tsi_11yr_cycle,tsi_11yr_cycle_plus_background"
    rows = [f"{1610.5 + year},0,{noisy[year]:.5f}" for year in range(120)]
    (data / "solar_irradiance/solar_irradiance.csv").write_text("\n".join([head, *rows]) + "\n")
    np.savez(data / "audio_subband/audio_subband.npz", demodulated=wave.astype(np.float32))
    days = np.arange(np.datetime64("2020-03-01"), np.datetime64("2020-06-01"))
    counts = random.poisson(4 + 3 * wave[: len(days)]) - (np.arange(len(days)) == 5)
    rows = [f"{day},{count}" for day, count in zip(days, counts, strict=True)]
    text = "\n".join(["date,new_deaths", *rows]) + "\n"
    (data / "covid_deaths_brazil/santa_catarina.csv").write_text(text)
    for name in ("skillcraft", "powerplant"):
        x = random.standard_normal((90, 3))
        columns = {f"x{n}": x[:, n] for n in range(3)} | {"y": np.sin(x.sum(1))}
        columns |= {f"test{n}": random.random(90) < 0.2 for n in range(2)}
        pq.write_table(pa.table(columns), data / f"uci/{name}.parquet")
    days = [f"2021-{1 + n // 28:02d}-{1 + n % 28:02d}" for n in range(80)]
    rows = [f"{day},{noisy[n]:.4f}" for n, day in enumerate(days)]
    (own / "series.csv").write_text("\n".join(["day,level", *rows[:30], "2021-02-03,", *rows[30:]]))
    rows = [f"{day}T00:00,{noisy[n]:.4f},{noisy[n + 9]:.4f}" for n, day in enumerate(days)]
    (own / "channels.csv").write_text("\n".join(["hour,wind,rain", *rows]) + "\n")
    both = [(site, f"{noisy[n + 9 * site]:.4f}") for n in range(80) for site in (0, 1)]
    rows = [f"{days[n // 2]},{site},{level}" for n, (site, level) in enumerate(both)]
    (own / "sites.csv").write_text("\n".join(["day,site,level", *rows]) + "\n")
    counts = [f"{n},{int(abs(4 * noisy[n]))}" for n in range(80)]
    (own / "counts.csv").write_text("\n".join(["time,value", *counts]) + "\n")


def write_molecules(folder: Path) -> None:
    """ZINC in its three parts, and a TSV of molecules."""
    (folder / "data/zinc").mkdir()
    rows = [f"{smiles},{number % 7 - 3.5}" for number, smiles in enumerate(SMILES.split())]
    for part, chosen in (("train", rows[:15]), ("validation", rows[15:20]), ("test", rows[20:])):
        (folder / f"data/zinc/{part}.csv").write_text("\n".join(["smiles,score", *chosen]) + "\n")
    rows = ["mol\toxygens", *(f"{smiles}\t{smiles.count('O')}" for smiles in SMILES.split())]
    (folder / "own/molecules.tsv").write_text("\n".join(rows) + "\n")


def write_weights(own: Path) -> None:
    """Random weights in the published layouts: VGG-16's trunk and Inception."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    from torchvision.models import vgg16

    torch.manual_seed(0)
    trunk = vgg16(weights=None).features.state_dict()
    torch.save({f"features.{name}": value for name, value in trunk.items()}, own / "vgg.pth")
    kept = {"load_state_dict": lambda self, state: None}  # its own, random weights
    network = type("Random", (FeatureExtractorInceptionV3,), kept)
    torch.save(network("random", ["2048"], own / "vgg.pth").state_dict(), own / "inception.pth")
