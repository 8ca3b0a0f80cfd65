"""Image sets as one uint8 tensor: decoded once into a cached file, checked by its hash, augmented in batches.

A cached set is one `.npy` array of rows (label, pixels), read through a memory map that all workers of a machine
share. Its `.sha256` (as `sha256sum` writes it) is written last, so a file without one is an interrupted write and is
decoded again.
"""

import hashlib
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib import format
from torch import Tensor

from experiments.errors import UserError


class ImageSet(NamedTuple):
    """`images` (n, channels, height, width) uint8 and `labels` (n,) int64."""

    images: Tensor
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


def cached(name: str, recipe: str, decode: Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]) -> ImageSet:
    """The set that `decode` yields in pieces (images (n, c, h, w) uint8, labels (n,)), from the cache if it is there.

    `recipe` is all that the content depends on. `UserError` where the cached file doesn't match its hash, or cannot be
    written.
    """
    path = cache_folder() / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.npy"
    if not _mark(path).exists():
        _write(path, _readable(name, decode()))
    state = path.stat() if path.exists() else None
    return _open(path, (state.st_size, state.st_mtime_ns) if state else None)


def _readable(name: str, pieces: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    try:
        yield from pieces
    except (OSError, ValueError, TypeError, KeyError, zlib.error) as error:
        raise UserError(
            f"{name}: its files cannot be decoded ({type(error).__name__}: {' '.join(str(error).split())[:160]})\n"
            "one of them is damaged or cut short: fetch the set again"
        ) from error


def _mark(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _write(path: Path, pieces: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
    """Piece by piece, so that a set may be larger than the memory; aside, then renamed; the mark last.

    (`np.save` would pass over a full disk in silence.)
    """
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    rows, written = np.empty(0), 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            for images, labels in pieces:
                rows = np.empty(len(labels), dtype=[("label", "<u2"), ("image", "u1", images.shape[1:])])
                rows["label"], rows["image"] = labels, images
                if not written:
                    _header(file, rows.dtype, 0)
                file.write(rows.view(np.uint8).data)
                written += len(rows)
            file.seek(0)
            _header(file, rows.dtype, written)
        digest = _digest(aside)
        aside.replace(path)
        aside.write_text(f"{digest}  {path.name}\n")
        aside.replace(_mark(path))
    except OSError as error:
        if not path.parent.is_dir():
            room = "no such folder"
        else:
            aside.unlink(missing_ok=True)
            room = f"{shutil.disk_usage(path.parent).free >> 20} MB free"
        raise UserError(
            f"cannot write {path} after {written:,} images: {error.strerror} ({room})\n"
            "free some space, or set NOISESCALE_CACHE to a folder that can be written"
        ) from None
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _header(file: BinaryIO, dtype: np.dtype, count: int) -> None:
    """Of the `.npy` format, which leaves room for any `count`."""
    shape = {"descr": format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    format.write_array_header_1_0(file, shape)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=8)
def _open(path: Path, state: tuple[int, int] | None) -> ImageSet:
    """Hashed once per process and file state."""
    if state is None or _digest(path) != _mark(path).read_text().split()[0]:
        raise UserError(
            f"{path} is {'missing' if state is None else 'damaged'}: its SHA-256 is not the one in {_mark(path).name}\n"
            f"delete the two (rm {path.with_suffix('')}.*) and run again; the images are then decoded anew"
        )
    rows = np.load(path, mmap_mode="c", allow_pickle=False)
    return ImageSet(torch.from_numpy(rows["image"]), torch.from_numpy(rows["label"].astype(np.int64)))


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
