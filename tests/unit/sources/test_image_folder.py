"""Image folders: which files, in what order, under which label; and what they are by content."""

from __future__ import annotations

import os

import pytest
from small_images import GIF, png

from shardwriter.errors import SourceError
from shardwriter.formats.example import encode_example
from shardwriter.sources.class_folders import FileItem
from shardwriter.sources.find import open_source
from shardwriter.sources.image_folder import ImageFolder, has_images


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes files and opens their folder."""

    def make(files):
        for name, data in (
            dict.fromkeys(files, png()).items() if type(files) is list else files.items()
        ):
            path = tmp_path / "data" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return ImageFolder(str(tmp_path / "data"))

    return make


def keys(source):
    return [source.key(item) for item in source.items()]


def labels(source):
    return [item.label for item in source.items()]


# -- what is listed ------------------------------------------------------------------------------


def test_classes_and_files_come_in_sorted_order(folder):
    source = folder(["dog/2.png", "dog/10.png", "cat/b.png", "cat/a.png", "Zebra/x.png"])
    assert source.classes == ["Zebra", "cat", "dog"]
    assert keys(source) == ["Zebra/x.png", "cat/a.png", "cat/b.png", "dog/10.png", "dog/2.png"]
    assert labels(source) == [0, 1, 1, 2, 2]
    assert source.vocabularies == {"image/class/label": ["Zebra", "cat", "dog"]}
    assert source.label == "image/class/label"


def test_names_are_sorted_at_every_level(folder):
    source = folder(["c/a-b/1.png", "c/a/2.png", "c/a.png", "c/é.png", "c/z.png"])
    assert keys(source) == ["c/a/2.png", "c/a-b/1.png", "c/a.png", "c/z.png", "c/é.png"]


def test_nested_folders_belong_to_the_class_above_them(folder):
    source = folder(["cat/x/y/1.png", "cat/2.png", "dog/3.png"])
    assert keys(source) == ["cat/2.png", "cat/x/y/1.png", "dog/3.png"]
    assert labels(source) == [0, 0, 1]


def test_images_without_class_folders_have_no_label(folder):
    source = folder(["b.png", "a.png"])
    assert keys(source) == ["a.png", "b.png"]
    assert source.label is None
    assert set(source.plan) == {
        f"image/{n}" for n in ["encoded", "filename", "format", "height", "width"]
    }
    assert set(source.load(source.item(0))) == set(source.plan)


def test_hidden_files_and_folders_are_left_out(folder):
    source = folder(["cat/1.png", "cat/._1.png", ".git/x.png", "cat/.thumbs/2.png"])
    assert keys(source) == ["cat/1.png"]
    assert list(source.notes) == []


def test_files_that_are_no_images_are_left_out_and_told(folder):
    source = folder(["cat/1.png", "cat/Thumbs.db", "README", "cat/notes.txt", "dog/x.txt"])
    assert keys(source) == ["cat/1.png"]
    assert source.notes == [
        "files that are not images were left out: 2 .txt, 1 without ending, 1 .db",
        "folders without images are not classes: dog",
    ]


def test_empty_class_folders_are_no_classes(folder, tmp_path):
    (tmp_path / "data" / "ant").mkdir(parents=True)
    source = folder(["cat/1.png", "dog/1.png"])
    assert source.classes == ["cat", "dog"]
    assert labels(source) == [0, 1]
    assert source.notes == ["folders without images are not classes: ant"]


def test_endings_are_known_in_any_case(folder):
    assert len(keys(folder(["c/1.PNG", "c/2.JpEg", "c/3.tiff", "c/4.webp", "c/png"]))) == 4


def test_images_beside_class_folders_are_refused(folder):
    with pytest.raises(
        SourceError, match=r"1 image\(s\) are beside the class folders, such as 'x.png'"
    ):
        folder(["cat/1.png", "x.png"])


@pytest.mark.parametrize("files", [["cat/notes.txt"], [".hidden/1.png"], ["a/b/c.txt"]])
def test_a_folder_without_images_is_refused(folder, files):
    with pytest.raises(SourceError, match="no image files"):
        folder(files)


def test_links_to_files_and_folders_are_followed(folder, tmp_path):
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "9.png").write_bytes(png(9, 9))
    (tmp_path / "data" / "cat").mkdir(parents=True)
    (tmp_path / "data" / "dog").symlink_to(other)
    (tmp_path / "data" / "cat" / "link.png").symlink_to(other / "9.png")
    source = folder(["cat/1.png"])
    assert keys(source) == ["cat/1.png", "cat/link.png", "dog/9.png"]
    assert source.load(source.item(1))["image/width"] == 9
    assert source.item(1).size_bytes == len(png(9, 9))


def test_two_links_to_one_folder_are_two_classes(folder, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "b").symlink_to(tmp_path / "data" / "a")
    assert keys(folder(["a/x/1.png"])) == ["a/x/1.png", "b/x/1.png"]


@pytest.mark.parametrize("target", [".", "..", "../.."])
def test_a_link_back_to_a_folder_above_is_refused(folder, tmp_path, target):
    (tmp_path / "data" / "cat" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "cat" / "sub" / "loop").symlink_to(target)
    with pytest.raises(SourceError, match="leads back") as caught:
        folder(["cat/1.png"])
    assert "loop" in caught.value.path


def test_links_that_lead_to_each_other_are_refused(folder, tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "loop").symlink_to(tmp_path / "data" / other)
    with pytest.raises(SourceError, match="leads back"):
        folder(["a/1.png", "b/1.png"])


def test_a_link_to_nothing_is_refused(folder, tmp_path):
    (tmp_path / "data" / "cat").mkdir(parents=True)
    (tmp_path / "data" / "cat" / "gone.png").symlink_to("nowhere.png")
    with pytest.raises(SourceError, match="can not be read") as caught:
        folder(["cat/1.png"])
    assert caught.value.path.endswith("gone.png")


def test_a_pipe_with_an_images_name_is_refused(folder, tmp_path):
    (tmp_path / "data" / "cat").mkdir(parents=True)
    os.mkfifo(tmp_path / "data" / "cat" / "x.png")
    with pytest.raises(SourceError, match="not a regular file"):
        folder(["cat/1.png"])


@pytest.mark.parametrize("name", [b"cat/\xff.png", b"\xff/1.png"])
def test_a_name_that_is_not_utf8_is_refused(folder, tmp_path, name):
    path = os.path.join(os.fsencode(tmp_path), b"data", name)
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(png())
    with pytest.raises(SourceError, match="not UTF-8") as caught:
        folder(["dog/1.png"])
    assert "\\udcff" in str(caught.value)
    str(caught.value).encode()  # can be printed
    assert has_images(str(tmp_path / "data"))


def test_notes_can_be_printed_whatever_the_names(folder, tmp_path):
    for name in (b"data/cat/x.\xff", b"data/\xfe/notes.txt"):
        path = os.path.join(os.fsencode(tmp_path), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "wb").close()
    for note in folder(["cat/1.png"]).notes:
        note.encode("utf-8")


def test_a_folder_that_can_not_be_listed_is_named(tmp_path):
    with pytest.raises(SourceError, match="can not be listed"):
        ImageFolder(str(tmp_path / "none"))


# -- what is loaded ------------------------------------------------------------------------------


def test_bytes_are_passed_through(folder):
    source = folder({"cat/1.png": png(4, 6)})
    assert source.load(source.item(0)) == {
        "image/encoded": png(4, 6),
        "image/filename": "cat/1.png",
        "image/format": "png",
        "image/height": 6,
        "image/width": 4,
        "image/class/label": 0,
        "image/class/text": "cat",
    }


def test_the_format_is_that_of_the_content(folder):
    source = folder({"c/1.jpg": png(), "c/2.png": GIF})
    loaded = [source.load(item) for item in source.items()]
    assert [f["image/format"] for f in loaded] == ["png", "gif"]
    assert (loaded[1]["image/height"], loaded[1]["image/width"]) == (5, 7)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"<html>not found</html>", "not a known image format"),
        (b"\xff\xd8\xff", "jpeg header is broken"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF\0" + bytes(100), "jpeg header is broken"),
        (png()[:12], "png header is broken"),
        (png(0, 0), "png header is broken"),
        (b"BM" + bytes(20), "bmp header is broken"),
        (b"RIFF\0\0\0\0WEBP", "webp header is broken"),
        (b"II*\0\x08\0\0\0", "tiff header is broken"),
    ],
)
def test_what_is_no_image_is_named_by_its_path(folder, data, words):
    source = folder({"cat/1.jpg": data, "cat/2.jpg": png()})
    with pytest.raises(SourceError, match=words) as caught:
        source.load(source.item(0))
    assert caught.value.path.endswith("cat/1.jpg")
    assert source.load(source.item(1))["image/format"] == "png"


def test_an_image_cut_anywhere_in_its_header_is_a_source_error(folder, data_dir):
    images = data_dir / "python-pillow+Pillow/Tests/images"
    wholes = [images / f"hopper.{ending}" for ending in ("jpg", "png", "gif", "webp", "bmp")]
    cuts = {
        f"c/{path.name}-{size:03d}.png": path.read_bytes()[:size]
        for path in wholes
        for size in range(0, 60, 3)
    }
    source = folder(cuts)
    outcomes = set()
    for item in source.items():
        try:
            outcomes.add(source.load(item)["image/height"])
        except SourceError:
            outcomes.add("refused")
    assert outcomes == {128, "refused"}


@pytest.mark.parametrize("change", ["size", "time", "gone"])
def test_a_file_that_changes_after_the_listing_is_refused(folder, tmp_path, change):
    source = folder(["cat/1.png"])
    path = tmp_path / "data" / "cat" / "1.png"
    time_ns = path.stat().st_mtime_ns
    if change == "gone":
        path.unlink()
    elif change == "time":
        os.utime(path, ns=(time_ns, time_ns + 1_000_000))
    else:
        path.write_bytes(png() + b"\0")
        os.utime(path, ns=(time_ns, time_ns))
    words = "can not be read: No such file" if change == "gone" else "has changed since"
    with pytest.raises(SourceError, match=words) as caught:
        source.load(source.item(0))
    assert caught.value.path == str(path)


def test_an_item_says_what_was_listed(folder, tmp_path):
    source = folder(["cat/1.png"])
    stat = (tmp_path / "data/cat/1.png").stat()
    assert source.item(0) == FileItem("cat/1.png", 0, stat.st_size, stat.st_mtime_ns)


# -- real files ----------------------------------------------------------------------------------


def test_real_image_folder(data_dir):
    source = ImageFolder(str(data_dir / "pytorch+data/examples/vision/fakedata/imagefolder"))
    assert keys(source) == [f"{c}/{n}.jpg" for c in ("cat", "dog") for n in (1, 2, 3)]
    for item in source.items():
        features = source.load(item)
        assert features["image/format"] == "jpeg"
        assert features["image/class/text"] == item.key[:3]
        assert len(encode_example(features)) > item.size_bytes


def test_real_images_of_every_format(data_dir, tmp_path):
    images = data_dir / "python-pillow+Pillow/Tests/images"
    sizes = {}
    for name in ("hopper.bmp", "hopper.gif", "hopper.jpg", "hopper.png", "hopper.webp"):
        (tmp_path / name).symlink_to(images / name)
        sizes[name] = (name[7:].replace("jpg", "jpeg"), 128, 128)
    source = ImageFolder(str(tmp_path))
    loaded = {item.key: source.load(item) for item in source.items()}
    assert {
        key: (f["image/format"], f["image/height"], f["image/width"]) for key, f in loaded.items()
    } == sizes


def test_real_classes_and_sizes(data_dir):
    images = data_dir / "google+tensorflow-recorder/tfrecorder/test_data/images"
    source = ImageFolder(str(images / "TRAIN"))
    loaded = [source.load(item) for item in source.items()]
    found = [(f["image/class/text"], f["image/width"], f["image/height"]) for f in loaded]
    assert found == [("cat", 640, 853), ("goat", 640, 560)]


# -- classes, or images and masks ------------------------------------------------------------------


def two_folders(root, first, second):
    for folder, names in (("foo", first), ("bar", second)):
        (root / folder).mkdir(parents=True)
        for name in names:
            (root / folder / name).write_bytes(png())
    return str(root)


def test_two_folders_of_the_same_names_are_asked_about(tmp_path):
    root = two_folders(tmp_path / "d", ["1.jpg", "2.jpg"], ["1.png", "2.png"])
    with pytest.raises(SourceError, match="'bar' and 'foo' have files of the same names") as caught:
        open_source(root)
    assert "--format image-folder" in caught.value.hint
    assert f"--format image-mask with SOURCE '{root}/{{foo,bar}}'" in caught.value.hint
    assert open_source(root, "image-folder").num_items == 4
    assert open_source(f"{root}/{{foo,bar}}", "image-mask").num_items == 2


def test_two_folders_of_png_are_asked_about_if_one_has_no_colors(tmp_path):
    root = two_folders(tmp_path / "d", ["1.png"], ["1.png"])
    assert open_source(root).kind == "image-folder"
    colored = bytearray(png())
    colored[25] = 2
    (tmp_path / "d/bar/1.png").write_bytes(colored)
    with pytest.raises(SourceError, match="have files of the same names") as caught:
        open_source(root)
    assert f"'{root}/{{bar,foo}}'" in caught.value.hint


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["1.jpg", "2.jpg"], ["1.jpg", "2.jpg"]),
        (["1.jpg", "2.jpg"], ["1.png", "3.png"]),
        (["1.jpg", "2.jpg"], ["1.png"]),
    ],
)
def test_two_folders_of_other_names_are_classes(tmp_path, first, second):
    assert open_source(two_folders(tmp_path / "d", first, second)).kind == "image-folder"
