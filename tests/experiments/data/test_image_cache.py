import hashlib
import io
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from experiments.data import image_cache as image_data
from experiments.data import image_sets
from experiments.data.image_cache import cached, crop_and_flip, normalise, subset
from experiments.errors import UserError

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """An empty data folder, an empty cache, and a network that refuses every connection."""
    monkeypatch.setenv("NOISESCALE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NOISESCALE_CACHE", str(tmp_path / "cache"))
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(proxy, NOWHERE)
    for exempt in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(exempt, raising=False)
    return tmp_path


def pieces(n: int = 10) -> list[tuple[np.ndarray, np.ndarray]]:
    drawn = np.random.default_rng(0)
    images = drawn.integers(0, 256, (n, 3, 5, 4), dtype=np.uint8)
    labels = drawn.integers(0, 1000, n)
    return [(images[:4], labels[:4]), (images[4:], labels[4:])]


def lines(error) -> list[str]:
    found = str(error.value).splitlines()
    assert len(found) == 2
    return found


def cache_file(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "cache").glob("*.npy")
    return file


def test_decodes_once_and_gives_back_every_pixel_and_label(own_folders):
    calls = []

    def decode():
        calls.append(1)
        return pieces()

    first, second = cached("toy", "recipe", decode), cached("toy", "recipe", decode)
    assert len(calls) == 1
    for one in (first, second):
        assert one.images.dtype == torch.uint8 and one.labels.dtype == torch.int64
        assert one.images.numpy().tolist() == np.concatenate([p[0] for p in pieces()]).tolist()
        assert one.labels.tolist() == np.concatenate([p[1] for p in pieces()]).tolist()
    cached("toy", "another recipe", decode)
    assert len(calls) == 2
    assert not list((own_folders / "cache").glob("*.tmp"))


def test_the_mark_is_what_sha256sum_reads(own_folders):
    cached("toy", "recipe", pieces)
    file = cache_file(own_folders)
    assert file.with_suffix(".sha256").read_text() == f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
    np.load(file, allow_pickle=False)


@pytest.mark.parametrize("damage", ["cut short", "one bit", "gone"])
def test_a_damaged_cache_is_refused_and_its_way_out_works(own_folders, damage):
    whole = cached("toy", "recipe", pieces)
    file = cache_file(own_folders)
    content = file.read_bytes()
    del whole
    file.unlink()
    if damage == "cut short":
        file.write_bytes(content[:-100])
    elif damage == "one bit":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError) as error:
        cached("toy", "recipe", pieces)
    what, way_out = lines(error)
    assert str(file) in what and "SHA-256" in what
    command = way_out[way_out.index("(rm ") + 1 : way_out.index(")")]
    subprocess.run(command, shell=True, check=True)
    assert len(cached("toy", "recipe", pieces).labels) == 10


def test_an_interrupted_write_is_decoded_again(own_folders):
    cached("toy", "recipe", pieces)
    file = cache_file(own_folders)
    file.with_suffix(".sha256").unlink()
    file.write_bytes(file.read_bytes()[:200])
    assert len(cached("toy", "recipe", pieces).labels) == 10


@pytest.mark.parametrize("mark", [b"", bytes(90)])
def test_a_mark_that_a_power_cut_left_empty_is_an_interrupted_write(own_folders, mark):
    cached("toy", "recipe", pieces)
    cache_file(own_folders).with_suffix(".sha256").write_bytes(mark)
    assert len(cached("toy", "recipe", pieces).labels) == 10


def hashed(monkeypatch) -> list[str]:
    """The files that are hashed from here on, in the order of it."""
    names, digest = [], image_data._digest
    monkeypatch.setattr(image_data, "_digest", lambda path: names.append(path.name) or digest(path))
    return names


def test_a_machine_hashes_a_file_once_and_again_when_it_is_another(own_folders, monkeypatch):
    names = hashed(monkeypatch)
    for _ in range(2):
        assert len(cached("toy", "recipe", pieces).labels) == 10 and len(names) == 1
        image_data._open.cache_clear()  # as another process
    file = cache_file(own_folders)
    names.clear()
    os.utime(file, ns=(1, 1))
    for _ in range(2):
        assert len(cached("toy", "recipe", pieces).labels) == 10
        image_data._open.cache_clear()
    assert names == [file.name]


