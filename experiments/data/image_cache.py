"""Image sets as one uint8 tensor: decoded once into cached files, checked by their hashes, augmented in batches.

A cached set is an `.npy` array of rows (label, pixels), or several of at most `SHARD` bytes, read through memory maps
that all workers of a machine share. Its `.sha256` (as `sha256sum` writes it) is written last, so files without one are
an interrupted write and are decoded again. `.checked` has the sizes and times of files that were hashed; while these
stay, no process hashes them again. `sha256sum -c` in the cache folder always does.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib import format
from torch import Tensor

from experiments.errors import UserError
from experiments.files import take_lock

SHARD = 8 << 30
LABELS = 1 << 16

Pieces = Iterable[tuple[np.ndarray, np.ndarray]]


class Shards:
    """Images (n, channels, height, width) in several files, to be read by index."""

    def __init__(self, parts: Sequence[Tensor]):
        self.parts = parts
        self.starts = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def to(self, device: torch.device) -> Tensor:
        """All of them."""
        return torch.cat([part.to(device) for part in self.parts])

    def __getitem__(self, index: Tensor) -> Tensor:
        shard = torch.searchsorted(self.starts, index, right=True) - 1
        images = torch.empty(len(index), *self.parts[0].shape[1:], dtype=torch.uint8)
        for number in shard.unique().tolist():
            here = shard == number
            images[here] = self.parts[number][index[here] - self.starts[number]]
        return images


class ImageSet(NamedTuple):
    """`images` (n, channels, height, width) uint8 and `labels` (n,) int64."""

    images: Tensor | Shards
    labels: Tensor

    def to(self, device: torch.device) -> "ImageSet":
        return ImageSet(self.images.to(device), self.labels.to(device))


def data_folder(name: str) -> Path | None:
    """The set's folder under NOISESCALE_DATA, or None."""
    root = os.environ.get("NOISESCALE_DATA")
    folder = Path(root, name) if root else None
    return folder if folder and folder.is_dir() else None


def cache_folder() -> Path:
    """NOISESCALE_CACHE, by default ~/.cache/noisescale."""
    return Path(os.environ.get("NOISESCALE_CACHE") or Path.home() / ".cache" / "noisescale")


def missing(name: str, wanted: str, reason: str) -> UserError:
    """The error for a set that is neither on disk nor to be had: what was tried, and both ways out."""
    root = os.environ.get("NOISESCALE_DATA")
    where = f"{wanted} is not under NOISESCALE_DATA={root}" if root else "NOISESCALE_DATA is not set"
    return UserError(
        f"{name}: {where}, and the download failed ({' '.join(reason.split())[:160]})\n"
        f"set NOISESCALE_DATA to a folder that holds {wanted}, or run once with a network (kept in {cache_folder()})"
    )


def stamp(*files: Path) -> str:
    """Names, sizes and times of the files a set is decoded from: other files, another cached file."""
    return ";".join(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)


def cached(name: str, recipe: str, decode: Callable[[], Pieces]) -> ImageSet:
    """The set that `decode` yields in pieces (images (n, c, h, w) uint8, labels (n,)), from the cache if it is there.

    `recipe` is all that the content depends on. `UserError` where the set can't be decoded, a cached file doesn't match
    its hash, or none can be written.
    """
    path = cache_folder() / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.npy"
    if not _digests(path):
        _write(path, _readable(name, decode))
    files = [path.with_name(file) for file in _digests(path)]
    for file in files:
        if not file.exists():
            raise _damaged(path, file, "missing")
    return _open(path, stamp(*files))


