import hashlib
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from experiments import image_data, image_sets
from experiments.errors import UserError
from experiments.image_data import cached, crop_and_flip, normalise, subset

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


def test_svhn_whose_pixels_are_cut_short(own_folders):
    folder = own_folders / "data" / "svhn"
    folder.mkdir(parents=True)
    file = folder / "train_32x32.mat"
    savemat(file, {"X": np.zeros((32, 32, 3, 8000), np.uint8), "y": np.ones((8000, 1), np.uint8)})
    file.write_bytes(file.read_bytes()[:1_000_000])
    with pytest.raises(UserError, match=r"(?s)cut short"):
        image_sets.svhn("test-10k")


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
    code = "from experiments.image_sets import imagenet\nimagenet('tiny-imagenet', 32, 10, None)"
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


def test_a_folder_of_images_keeps_the_first_of_the_first_classes_and_the_middle_of_each(own_folders):
    for label, name in enumerate(("n01", "n02", "n03")):
        folder = own_folders / "data" / "imagenette" / "train" / name
        folder.mkdir(parents=True)
        for number in range(3):
            pixels = np.zeros((8, 16, 3), np.uint8)
            pixels[:, 4:12] = 50 * label + 10 * number
            Image.fromarray(pixels).save(folder / f"{number}.png")
    found = image_sets.imagenet("imagenette", 8, 2, 2)
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert [image.unique().tolist() for image in found.images] == [[0], [10], [50], [60]]


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
