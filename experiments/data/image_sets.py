"""Where the images come from: SVHN, CIFAR-10 and the ImageNet family, their training splits as `ImageSet`s.

First from NOISESCALE_DATA, else from the official download (torchvision, the Hugging Face hub); decoded once.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments.data.image_cache import ImageSet, cache_folder, cached, data_folder, missing, stamp
from experiments.errors import UserError

SVHN_SIZES = {"test-10k": 8_000, "train": 73_257, "train+extra": 604_388}
IMAGENETS = {
    "tiny-imagenet": ("tiny-imagenet-32", "zh-plus/tiny-imagenet", 200),
    "imagenette": ("imagenette", "frgfm/imagenette", 10),
    "imagenet": ("imagenet", "ILSVRC/imagenet-1k", 1000),
}
SvhnSource = Literal["test-10k", "train", "train+extra"]
ImagenetSource = Literal["tiny-imagenet", "imagenette", "imagenet"]
PIECE = 4096


def svhn(source: SvhnSource) -> ImageSet:
    """(n, 3, 32, 32). "test-10k": the first 8,000 crops of the official test split."""
    if source == "test-10k":
        local = data_folder("svhn")
        files = (
            [local / "train_32x32.mat"]
            if local and _crops(local / "train_32x32.mat") == SVHN_SIZES[source]
            else [_svhn_file("test")]
        )
    else:
        files = [_svhn_file(split) for split in source.split("+")]
    found = sum(_crops(file) for file in files)
    if found < SVHN_SIZES[source] or (source != "test-10k" and found != SVHN_SIZES[source]):
        raise UserError(
            f"{' + '.join(map(str, files))}: {found:,} crops, but task.source={source} has {SVHN_SIZES[source]:,}\n"
            "put the official .mat files there, or unset NOISESCALE_DATA to download them, or set task.source=test-10k"
        )

    def decode() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        from scipy.io import loadmat

        for file in files:
            mat = loadmat(file)
            images, labels = mat["X"].transpose(3, 2, 0, 1), mat["y"].ravel()
            if len(images) != len(labels) or labels.min() < 1 or labels.max() > 10:
                raise ValueError(f"{file.name}: y is not a label from 1 to 10 for each of {len(images):,} images")
            keep = slice(SVHN_SIZES[source])
            yield images[keep], labels[keep] % 10

    return cached(f"svhn-{source}", f"{source} {stamp(*files)}", decode)


def _crops(file: Path) -> int:
    """How many images a .mat file holds, from its header."""
    from scipy.io import whosmat

    if not file.is_file():
        return 0
    try:
        return {name: shape for name, shape, _ in whosmat(file)}["X"][3]
    except Exception as error:  # SciPy raises all kinds
        raise UserError(
            f"{file} is not an SVHN .mat file (X of 32 x 32 x 3 x n), or is cut short\ndelete it and download it again"
        ) from error


def _svhn_file(split: str) -> Path:
    name = f"{split}_32x32.mat"
    local = data_folder("svhn")
    if local and (local / name).is_file():
        return local / name
    from torchvision.datasets import SVHN

    root = cache_folder() / "downloads"
    try:
        SVHN(str(root), split=split, download=True)
    except (OSError, RuntimeError, HTTPException) as error:
        raise missing(f"SVHN ({split})", f"svhn/{name}", str(error)) from None
    return root / name


def cifar10() -> ImageSet:
    """(50000, 3, 32, 32): the training split."""
    local = data_folder("cifar10")
    if local and (local / "train.parquet").is_file():
        file = local / "train.parquet"
        return cached("cifar10", stamp(file), lambda: _decoded(_parquet([file]), 32, 10, 10, None))
    from torchvision.datasets import CIFAR10

    root = cache_folder() / "downloads"
    try:
        official = CIFAR10(str(root), train=True, download=True)
    except (OSError, RuntimeError, HTTPException) as error:
        raise missing("CIFAR-10", "cifar10/train.parquet", str(error)) from None
    return cached("cifar10", "official", lambda: [(official.data.transpose(0, 3, 1, 2), np.array(official.targets))])


def imagenet(source: ImagenetSource, resolution: int, classes: int, images_per_class: int | None) -> ImageSet:
    """(n, 3, resolution, resolution): the first `images_per_class` (None: all) of the first `classes` classes."""
    folder, hub, limit = IMAGENETS[source]
    if classes > limit:
        raise UserError(f"task.classes={classes}, but {source} has {limit}\nallowed: at most {limit}")
    recipe = f"{source} {resolution} {classes} {images_per_class}"

    def keep(key: str, rows: Callable[[], Iterable[Mapping[str, Any]]]) -> ImageSet:
        def decode() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            pieces = _decoded(rows(), resolution, limit, classes, images_per_class)
            return _whole(pieces, source, classes, images_per_class)

        return cached(source, f"{recipe} {key}", decode)

    local = data_folder(folder)
    files = sorted(local.glob("train*.parquet")) if local else []
    if files:
        return keep(stamp(*files), lambda: _parquet(files))
    if local and (local / "train").is_dir():
        pictures = _folder(local / "train", classes)
        return keep(
            ";".join(f"{label} {stamp(file)}" for label, file in pictures),
            lambda: ({"image": {"bytes": None, "path": str(file)}, "label": label} for label, file in pictures),
        )
    return keep(hub, lambda: _hub(source, folder, hub))


def _whole(
    pieces: Iterable[tuple[np.ndarray, np.ndarray]], source: str, classes: int, per_class: int | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The pieces; at their end `UserError` unless each of the classes had its images."""
    taken: Counter[int] = Counter()
    for images, labels in pieces:
        taken.update(labels.tolist())
        yield images, labels
    if taken and len(taken) < classes:
        raise UserError(
            f"task.classes={classes}, but the {source} that is here has images of {len(taken)} of them\n"
            f"allowed: at most {next(label for label in range(classes) if not taken[label])}, or fetch the whole set"
        )
    if per_class and (fewest := min(taken.values())) < per_class:
        raise UserError(
            f"task.images_per_class={per_class}, but of a class of the {source} that is here there are {fewest}\n"
            f"allowed: at most {fewest}, or null for all of each"
        )


