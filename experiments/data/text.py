"""Text as one long row of tokens, tokenised once and memory-mapped ever after.

A corpus is cut into tokens by a byte-level BPE that is trained on its own training part, so nothing is out of
vocabulary and nothing is normalised away. The result lies in a folder of the cache named after its inputs: the text's
bytes, the vocabulary size, the tokenizer library's version. The folder is written aside, synced and renamed when
complete, and holds its files' `sha256`; where they aren't what that says, the text is tokenised anew. `checked` has the
sizes and times of files that were hashed; while these stay, no process hashes them again.
"""

import gzip
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
import torch
from torch import Tensor

from experiments.data.image_cache import cache_folder, data_folder, stamp, sync
from experiments.errors import UserError
from experiments.files import take_lock

TextName = Literal["embedded", "gutenberg", "lm1b", "tinyshakespeare", "wikitext-2", "wikitext-103"]
Part = Literal["train", "held_out"]

# Files of the Hugging Face hub, as `datasets` names them. LM1B's repository holds a script, which `datasets` no longer
# runs, and a branch with the same text as parquet.
HUB: dict[str, dict[Part, str]] = {
    "lm1b": {
        "train": "hf://datasets/billion-word-benchmark/lm1b@refs/convert/parquet/plain_text/train/*.parquet",
        "held_out": "hf://datasets/billion-word-benchmark/lm1b@refs/convert/parquet/plain_text/test/*.parquet",
    },
    **{
        name: {
            "train": f"hf://datasets/Salesforce/wikitext/{name}-raw-v1/train-*.parquet",
            "held_out": f"hf://datasets/Salesforce/wikitext/{name}-raw-v1/validation-*.parquet",
        }
        for name in ("wikitext-2", "wikitext-103")
    },
}
STEMS: dict[Part, tuple[str, ...]] = {"train": ("train", "input"), "held_out": ("valid", "validation", "test")}
HELD_OUT_EVERY = 10  # where a corpus comes in one part, every tenth block of lines is held out
BLOCK = 100
FILES = ("tokenizer.json", "train.bin", "held_out.bin", "counts.json")
TOKEN = np.dtype("<i4")


@dataclass(frozen=True)
class Corpus:
    """Token ids, one-dimensional int32 tensors mapped from the cache; `digest` is a hash of all that made them."""

    name: str
    origin: str
    digest: str
    train: Tensor
    held_out: Tensor
    folder: Path


@dataclass(frozen=True)
class _Source:
    """Where lines come from: `content` identifies them, `lines(part)` reads them afresh."""

    origin: str
    content: str
    lines: Callable[[Part], Iterator[str]]


def open_corpus(name: TextName, vocab_size: int) -> Corpus:
    """The tokens of a text, from the cache (`NOISESCALE_CACHE`, by default ~/.cache/noisescale) or made now.

    A folder `$NOISESCALE_DATA/<name>` with `train` (or `input`) and `valid`, `validation` or `test` as .txt, .txt.gz or
    .parquet (column `text`) comes first, then the hub. `UserError` where there is neither, or where a text is too short
    for the vocabulary.
    """
    source = _find(name)
    recipe = [source.content, str(vocab_size), str(HELD_OUT_EVERY), str(BLOCK), "tokenizers", version("tokenizers")]
    digest = hashlib.sha256("\0".join(recipe).encode()).hexdigest()[:16]
    folder = cache_folder() / "text" / f"{name}-{vocab_size}-{digest}"
    if not _is_whole(folder):
        with _alone(folder.with_suffix(".lock")):
            if not _is_whole(folder):
                if folder.exists():
                    print(f"{folder} is damaged, or has no hash yet: tokenised anew", file=sys.stderr, flush=True)
                _tokenise(source, vocab_size, folder)
    counts = json.loads((folder / "counts.json").read_text())
    parts = {part: _mapped(folder / f"{part}.bin", counts[part]) for part in STEMS}
    return Corpus(name, source.origin, digest, parts["train"], parts["held_out"], folder)


def _is_whole(folder: Path) -> bool:
    """Whether the files are there, and are those that were written."""
    try:
        state = stamp(*(folder / name for name in FILES))
        checked = folder / "checked"
        if checked.exists() and checked.read_text(errors="replace") == state:
            return True
        if (folder / "sha256").read_text(errors="replace") != _sums(folder):
            return False
    except OSError:
        return False
    with suppress(OSError):  # a cache that can't be written is hashed every time
        checked.write_text(state)
    return True


def _sums(folder: Path) -> str:
    """As `sha256sum` writes them."""
    return "".join(f"{_digest(folder / name)}  {name}\n" for name in FILES)


def _mapped(path: Path, count: int) -> Tensor:
    # Copy-on-write: PyTorch has no read-only tensors and warns of arrays that are.
    return torch.from_numpy(np.memmap(path, dtype=TOKEN, mode="c", shape=(count,)))


