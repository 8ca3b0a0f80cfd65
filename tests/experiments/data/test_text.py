import gzip
import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer

import experiments.data.text as text_data
from experiments.data.text import open_corpus
from experiments.errors import UserError

LINES = [
    f"Line {i} of a text that says {'one thing' if i % 3 else 'another'}, naïvely – {i * i}.\n" for i in range(1200)
]


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """A cache of its own and no data, unless the test puts some there."""
    monkeypatch.setenv("NOISESCALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NOISESCALE_DATA", str(tmp_path / "data"))


def write(folder, name, lines, opened=open):
    (folder / "data" / "gutenberg").mkdir(parents=True, exist_ok=True)
    with opened(folder / "data" / "gutenberg" / name, "wt", encoding="utf-8") as file:
        file.writelines(lines)


def text_of(corpus, part) -> str:
    tokenizer = Tokenizer.from_file(str(corpus.folder / "tokenizer.json"))
    return tokenizer.decode(getattr(corpus, part).tolist())


def test_embedded_text_needs_neither_data_nor_network():
    from pydoc_data.topics import topics

    corpus = open_corpus("embedded", 400)
    both = text_of(corpus, "train") + text_of(corpus, "held_out")
    assert len(both) == sum(len(line) + 1 for text in topics.values() for line in text.splitlines())
    assert set(corpus.train.unique().tolist()) <= set(range(400))
    assert len(corpus.held_out) == pytest.approx(len(corpus.train) / 9, rel=0.2)


def test_tokens_decode_to_the_text_byte_for_byte(tmp_path):
    write(tmp_path, "train.txt", LINES[:1000])
    write(tmp_path, "valid.txt", [*LINES[1000:], "Ωmega, unseen in training: 漢字 \u0007\n"])
    corpus = open_corpus("gutenberg", 300)
    assert text_of(corpus, "train") == "".join(LINES[:1000])
    assert text_of(corpus, "held_out") == "".join(LINES[1000:]) + "Ωmega, unseen in training: 漢字 \u0007\n"


def test_plain_gzip_and_parquet_hold_the_same_text(tmp_path):
    tokens = {}
    for ending in (".txt", ".txt.gz", ".parquet"):
        for part, lines in (("train", LINES[:1000]), ("test", LINES[1000:])):
            if ending == ".parquet":
                table = pa.table({"id": range(len(lines)), "text": [line.rstrip("\n") for line in lines]})
                pq.write_table(table, tmp_path / "data" / "gutenberg" / f"{part}.parquet")
            else:
                write(tmp_path, f"{part}{ending}", lines, gzip.open if ending == ".txt.gz" else open)
        tokens[ending] = open_corpus("gutenberg", 300)
        for part in ("train", "test"):
            (tmp_path / "data" / "gutenberg" / f"{part}{ending}").unlink()
    assert len({corpus.folder for corpus in tokens.values()}) == 3
    for corpus in tokens.values():
        assert torch.equal(corpus.train, tokens[".txt"].train)
        assert torch.equal(corpus.held_out, tokens[".txt"].held_out)


def test_a_text_in_one_part_loses_every_tenth_block_of_lines(tmp_path):
    write(tmp_path, "train.txt", LINES)
    corpus = open_corpus("gutenberg", 300)
    assert text_of(corpus, "held_out") == "".join(LINES[900:1000])
    assert text_of(corpus, "train") == "".join(LINES[:900] + LINES[1000:])


def test_tokenised_once(monkeypatch):
    first = open_corpus("embedded", 400)
    monkeypatch.setattr(text_data, "_tokenise", lambda *_: pytest.fail("tokenised again"))
    second = open_corpus("embedded", 400)
    assert second.digest == first.digest
    assert torch.equal(second.train, first.train)


def test_other_inputs_are_another_corpus(tmp_path):
    write(tmp_path, "train.txt", LINES)
    digests = [open_corpus("gutenberg", 300).digest, open_corpus("gutenberg", 301).digest]
    write(tmp_path, "train.txt", [*LINES[:-1], LINES[-1].replace("Line", "Lime")])
    digests.append(open_corpus("gutenberg", 300).digest)
    assert len(set(digests)) == 3


def test_the_cache_makes_the_same_bytes_again(tmp_path, monkeypatch):
    first = open_corpus("embedded", 500)
    monkeypatch.setenv("NOISESCALE_CACHE", str(tmp_path / "other"))
    second = open_corpus("embedded", 500)
    assert first.folder != second.folder
    for name in ("tokenizer.json", "train.bin", "held_out.bin", "counts.json"):
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()


def _flip(content: bytes) -> bytes:
    return content[:404] + bytes([content[404] ^ 1]) + content[405:]


