"""One store: files and folders that no crash tears and that tell when a bit of them was altered.

A stored file is JSON, arrays (an `.npz`) or tensors (safetensors). In it stand its kind, the number
of its format, and the SHA-256 of the whole file, counted with zeros where that hash stands.

Writers work aside in a file or folder of their own, force it onto the disk and rename it. Readers
check the hash over all that they load before they parse it, and raise a `DamagedFileError`, an
`OtherFormatError` or a `ForeignFileError` that names the file. Nothing is unpickled. Torch is
loaded with the first tensors.
"""

import hashlib
import io
import json
import mmap
import os
import re
import secrets
import shutil
import socket
import struct
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from filelock import FileLock, Timeout

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from torch.nn import Module

ASIDE = ".tmp-"
"""Begin of the names of what is being written."""
LOCK = ".lock"
"""Name of a folder's lock file, which stays: removing it would let two processes in."""
_UNSEALED = f"sha256:{64 * '0'}"
_SEAL = re.compile(rb"sha256:([0-9a-f]{64})")
_END_OF_ZIP, _END_SIZE = b"PK\x05\x06", 22


class DamagedFileError(ValueError):
    """A file is not what was written."""


class OtherFormatError(ValueError):
    """A file is of another number of its format."""


class ForeignFileError(ValueError):
    """A file is of another kind, or none of probseq's."""


class InUseError(OSError):
    """Another process has the lock of a file or folder."""


class Format(NamedTuple):
    """Kind of a file, and the number of its format, which counts up with each change."""

    kind: str  # a noun for messages, such as "token cache"
    number: int

    def __str__(self) -> str:
        """Return both in words."""
        return f"a {self.kind} of format {self.number}"


# Plain files


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file at once, or leave what is there."""
    with _aside(path) as aside:
        aside.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def _aside(path: Path) -> Generator[Path]:
    """Yield a path to write to, then put it in place of another."""
    with named(path):
        aside = _name_aside(path.parent, path.name)
        try:
            yield aside
            sync(aside)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        sync(path.parent)


@contextmanager
def named(path: Path) -> Generator[None]:
    """Name what is written in an error of the machine, such as a full disk, as an OSError."""
    try:
        yield
    except Exception as error:
        number = None
        if isinstance(error, OSError) and ASIDE in str(error.filename or ASIDE):
            number = error.errno
        elif type(error).__name__ == "SafetensorError":  # it tells the number in words alone
            match = re.search(r"os error (\d+)", str(error))
            number = int(match[1]) if match else None
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def _name_aside(folder: Path, name: str) -> Path:
    """Return a path in a folder that is this writer's alone; remove what killed ones left there."""
    _remove_leftovers(folder.absolute(), os.getpid())
    writer = f"{_machine()}-{os.getpid()}-{secrets.token_hex(4)}"
    return folder / f"{ASIDE}{writer}-{name[-40:]}"  # long names would become too long


@cache
def _remove_leftovers(folder: Path, _: int) -> None:
    # Once a process and folder: folders of many files are slow to list. Elsewhere than on POSIX
    # systems signal 0 is no question but ends the process.
    for path in folder.glob(f"{ASIDE}{_machine()}-*") if os.name == "posix" else ():
        with suppress(ValueError, OSError):
            try:
                os.kill(int(path.name.split("-")[2]), 0)
            except ProcessLookupError:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@cache
def _machine() -> str:
    """Return a name for what process numbers count in: a machine, or a container on it."""
    space = ""
    with suppress(OSError):
        space = str(Path("/proc/self/ns/pid").readlink())
    return hashlib.sha256(f"{socket.gethostname()} {space}".encode()).hexdigest()[:8]


def sync(path: Path) -> None:
    """Force a file, or a folder's list of names, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def sole_use(
    path: Path, task: str = "", *, wait: Callable[[], object] | None = None
) -> Generator[None]:
    """Keep other processes out of a file, a folder or a task in it; one that dies gives it back.

    The lock is a file `.lock` (`.lock-TASK`) in the folder, or `.NAME.lock` beside the file. With
    `wait`, which is called first, another's end is waited for; without it an InUseError is raised.
    """
    name = f"{LOCK}-{task.replace('/', '-')}" if task else LOCK
    lock = FileLock(path / name if path.is_dir() else path.with_name(f".{path.name}{name}"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        if wait is None:
            raise InUseError(
                f"another process works in {path}: wait for its end, or choose another"
            ) from error
        wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


# JSON, arrays and tensors


def _read(path: Path, form: Format) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be {form}, and is missing")
    return path.read_bytes()


def write_json(path: Path, form: Format, values: Mapping[str, Any]) -> None:
    """Write values that JSON can hold; as of arrays and tensors, the file's folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = _head(form, values, indent=2, allow_nan=False) + "\n"
    write_atomic(path, bytes(_sealed(text.encode())))