def _tokenise(source: _Source, vocab_size: int, folder: Path) -> None:
    """Train the tokenizer on the text, then write it and all tokens aside and rename."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(source.lines("train"), trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise UserError(
            f"task.vocab_size={vocab_size}: {source.origin} gives {tokenizer.get_vocab_size()} tokens; "
            f"allowed: {len(alphabet)} (single bytes) to what the text has"
        )
    aside = folder.with_suffix(".aside")
    shutil.rmtree(aside, ignore_errors=True)  # under the lock, a dead process's
    try:
        aside.mkdir(parents=True)
        _write(aside / "tokenizer.json", tokenizer.to_str(pretty=True))
        counts = {part: _write_tokens(aside / f"{part}.bin", source.lines(part), tokenizer) for part in STEMS}
        _write(aside / "counts.json", json.dumps(counts))
        _write(aside / "sha256", _sums(aside))
        if folder.exists():
            shutil.rmtree(folder)
        aside.rename(folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise _unwritable(folder, error) from error


def _write_tokens(path: Path, lines: Iterator[str], tokenizer: Any) -> int:
    """The lines' token ids, one after the other; how many."""
    count = 0
    with open(path, "wb") as file:
        while block := list(islice(lines, 10_000)):
            ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in tokenizer.encode_batch(block)), TOKEN)
            file.write(ids.tobytes())
            count += len(ids)
        sync(file)
    return count


def _write(path: Path, text: str) -> None:
    with open(path, "wb") as file:
        file.write(text.encode())
        sync(file)


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path}: {error.strerror}; make room, or set NOISESCALE_CACHE to another folder; the same command goes on"
    )


def _find(name: TextName) -> _Source:
    if name == "embedded":
        return _embedded()
    folder = data_folder(name)
    train = _first(folder, STEMS["train"]) if folder else None
    if folder and train:
        return _local(name, train, _first(folder, STEMS["held_out"]))
    if name not in HUB:
        root = os.environ.get("NOISESCALE_DATA") or "unset"
        raise UserError(
            f"task.text={name}: no {name}/train.txt, .txt.gz or .parquet under NOISESCALE_DATA ({root})\n"
            "set NOISESCALE_DATA to a folder that has it, or take task.text=embedded, which needs no data"
        )
    return _Source(f"{name} (hub)", json.dumps(HUB[name]), lambda part: _hub_lines(name, part))


def _first(folder: Path, stems: Iterable[str]) -> Path | None:
    paths = (folder / f"{stem}{ending}" for stem in stems for ending in (".txt", ".txt.gz", ".parquet"))
    return next((path for path in paths if path.is_file()), None)


def _local(name: str, train: Path, held_out: Path | None) -> _Source:
    content = [_digest(path) for path in (train, held_out) if path]

    def lines(part: Part) -> Iterator[str]:
        if held_out is None:
            return _blocks(_file_lines(train), part)
        return _file_lines(train if part == "train" else held_out)

    names = train.name if held_out is None else f"{train.name} and {held_out.name}"
    return _Source(f"{name} (local {names})", ":".join(content), lines)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _embedded() -> _Source:
    """Python's own help topics, 460 KB of English and code; they differ a little from one Python to the next."""
    from pydoc_data.topics import topics

    lines = [line + "\n" for key in sorted(topics) for line in topics[key].splitlines()]
    content = hashlib.sha256("".join(lines).encode()).hexdigest()
    return _Source(f"Python's help topics ({content[:8]})", content, lambda part: _blocks(lines, part))


def _blocks(lines: Iterable[str], part: Part) -> Iterator[str]:
    for i, line in enumerate(lines):
        if (i // BLOCK % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) == (part == "held_out"):
            yield line


def _file_lines(path: Path) -> Iterator[str]:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(columns=["text"]):
            yield from (f"{text.as_py().rstrip()}\n" for text in batch.column(0))
        return
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        yield from (f"{line.rstrip()}\n" for line in file)


def _hub_lines(name: str, part: Part) -> Iterator[str]:
    from datasets import load_dataset

    try:
        rows = load_dataset("parquet", data_files={part: HUB[name][part]}, split=part, streaming=True)
        yield from (f"{row['text'].rstrip()}\n" for row in rows)
    except Exception as error:  # the hub's client raises what its HTTP library does
        raise UserError(
            f"task.text={name}: not under NOISESCALE_DATA, and the hub gave {error.__class__.__name__}\n"
            f"put {name}/train.parquet there, run once with a network, or take task.text=embedded, which needs no data"
        ) from None


def _alone(path: Path) -> TextIO:
    """The lock on what is tokenised."""
    try:
        return take_lock(path)
    except OSError as error:
        raise _unwritable(path, error) from error