def _parquet(files: list[Path]) -> Iterator[Mapping[str, Any]]:
    from datasets import Image, load_dataset, logging

    logging.set_verbosity(logging.CRITICAL)  # of a file that is none it logs what it then raises
    rows = load_dataset("parquet", data_files=[str(file) for file in files], split="train", streaming=True)
    return iter(rows.cast_column("image", Image(decode=False)))


def _hub(source: str, folder: str, hub: str) -> Iterator[Mapping[str, Any]]:
    from datasets import Image, load_dataset
    from huggingface_hub import HfApi
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # its retries without a network are a dozen lines, and ours says what to do
    try:
        HfApi().dataset_info(hub, timeout=10)  # tried once: `load_dataset` tries for minutes
        yield from load_dataset(hub, split="train", streaming=True).cast_column("image", Image(decode=False))
    except Exception as error:  # the hub's client raises what its HTTP library does
        raise missing(f"{source} ({hub})", f"{folder}/train.parquet", str(error)) from None


def _folder(train: Path, classes: int) -> list[tuple[int, Path]]:
    """(label, picture) of the first `classes` classes: one folder a class, in the order of their names."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    folders = sorted(path for path in train.iterdir() if path.is_dir())[:classes]
    return [
        (label, file)
        for label, folder in enumerate(folders)
        for file in sorted(folder.rglob("*.*"))
        if file.suffix.lower() in IMG_EXTENSIONS
    ]


def _decoded(
    rows: Iterable[Mapping[str, Any]], resolution: int, known: int, classes: int, per_class: int | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images as uint8 in pieces, the first `per_class` of the first `classes` of the set's `known` classes.

    Where the size differs, the shorter side is resized and the middle kept.
    """
    from PIL import Image, ImageOps

    taken: Counter[int] = Counter()
    images: list[np.ndarray] = []
    labels: list[int] = []
    for row in rows:
        label = row["label"]
        if not 0 <= label < known:
            raise ValueError(f"a label {label}; allowed: 0 to {known - 1}")
        if label >= classes or taken[label] == per_class:
            continue
        taken[label] += 1
        content = row["image"]["bytes"]
        with Image.open(row["image"]["path"] if content is None else io.BytesIO(content)) as image:
            image = image.convert("RGB")
            if image.size != (resolution, resolution):
                image = ImageOps.fit(image, (resolution, resolution), Image.Resampling.BICUBIC)
            images.append(np.asarray(image).transpose(2, 0, 1))
        labels.append(label)
        if len(images) == PIECE:
            yield np.stack(images), np.array(labels)
            images, labels = [], []
    if images:
        yield np.stack(images), np.array(labels)