def read_json(path: Path, form: Format) -> dict[str, Any]:
    """Read what `write_json` wrote, or the values that `write_tensors` wrote beside tensors."""
    return unpack_head(_read(path, form), form, str(path))


def write_arrays(path: Path, form: Format, arrays: "Mapping[str, NDArray[Any]]") -> None:
    """Write arrays by name, as `numpy.load` reads them."""
    import numpy as np  # late: a command line reads JSON alone

    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez(content, **cast("dict[str, Any]", arrays))
    with zipfile.ZipFile(content, "a") as archive:
        archive.comment = _head(form, {}).encode()
    write_atomic(path, bytes(_sealed(content.getvalue())))


def read_arrays(path: Path, form: Format) -> "dict[str, NDArray[Any]]":
    """Read what `write_arrays` wrote."""
    import numpy as np  # late: a command line reads JSON alone

    content = _read(path, form)
    unpack_head(content, form, str(path))
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def write_tensors(
    path: Path, form: Format, head: Mapping[str, Any], tensors: Mapping[str, "Tensor"]
) -> None:
    """Write tensors by name, and values that JSON can hold, as a safetensors file."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    with _aside(path) as aside:
        on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(on_cpu, aside, metadata={"head": _head(form, head)})
        with aside.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            _seal(content)


def pack_arrays(
    form: Format, head: Mapping[str, Any], arrays: "Mapping[str, NDArray[Any]]"
) -> bytes:
    """Return the bytes of such a file of arrays, without torch."""
    from safetensors.numpy import save

    return bytes(_sealed(save(dict(arrays), metadata={"head": _head(form, head)})))


def unpack_arrays(
    content: bytes, form: Format, source: str
) -> "tuple[dict[str, Any], dict[str, NDArray[Any]]]":
    """Read the bytes of `pack_arrays`; the source is the name of them in errors."""
    from safetensors.numpy import load

    return unpack_head(content, form, source), load(content)


def read_tensors(
    path: Path, form: Format, *, mapped: bool = False
) -> tuple[dict[str, Any], dict[str, "Tensor"]]:
    """Read the values and tensors, on the CPU, that `write_tensors` wrote.

    Mapped tensors stay on the disk until they are used; their hash is checked all the same.
    """
    from safetensors.torch import load, load_file

    if not mapped or not path.is_file() or path.stat().st_size == 0:
        content = _read(path, form)
        # Their order is another each time.
        return unpack_head(content, form, str(path)), dict(sorted(load(content).items()))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        head = unpack_head(content, form, str(path))
    return head, load_file(path)


def hash_tensors(tensors: Mapping[str, "Tensor"], *texts: bytes) -> str:
    """Return the hexadecimal SHA-256 of texts, and of names, dtypes, shapes and bytes of tensors.

    It is the same on every device, and in every order of the names.
    """
    import torch

    digest = hashlib.sha256(b"".join(texts))
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def unwrap(module: "Module") -> "Module":
    """Return the module in wrappers (DDP, compiled modules)."""
    from torch import nn

    while isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel) or hasattr(
        module, "_orig_mod"
    ):
        module = cast("Module", getattr(module, "_orig_mod", None) or module.module)
    return module


def hash_module(module: "Module", *more: bytes) -> str:
    """Return the SHA-256 of all of a module's state, packed and quantised weights included.

    So are further texts. Names of wrappers (DDP, compiled modules) do not count.
    """
    tensors, texts = dict[str, "Tensor"](), list[str]()

    import torch

    def add(name: str, value: Any) -> None:
        if isinstance(value, tuple | list):
            for number, each in enumerate(cast("list[Any]", value)):
                add(f"{name}/{number}", each)
        elif not isinstance(value, torch.Tensor):
            if value is not None and not isinstance(value, bool | int | float | str | torch.dtype):
                raise ValueError(f"state {name} must be of tensors, got {type(value).__name__}")
            texts.append(f"{name}={value};")
        elif value.is_meta or value.layout != torch.strided:
            raise ValueError(f"state {name} must have its values in memory to be hashed")
        elif whole := getattr(value, "full_tensor", None):  # of FSDP
            add(name, whole())
        elif value.is_quantized:
            add(f"{name}/int", value.int_repr())
            add(f"{name}/values", value.dequantize())
        elif flatten := getattr(value, "__tensor_flatten__", None):  # of torchao
            names, context = flatten()
            add(f"{name}/context", repr(context))
            for each in names:
                add(f"{name}/{each}", getattr(value, each))
        else:
            tensors[name] = value

    for key, value in unwrap(module).state_dict().items():
        add(key.replace("_orig_mod.", ""), value)
    return hash_tensors(tensors, *more, "".join(sorted(texts)).encode())


# Heads and hashes


def _head(form: Format, values: Mapping[str, Any], **options: Any) -> str:
    head: dict[str, Any] = {"kind": form.kind, "format": form.number, "seal": _UNSEALED}
    if twice := head.keys() & values.keys():
        raise ValueError(f"values must not be named {min(twice)}, as the file's own")
    return json.dumps({**head, **values}, **options)


def _sealed(content: bytes) -> bytearray:
    sealed = bytearray(content)
    _seal(sealed)
    return sealed


def _seal(content: bytearray | mmap.mmap) -> None:
    """Write the hash of a file in place of the zeros in its head."""
    start, end = _head_span(content)
    seal = _SEAL.search(content[start:end])
    assert seal is not None
    first = start + seal.start(1)
    content[first : first + 64] = _hash(content, first).encode()


def _head_span(content: bytes | bytearray | mmap.mmap) -> tuple[int, int]:
    """Return begin and end of the text that has the head of a file."""
    if content[:1] == b"{":  # JSON
        return 0, len(content)
    if content[:2] == b"PK":  # the comment of a zip archive, at its end
        return content.rfind(_END_OF_ZIP) + _END_SIZE, len(content)
    (size,) = struct.unpack("<Q", content[:8])  # safetensors begin with the length of their head
    return 8, 8 + size


def _hash(content: bytes | bytearray | mmap.mmap, first: int) -> str:
    """Return the SHA-256 of a file, with zeros for its 64 digits of hash from `first` on."""
    with memoryview(content) as whole, whole[:first] as before, whole[first + 64 :] as after:
        digest = hashlib.sha256(before)
        digest.update(64 * b"0")
        digest.update(after)
    return digest.hexdigest()


def unpack_head(content: bytes | mmap.mmap, form: Format, source: str) -> dict[str, Any]:
    """Return the values in a file of a format, without torch, and check all of it."""
    try:
        start, end = _head_span(content)
        text = content[start:end]
        head = json.loads(text)
        if start == 8:
            head = head["__metadata__"]
            head = json.loads(head["head"]) if "head" in head else head
        kind, number = head.get("kind", form.kind), head.get("format", head.get("schema"))
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise DamagedFileError(f"{source} is damaged, or is not {form}") from error
    seal = _SEAL.search(text)
    whole = seal is not None and _hash(content, start + seal.start(1)) == seal[1].decode()
    # Nobody knows the format of an altered file; those of older formats have another hash.
    if (kind, number) != form and (whole or seal is None):
        if kind != form.kind or number is None:
            actual = f"a {kind}" if "kind" in head else "no file of probseq"
            raise ForeignFileError(f"{source} must be {form}, and is {actual}")
        raise OtherFormatError(
            f"{source} is {Format(kind, number)}, and this version of probseq reads format "
            f"{form.number}: read it with the version that wrote it, or make it anew"
        )
    if not whole:
        raise DamagedFileError(
            f"{source} is damaged: it does not hold what was written; copy it again, or delete it "
            "and make it anew"
        )
    return {name: head[name] for name in head if name not in ("kind", "format", "seal")}


# Folders


@contextmanager
def replace_files(folder: Path, last: str = "") -> Generator[Path]:
    """Yield a directory aside to write the files of a folder into, then put them in place.

    A new folder appears at once. Files of one that is there are replaced by those of their names,
    that of the name `last` behind all others: it may have their hashes, so that what a killed
    writer leaves can be told.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder must be a directory, got the file {folder}")
    parent = folder if folder.is_dir() else folder.parent  # on the same disk
    with named(folder):
        parent.mkdir(parents=True, exist_ok=True)
        aside = _name_aside(parent, folder.name)
        aside.mkdir()
        try:
            yield aside
            files = [path.relative_to(aside) for path in aside.rglob("*") if path.is_file()]
            for file in files:
                sync(aside / file)
            if folder.is_dir():
                for file in sorted(files, key=lambda file: (str(file) == last, file)):
                    (folder / file).parent.mkdir(parents=True, exist_ok=True)
                    (aside / file).replace(folder / file)
                sync(folder)
            else:
                aside.rename(folder)
                sync(parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