def test_processes_that_start_together_decode_once(own_folders):
    code = """
import sys, time
import numpy as np
from experiments.data.image_cache import cached

def decode():
    open(sys.argv[1], "a").write("decoded\\n")
    time.sleep(0.5)
    yield np.zeros((2, 3, 4, 4), np.uint8), np.zeros(2)

assert len(cached("toy", "recipe", decode).labels) == 2
"""
    processes = [subprocess.Popen([sys.executable, "-c", code, str(own_folders / "log")]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert (own_folders / "log").read_text() == "decoded\n"
    assert not list((own_folders / "cache").glob("*.lock"))


class TestShards:
    """A set of several files: 4 + 4 + 2 images, of 62 bytes with their label."""

    @pytest.fixture(autouse=True)
    def small_files(self, monkeypatch):
        monkeypatch.setattr(image_data, "SHARD", 192 + 4 * 62 + 10)

    def in_shards(self) -> image_data.ImageSet:
        (first, more) = pieces()
        return cached("toy", "recipe", lambda: [first, *((more[0][i:][:2], more[1][i:][:2]) for i in (0, 2, 4))])

    def test_it_reads_as_one(self, own_folders):
        found = self.in_shards()
        assert len(list((own_folders / "cache").glob("*.npy"))) == 3
        whole = torch.from_numpy(np.concatenate([images for images, _ in pieces()]))
        assert isinstance(found.images, image_data.Shards) and found.images.nbytes == whole.nbytes
        assert found.labels.tolist() == np.concatenate([labels for _, labels in pieces()]).tolist()
        index = torch.tensor([9, 0, 4, 3, 8, 8, 7])
        assert found.images[index].equal(whole[index])
        assert found.to(torch.device("cpu")).images.equal(whole)

    def test_each_file_has_its_hash_as_sha256sum_reads_them(self, own_folders):
        self.in_shards()
        (mark,) = (own_folders / "cache").glob("*.sha256")
        subprocess.run(["sha256sum", "--check", "--quiet", mark.name], cwd=mark.parent, check=True)
        assert len(mark.read_text().splitlines()) == 3

    @pytest.mark.parametrize("damage", ["one bit", "gone"])
    def test_the_damaged_one_is_named_and_the_way_out_works(self, own_folders, damage):
        self.in_shards()
        last = max((own_folders / "cache").glob("*.2.npy"))
        content = last.read_bytes()
        last.unlink()
        if damage == "one bit":
            last.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(UserError) as error:
            self.in_shards()
        what, way_out = lines(error)
        assert str(last) in what
        subprocess.run(way_out[way_out.index("(rm ") + 1 : way_out.index(")")], shell=True, check=True)
        assert len(self.in_shards().labels) == 10


def test_no_room_on_the_disk(own_folders):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        with pytest.raises(UserError) as error:
            cached("toy", "recipe", pieces)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    what, way_out = lines(error)
    assert "cannot write" in what and "MB free" in what and "images" in what and "NOISESCALE_CACHE" in way_out
    assert list((own_folders / "cache").iterdir()) == []


def test_a_picture_that_is_none_is_named_and_leaves_nothing_behind(own_folders):
    folder = own_folders / "data" / "imagenette" / "train" / "n01"
    folder.mkdir(parents=True)
    (folder / "0.png").write_bytes(b"no picture")
    with pytest.raises(UserError) as error:
        image_sets.imagenet("imagenette", 8, 1, None)
    what, way_out = lines(error)
    assert "0.png" in what and "damaged" in way_out
    assert list((own_folders / "cache").iterdir()) == []


def mat(own_folders: Path, labels: np.ndarray) -> Path:
    """8,000 black crops with these labels."""
    folder = own_folders / "data" / "svhn"
    folder.mkdir(parents=True)
    savemat(folder / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 8000), np.uint8), "y": labels})
    return folder / "train_32x32.mat"


def test_svhn_whose_pixels_are_cut_short(own_folders):
    file = mat(own_folders, np.ones((8000, 1), np.uint8))
    file.write_bytes(file.read_bytes()[:1_000_000])
    with pytest.raises(UserError, match=r"(?s)cut short"):
        image_sets.svhn("test-10k")


@pytest.mark.parametrize("y", [np.ones(7999, np.uint8), np.zeros(8000, np.uint8), np.full(8000, 11, np.uint8)])
def test_svhn_whose_labels_are_not_the_images(own_folders, y):
    mat(own_folders, y[:, None])
    with pytest.raises(UserError) as error:
        image_sets.svhn("test-10k")
    assert "train_32x32.mat: y is not a label from 1 to 10 for each of 8,000 images" in lines(error)[0]