def _readable(name: str, decode: Callable[[], Pieces]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    found = 0
    try:
        for images, labels in decode():
            if len(images) != len(labels):
                raise ValueError(f"{len(images):,} images have {len(labels):,} labels")
            if labels.min(initial=0) < 0 or labels.max(initial=0) >= LABELS:
                raise ValueError(f"labels from {labels.min()} to {labels.max()}; allowed: 0 to {LABELS - 1}")
            found += len(labels)
            yield images, labels
        if not found:
            raise ValueError("there is no image in them")
    except (UserError, MemoryError):
        raise
    except Exception as error:  # Pillow, SciPy and Arrow raise all kinds on bytes that are none of theirs
        raise UserError(
            f"{name}: its files cannot be decoded ({type(error).__name__}: {' '.join(str(error).split())[:160]})\n"
            "one of them is damaged or cut short: fetch the set again"
        ) from error


def _mark(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _checked(path: Path) -> Path:
    return path.with_suffix(".checked")


def _digests(path: Path) -> dict[str, str]:
    """The set's files and their SHA-256, by its mark; none where a write was interrupted."""
    text = _mark(path).read_text(errors="replace") if _mark(path).exists() else ""
    return {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (.+)$", text, re.MULTILINE)}


def _write(path: Path, pieces: Pieces) -> None:
    """One process writes, aside, and those that would do so meanwhile wait for it."""
    asides = [path.with_suffix(".lock")]
    written = 0

    def rows() -> Iterator[np.ndarray]:
        nonlocal written
        for images, labels in pieces:
            yield _rows(images, labels)
            written += len(labels)

    try:
        with take_lock(asides[0]):
            if not _digests(path):
                _write_shards(path, rows(), asides)
    except OSError as error:
        room = f"{shutil.disk_usage(path.parent).free >> 20} MB free" if path.parent.is_dir() else "no such folder"
        raise UserError(
            f"cannot write {path} after {written:,} images: {error.strerror} ({room})\n"
            "free some space, or set NOISESCALE_CACHE to a folder that can be written"
        ) from None
    finally:
        for aside in asides if path.parent.is_dir() else ():
            aside.unlink(missing_ok=True)


def _write_shards(path: Path, rows: Iterator[np.ndarray], asides: list[Path]) -> None:
    """Piece by piece, so that a set may be larger than the memory; synced, then renamed; the mark last. What is made
    aside is added to `asides`.

    (`np.save` would pass over a full disk in silence.)
    """

    def aside() -> Path:
        asides.append(path.with_suffix(f".{len(asides)}.{os.getpid()}.tmp"))
        return asides[-1]

    shards: dict[Path, Path] = {}
    piece = next(rows, None)
    while piece is not None:
        dtype, count = piece.dtype, 0
        with aside().open("wb") as file:
            _header(file, dtype, 0)
            while piece is not None and (not count or file.tell() + piece.nbytes <= SHARD):
                file.write(piece.view(np.uint8).data)
                count += len(piece)
                piece = next(rows, None)
            file.seek(0)
            _header(file, dtype, count)
            sync(file)
        shards[asides[-1]] = path.with_suffix(f".{len(shards)}.npy" if shards else ".npy")
    mark = "".join(f"{_digest(shard)}  {file.name}\n" for shard, file in shards.items())
    for shard, file in shards.items():
        shard.replace(file)
    _checked(path).write_text(stamp(*shards.values()))
    with aside().open("wb") as file:
        file.write(mark.encode())
        sync(file)
    asides[-1].replace(_mark(path))


def _rows(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    rows = np.empty(len(labels), dtype=[("label", "<u2"), ("image", "u1", images.shape[1:])])
    rows["label"], rows["image"] = labels, images
    return rows


def sync(file: BinaryIO) -> None:
    """To the disk, so that no later rename is there before it."""
    file.flush()
    os.fsync(file.fileno())


def _header(file: BinaryIO, dtype: np.dtype, count: int) -> None:
    """Of the `.npy` format, which leaves room for any `count`."""
    shape = {"descr": format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    format.write_array_header_1_0(file, shape)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(path: Path, file: Path, how: str) -> UserError:
    return UserError(
        f"{file} is {how}: its SHA-256 is not the one in {_mark(path).name}\n"
        f"delete the set (rm {path.with_suffix('')}.*) and run again; the images are then decoded anew"
    )


@lru_cache(maxsize=8)
def _open(path: Path, state: str) -> ImageSet:
    """`state` is the files' stamp; they are hashed where it isn't the one that was checked before."""
    digests, checked = _digests(path), _checked(path)
    if not checked.exists() or checked.read_text(errors="replace") != state:
        for name, digest in digests.items():
            if _digest(path.with_name(name)) != digest:
                raise _damaged(path, path.with_name(name), "damaged")
        with suppress(OSError):  # a cache that can't be written is hashed every time
            checked.write_text(state)
    shards = [np.load(path.with_name(name), mmap_mode="c", allow_pickle=False) for name in digests]
    images = [torch.from_numpy(rows["image"]) for rows in shards]
    labels = np.concatenate([rows["label"].astype(np.int64) for rows in shards])
    return ImageSet(images[0] if len(images) == 1 else Shards(images), torch.from_numpy(labels))


def subset(population: int, size: int, seed: int = 0) -> Tensor:
    """(size,) distinct indices below `population` in random order, the same on every machine."""
    if size > population:
        raise UserError(f"task.eval_examples={size} of a set of {population:,} images\nallowed: at most {population:,}")
    return torch.randperm(population, generator=torch.Generator().manual_seed(seed))[:size]


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(n, c, h, w) uint8 → float32, (pixel/255 − mean)/std by channel."""
    shape = (1, -1, 1, 1)
    scale = torch.tensor([1 / (255 * s) for s in std], device=images.device).view(shape)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=images.device).view(shape)
    return torch.addcmul(shift, images, scale)


def channels_last(images: Tensor) -> Tensor:
    """The same (n, c, h, w) laid out channel by channel of each pixel, which convolutions on a CPU are fastest with.

    `contiguous(memory_format=torch.channels_last)` does it too, but not under `vmap`.
    """
    return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def crop_and_flip(images: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """Each image padded with `pad` black pixels a side, cropped back at random, and mirrored with probability ½.

    (n, c, h, w) uint8 in and out. The draws are the generator's, on its device; the pixels stay on theirs.
    """
    n, channels, height, width = images.shape

    def drawn(values: int) -> Tensor:
        return torch.randint(values, (n, 1, 1), generator=generator, device=generator.device).to(images.device)

    down, right, mirrored = drawn(2 * pad + 1), drawn(2 * pad + 1), drawn(2)
    column = torch.arange(width, device=images.device)
    column = torch.where(mirrored == 1, width - 1 - column, column) + right
    row = torch.arange(height, device=images.device).view(1, -1, 1) + down
    place = (row * (width + 2 * pad) + column).view(n, 1, -1).expand(-1, channels, -1)
    return F.pad(images, (pad,) * 4).flatten(2).gather(2, place).view_as(images)