DAMAGE = {
    "a flipped bit": ("train.bin", _flip),
    "a token out of range": ("train.bin", lambda content: b"\xff" * 8 + content[8:]),
    "cut tokens": ("held_out.bin", lambda content: content[:100]),
    "cut counts": ("counts.json", lambda content: content[:5]),
    "a cut tokenizer": ("tokenizer.json", lambda content: content[:-9]),
    "no hash": ("sha256", lambda content: b""),
}


@pytest.mark.parametrize("name, change", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_cache_is_made_anew(name, change, capsys):
    before = open_corpus("embedded", 300)
    tokens = before.train.clone()
    path = before.folder / name
    truth = path.read_bytes()
    path.unlink()
    path.write_bytes(change(truth))
    (before.folder / "checked").unlink(missing_ok=True)
    assert torch.equal(open_corpus("embedded", 300).train, tokens)
    assert f"{before.folder} is damaged" in capsys.readouterr().err
    assert path.read_bytes() == truth
    open_corpus("embedded", 300)
    assert not capsys.readouterr().err


def test_files_that_were_hashed_are_not_hashed_again(monkeypatch):
    open_corpus("embedded", 300)
    open_corpus("embedded", 300)
    monkeypatch.setattr(text_data, "_sums", lambda folder: pytest.fail("hashed again"))
    open_corpus("embedded", 300)


def test_writing_to_the_tokens_does_not_reach_the_cache():
    corpus = open_corpus("embedded", 400)
    before = (corpus.folder / "train.bin").read_bytes()
    corpus.train.zero_()
    assert (corpus.folder / "train.bin").read_bytes() == before


def test_a_killed_tokeniser_leaves_nothing_that_reads_as_done(tmp_path):
    write(tmp_path, "train.txt", LINES * 40)
    write(tmp_path, "valid.txt", LINES)
    command = "from experiments.data.text import open_corpus; open_corpus('gutenberg', 300)"
    process = subprocess.Popen([sys.executable, "-c", command], env=os.environ | {"OMP_NUM_THREADS": "1"})
    cache = tmp_path / "cache" / "text"
    while not any(path.stat().st_size for path in cache.glob("*.aside/train.bin")):
        assert process.poll() is None, "it finished before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL

    (aside,) = (path for path in cache.iterdir() if path.is_dir())
    assert aside.suffix == ".aside" and not (aside / "counts.json").exists()
    corpus = open_corpus("gutenberg", 300)
    assert text_of(corpus, "train") == "".join(LINES * 40)
    assert [path for path in cache.iterdir() if path.is_dir()] == [corpus.folder]


def test_two_processes_share_one_tokenisation(tmp_path):
    write(tmp_path, "train.txt", LINES * 20)
    command = (
        "import experiments.data.text as t; made = []; real = t._tokenise\n"
        "t._tokenise = lambda *a: (made.append(1), real(*a)); t.open_corpus('gutenberg', 300); print(len(made))"
    )
    run = [sys.executable, "-c", command]
    processes = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate()[0].strip() for process in processes) == ["0", "1"]


def test_missing_text_names_the_ways_out(monkeypatch):
    with pytest.raises(UserError, match=r"task.text=gutenberg: no gutenberg/train.txt.*\n.*task.text=embedded"):
        open_corpus("gutenberg", 300)
    monkeypatch.delenv("NOISESCALE_DATA")
    with pytest.raises(UserError, match="unset"):
        open_corpus("tinyshakespeare", 300)


def test_a_hub_out_of_reach_names_the_ways_out(monkeypatch):
    class ConnectError(Exception):  # as an HTTP library's, which is no OSError
        pass

    def unreachable(*args, **kwargs):
        raise ConnectError("Name or service not known")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(UserError, match=r"task.text=lm1b: .* ConnectError\n.*lm1b/train.parquet .*task.text=embedded"):
        open_corpus("lm1b", 300)


def test_a_vocabulary_larger_than_the_text_has_is_refused(tmp_path):
    write(tmp_path, "train.txt", LINES[:10])
    write(tmp_path, "valid.txt", LINES[:10])
    with pytest.raises(UserError, match=r"task.vocab_size=5000: .* gives \d+ tokens"):
        open_corpus("gutenberg", 5000)
    assert not [path for path in (tmp_path / "cache" / "text").glob("gutenberg-5000-*") if path.suffix == ""]


@pytest.mark.data
@pytest.mark.skipif("NOISESCALE_DATA" not in os.environ, reason="needs NOISESCALE_DATA")
def test_lm1b(monkeypatch, request):
    monkeypatch.setenv("NOISESCALE_DATA", DATA)
    corpus = open_corpus("lm1b", 1024)
    text = text_of(corpus, "held_out")
    assert text.count("\n") == 6075
    assert len(text.encode()) / len(corpus.held_out) > 2.4


DATA = os.environ.get("NOISESCALE_DATA", "")
