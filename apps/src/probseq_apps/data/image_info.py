"""Facts about the standard image sets: sizes, class names, normalisation, where files may lie."""

from dataclasses import dataclass

_TEN_DIGITS = tuple("0123456789")
_FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    """What is known of a standard set before any file is opened.

    ``mean`` and ``std`` are the customary constants (for CIFAR-10 those of the thesis' authors).
    ``folders`` are the folders under the data directory that may hold the files.
    """

    channels: int
    size: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_count: int
    test_count: int
    folders: tuple[str, ...]
    formats: str


IMAGE_INFO: dict[str, ImageInfo] = {
    "mnist": ImageInfo(
        channels=1,
        size=28,
        class_names=_TEN_DIGITS,
        mean=(0.1307,),
        std=(0.3081,),
        train_count=60_000,
        test_count=10_000,
        folders=("mnist", "MNIST", "MNIST/raw"),
        formats="mnist/mnist.npz, mnist/{part}*.parquet or MNIST/raw/*-idx?-ubyte[.gz]",
    ),
    "fashion-mnist": ImageInfo(
        channels=1,
        size=28,
        class_names=_FASHION,
        mean=(0.2860,),
        std=(0.3530,),
        train_count=60_000,
        test_count=10_000,
        folders=(
            "fashion-mnist",
            "fashion_mnist",
            "FashionMNIST",
            "FashionMNIST/raw",
            "fashion_mnist_test_part",
        ),
        formats="fashion-mnist/*.npz, fashion-mnist/{part}*.parquet or "
        "FashionMNIST/raw/*-idx?-ubyte[.gz]",
    ),
    "cifar10": ImageInfo(
        channels=3,
        size=32,
        class_names=tuple(_CIFAR10.split()),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        train_count=50_000,
        test_count=10_000,
        folders=("cifar10", "CIFAR10"),
        formats="cifar10/{part}*.parquet, cifar-10-batches-bin, cifar-10-batches-py or their "
        ".tar.gz archives",
    ),
    "cifar100": ImageInfo(
        channels=3,
        size=32,
        class_names=tuple(_CIFAR100.split()),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        train_count=50_000,
        test_count=10_000,
        folders=("cifar100", "CIFAR100"),
        formats="cifar100/{part}*.parquet, cifar-100-binary, cifar-100-python or their .tar.gz "
        "archives",
    ),
    "svhn": ImageInfo(
        channels=3,
        size=32,
        class_names=_TEN_DIGITS,
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        train_count=73_257,
        test_count=26_032,
        folders=("svhn", "SVHN"),
        formats="{part}_32x32.mat, svhn/{part}_32x32.mat or svhn/{part}*.parquet",
    ),
}