@pytest.mark.parametrize("content", [b"", b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM"])
def test_svhn_file_that_is_no_mat_file_of_version_5(own_folders, content):
    mat(own_folders, np.ones((8000, 1), np.uint8)).write_bytes(content)
    with pytest.raises(UserError) as error:
        image_sets.svhn("test-10k")
    assert "train_32x32.mat is not an SVHN .mat file" in lines(error)[0]


def parquet(folder: Path, labels: list[int], images: list[bytes] | None = None) -> Path:
    """train.parquet, as on the hub, of pictures of 8 x 8 pixels."""
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(buffer, "PNG")
    contents = images or [buffer.getvalue()] * len(labels)
    folder.mkdir(parents=True)
    table = pa.table({"image": [{"bytes": content, "path": None} for content in contents], "label": labels})
    pq.write_table(table, folder / "train.parquet")
    return folder / "train.parquet"


@pytest.mark.parametrize("load", [image_sets.cifar10, lambda: image_sets.imagenet("imagenette", 8, 1, None)])
def test_a_parquet_that_is_cut_short(own_folders, load):
    for name in ("cifar10", "imagenette"):
        file = parquet(own_folders / "data" / name, [0])
        file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(UserError) as error:
        load()
    what, way_out = lines(error)
    assert "cannot be decoded" in what and "cut short" in way_out


@pytest.mark.parametrize(
    ("labels", "images", "said"),
    [([-1], None, "label -1; allowed: 0 to 9"), ([10], None, "label 10"), ([0], [b""], "cannot identify image")],
)
def test_a_row_of_a_parquet_that_is_no_image_of_a_class(own_folders, labels, images, said):
    parquet(own_folders / "data" / "cifar10", labels, images)
    with pytest.raises(UserError) as error:
        image_sets.cifar10()
    assert said in lines(error)[0]


def test_pieces_whose_labels_do_not_fit_are_refused(own_folders):
    for labels, said in (([0], "2 images have 1 labels"), ([0, -1], "from -1 to 0"), ([0, 70_000], "to 70000")):
        with pytest.raises(UserError, match=said):
            cached("toy", "recipe", lambda labels=labels: [(np.zeros((2, 3, 4, 4), np.uint8), np.array(labels))])


def test_cache_folder_that_cannot_be_made(own_folders):
    (own_folders / "cache").write_text("a file, not a folder")
    with pytest.raises(UserError, match=r"cannot write .*\n.*NOISESCALE_CACHE"):
        cached("toy", "recipe", pieces)


@pytest.mark.parametrize(
    ("load", "wanted"),
    [
        (lambda: image_sets.svhn("test-10k"), "svhn/test_32x32.mat"),
        (lambda: image_sets.svhn("train+extra"), "svhn/train_32x32.mat"),
        (image_sets.cifar10, "cifar10/train.parquet"),
    ],
)
@pytest.mark.parametrize("folder_set", [True, False])
def test_a_missing_set_without_network_says_both_ways_out(load, wanted, folder_set, monkeypatch):
    if not folder_set:
        monkeypatch.delenv("NOISESCALE_DATA")
    with pytest.raises(UserError) as error:
        load()
    what, way_out = lines(error)
    assert (f"{wanted} is not under NOISESCALE_DATA=" if folder_set else "NOISESCALE_DATA is not set") in what
    assert "download failed" in what and wanted in way_out and "network" in way_out


@pytest.mark.slow
def test_a_missing_set_of_the_hub_says_both_ways_out(own_folders):
    code = "from experiments.data.image_sets import imagenet\nimagenet('tiny-imagenet', 32, 10, None)"
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(own_folders / "hub")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=offline, check=False)
    what, way_out = done.stderr.splitlines()[-2:]
    assert "UserError" in what and "zh-plus/tiny-imagenet" in what
    assert "tiny-imagenet-32/train.parquet" in way_out and "network" in way_out


def test_svhn_that_is_not_the_split_asked_for(own_folders):
    folder = own_folders / "data" / "svhn"
    folder.mkdir(parents=True)
    savemat(folder / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 7), np.uint8), "y": np.ones((7, 1), np.uint8)})
    with pytest.raises(UserError) as error:
        image_sets.svhn("train")
    what, way_out = lines(error)
    assert "7 crops" in what and "73,257" in what and "test-10k" in way_out


def test_svhn_file_that_is_cut_short(own_folders):
    folder = own_folders / "data" / "svhn"
    folder.mkdir(parents=True)
    (folder / "train_32x32.mat").write_bytes(b"MATLAB 5.0 MAT-file, and then nothing")
    with pytest.raises(UserError) as error:
        image_sets.svhn("train")
    assert "cut short" in lines(error)[0]


def test_more_classes_than_there_are():
    with pytest.raises(UserError, match=r"task\.classes=11.*imagenette has 10\n"):
        image_sets.imagenet("imagenette", 64, 11, None)


def pictures(own_folders: Path, classes: int, inside: str = "") -> Path:
    """A folder of `classes` classes of three pictures, grey levels 50 · class + 10 · number."""
    train = own_folders / "data" / "imagenette" / "train"
    for label in range(classes):
        folder = train / f"n{label:02}" / inside
        folder.mkdir(parents=True)
        for number in range(3):
            pixels = np.zeros((8, 16, 3), np.uint8)
            pixels[:, 4:12] = 50 * label + 10 * number
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return train


def test_a_folder_of_images_keeps_the_first_of_the_first_classes_and_the_middle_of_each(own_folders):
    pictures(own_folders, 3)
    found = image_sets.imagenet("imagenette", 8, 2, 2)
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert [image.unique().tolist() for image in found.images] == [[0], [10], [50], [60]]


def test_a_folder_in_which_a_picture_is_added_replaced_or_moved_is_decoded_again(own_folders):
    train = pictures(own_folders, 2)

    def levels() -> list[int]:
        return [int(image.max()) for image in image_sets.imagenet("imagenette", 8, 2, None).images]

    assert levels() == [0, 10, 20, 50, 60, 70]
    Image.fromarray(np.full((8, 8, 3), 200, np.uint8)).save(train / "n00" / "1.png")
    assert levels() == [0, 200, 20, 50, 60, 70]
    shutil.copy2(train / "n00" / "1.png", train / "n01" / "9.png")
    assert levels() == [0, 200, 20, 50, 60, 70, 200]
    (train / "n01" / "9.png").rename(train / "n00" / "9.png")
    assert levels() == [0, 200, 20, 200, 50, 60, 70]


def test_the_layout_of_tiny_imagenet_with_its_boxes(own_folders):
    train = pictures(own_folders, 2, "images")
    for label in range(2):
        (train / f"n{label:02}" / f"n{label:02}_boxes.txt").write_text("0.png\t0\t0\t8\t8\n")
    assert image_sets.imagenet("imagenette", 8, 2, None).labels.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("classes", "per_class", "what", "allowed"),
    [
        (5, None, r"task\.classes=5, .*images of 3 of them", "at most 3"),
        (3, 4, r"task\.images_per_class=4, .*there are 3", "at most 3, or null"),
    ],
)
def test_fewer_classes_or_images_than_asked_for_are_refused(own_folders, classes, per_class, what, allowed):
    pictures(own_folders, 3)
    with pytest.raises(UserError) as error:
        image_sets.imagenet("imagenette", 8, classes, per_class)
    said = lines(error)
    assert re.search(what, said[0]) and allowed in said[1]
    assert list((own_folders / "cache").iterdir()) == []


def test_a_folder_without_pictures(own_folders):
    (own_folders / "data" / "imagenette" / "train").mkdir(parents=True)
    with pytest.raises(UserError) as error:
        image_sets.imagenet("imagenette", 8, 1, None)
    assert "no image" in lines(error)[0]


def test_subset_is_fixed_distinct_and_bounded():
    one = subset(1000, 400)
    assert one.equal(subset(1000, 400)) and one.unique().numel() == 400 and one.max() < 1000
    with pytest.raises(UserError, match="eval_examples=1001"):
        subset(1000, 1001)


def test_normalise_is_the_formula_by_channel():
    images = torch.randint(256, (4, 3, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    out = normalise(images, (0.4, 0.5, 0.6), (0.1, 0.2, 0.3))
    for channel, (mean, std) in enumerate(((0.4, 0.1), (0.5, 0.2), (0.6, 0.3))):
        torch.testing.assert_close(out[:, channel], (images[:, channel] / 255 - mean) / std, rtol=1e-5, atol=1e-5)


def test_every_crop_is_one_of_the_81_shifts_mirrored_or_not_and_all_occur():
    image = torch.arange(1, 61, dtype=torch.uint8).view(1, 3, 4, 5)
    padded = torch.nn.functional.pad(image, (4,) * 4)[0]
    wanted = {}
    for down in range(9):
        for right in range(9):
            crop = padded[:, down : down + 4, right : right + 5]
            wanted.setdefault(tuple(crop.flatten().tolist()), 0)
            wanted.setdefault(tuple(crop.flip(-1).flatten().tolist()), 0)
    n = 30_000
    out = crop_and_flip(image.expand(n, -1, -1, -1), 4, torch.Generator().manual_seed(1))
    for crop in out:
        wanted[tuple(crop.flatten().tolist())] += 1
    counts = torch.tensor(list(wanted.values()))
    assert counts.sum() == n and (counts > 0).all()
    untouched, mirrored = (wanted[tuple(i.flatten().tolist())] for i in (image, image.flip(-1)))
    for count in (untouched, mirrored):
        assert abs(count - n / 162) < 5 * (n / 162) ** 0.5


def test_crops_come_from_the_given_generator_alone():
    images = torch.randint(256, (20, 3, 8, 8), dtype=torch.uint8)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    a, b = (crop_and_flip(images, 4, torch.Generator().manual_seed(5)) for _ in range(2))
    assert a.equal(b) and not a.equal(crop_and_flip(images, 4, torch.Generator().manual_seed(6)))
    assert torch.get_rng_state().equal(state)


def test_cache_is_under_the_home_folder_by_default(monkeypatch):
    monkeypatch.delenv("NOISESCALE_CACHE")
    assert image_data.cache_folder() == Path.home() / ".cache" / "noisescale"
