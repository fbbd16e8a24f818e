"""``voc``: what a record has, which files count, how classes are numbered, and what is refused."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from detection_sets import gif, voc_object, voc_xml, write, write_voc

import shardwriter
from shardwriter.errors import SourceChanged, SourceError
from shardwriter.sources.detection import BadAnnotation
from shardwriter.sources.find import open_source
from shardwriter.sources.voc import CLASSES, VocDetection, parse_xml

OBJECT = "image/object"


def plain(features):
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in features.items()
    }


def load_all(path):
    source = VocDetection(str(path))
    return [plain(source.load(item)) for item in source.items()]


def near(values):
    return np.array(values, np.float32).tolist()


def test_a_record(tmp_path):
    objects = [
        voc_object("dog", (8, 5, 24.5, 20), "<pose>Left</pose><truncated>1</truncated>"),
        voc_object("cat", (1, 1, 40, 20), "<difficult>1</difficult><part><name>head</name></part>"),
    ]
    write_voc(tmp_path, {"é 1": objects})
    [features] = load_all(tmp_path)
    assert features == {
        "image/encoded": gif(40, 20),
        "image/filename": "é 1.gif",
        "image/format": "gif",
        "image/height": 20,
        "image/width": 40,
        "image/source_id": "é 1.gif",
        "image/key/sha256": sha256(gif(40, 20)).hexdigest(),
        f"{OBJECT}/bbox/xmin": near([8 / 40, 1 / 40]),
        f"{OBJECT}/bbox/xmax": near([24.5 / 40, 1]),
        f"{OBJECT}/bbox/ymin": near([5 / 20, 1 / 20]),
        f"{OBJECT}/bbox/ymax": near([1, 1]),
        f"{OBJECT}/class/label": [12, 8],
        f"{OBJECT}/class/text": ["dog", "cat"],
        f"{OBJECT}/difficult": [0, 1],
        f"{OBJECT}/truncated": [1, 0],
        f"{OBJECT}/view": ["Left", "Unspecified"],
    }


def test_the_classes_of_pascal_voc_have_their_usual_labels(tmp_path):
    assert len(CLASSES) == 20
    assert sorted(CLASSES) == CLASSES
    write_voc(tmp_path, {"1": list(map(voc_object, ["tvmonitor", "aeroplane", "person"]))})
    source = VocDetection(str(tmp_path))
    assert source.load(source.item(0))[f"{OBJECT}/class/label"].tolist() == [20, 1, 15]
    assert source.notes == []


def test_other_classes_are_counted_in_sorted_order(tmp_path):
    write_voc(tmp_path, {"1": [voc_object("zebra"), voc_object("cat")], "2": [voc_object("ant")]})
    source = VocDetection(str(tmp_path))
    found = [source.load(item) for item in source.items()]
    assert [f[f"{OBJECT}/class/label"].tolist() for f in found] == [[3, 2], [1]]
    assert source.notes == ["classes, numbered from 1 in sorted order: 1 ant, 2 cat, 3 zebra"]


def test_items_are_in_order_of_names_and_images_without_xml_are_told(tmp_path):
    write_voc(tmp_path, {"b": [], "a": [voc_object("cat")], "10": [], "9": []})
    write(tmp_path / "JPEGImages/test.gif", gif(1, 1))
    write(tmp_path / "JPEGImages/readme.txt", b"")
    source = open_source(str(tmp_path))
    assert source.kind == "voc"
    assert [source.key(item) for item in source.items()] == ["10.gif", "9.gif", "a.gif", "b.gif"]
    assert source.notes == ["images left out, as they have no XML file or are not in the list: 1"]
    assert source.load(source.item(0))[f"{OBJECT}/class/text"] == []


@pytest.mark.parametrize("text", ["c\na\n", "c  1\r\na -1\r\n\r\n"])
def test_a_list_of_image_sets(tmp_path, text):
    objects = {name: [voc_object(name * 2)] for name in "abc"}
    write_voc(tmp_path / "VOC2012", objects)
    path = tmp_path / "VOC2012/ImageSets/Main/train.txt"
    write(path, text)
    source = open_source(str(path))
    assert (source.kind, source.num_items) == ("voc", 2)
    assert [source.key(item) for item in source.items()] == ["c.gif", "a.gif"]
    labels = [source.load(item)[f"{OBJECT}/class/label"].tolist() for item in source.items()]
    assert labels == [[3], [1]]  # of all names in the folder
    assert source.digest() != open_source(str(tmp_path / "VOC2012")).digest()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a\nd\n", r"'d' is in the list, but .* has no d\.xml"),
        (b"a\na\n", "'a' is repeated"),
        (b"\xff\n", "not UTF-8"),
    ],
)
def test_a_list_that_is_wrong(tmp_path, data, words):
    write_voc(tmp_path, {name: [] for name in "ab"})
    path = tmp_path / "ImageSets/Main/x.txt"
    write(path, data)
    with pytest.raises(SourceError, match=words) as caught:
        open_source(str(path))
    assert caught.value.path == str(path)


def test_files_beside_each_other(tmp_path):
    write_voc(tmp_path, {"b": [], "a": [voc_object("cat")]}, "", "")
    write(tmp_path / "classes.txt", b"cat")
    source = open_source(str(tmp_path))
    assert (source.kind, source.num_items) == ("voc", 2)
    assert source.load(source.item(0))[f"{OBJECT}/class/text"] == ["cat"]


def test_xml_that_is_not_of_annotations_is_not_looked_at(tmp_path):
    write(tmp_path / "a.gif", gif(1, 1))
    write(tmp_path / "a.xml", "<camera/>")
    assert open_source(str(tmp_path)).kind == "image-folder"


def test_the_image_has_the_name_of_the_xml_or_that_which_stands_in_it(tmp_path):
    for stem, filename in {"a": "old.gif", "b": "a.gif", "c": "d.gif", "d": "d.gif"}.items():
        write(tmp_path / f"{stem}.xml", voc_xml(filename))
    write(tmp_path / "e.xml", voc_xml("other.gif"))
    write(tmp_path / "f.xml", voc_xml("other.gif"))
    for name in ("a.gif", "d.gif", "other.gif"):
        write(tmp_path / name, gif(40, 20))
    source = VocDetection(str(tmp_path))
    keys = [source.key(item) for item in source.items()]
    assert keys == ["a.gif", "b.jpg", "c.jpg", "d.gif", "other.gif", "f.jpg"]
    with pytest.raises(SourceError, match="does not exist"):
        source.load(source.item(1))


def test_boxes_are_written_as_they_are_and_told(tmp_path):
    boxes = [(4, 4, 4, 9), (-8, 0, 44, 20), (0, 0, 40, 20)]
    write_voc(tmp_path, {"1": [voc_object("cat", box) for box in boxes]})
    source = VocDetection(str(tmp_path))
    features = source.load(source.item(0))
    assert features[f"{OBJECT}/bbox/xmin"].tolist() == near([0.1, -0.2, 0])
    assert features[f"{OBJECT}/bbox/xmax"].tolist() == near([0.1, 1.1, 1])
    [note] = source.notes
    assert note.endswith("written unchanged: 2")


BOMB = '<!DOCTYPE a [<!ENTITY b "x"><!ENTITY c "&b;&b;&b;&b;">]><annotation>&c;</annotation>'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "DOCTYPE"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>', "DOCTYPE"),
        ("", "not XML: no element found"),
        ("<annotation>", "not XML: no element found"),
        ("<annotation>&lost;</annotation>", "not XML: undefined entity"),
        ("<?xml version='1.0' encoding='lost'?><annotation/>", "not XML"),
        ("<html/>", "its root is <html>"),
        ("<annotation/>", "the image has no <size><height>"),
        (voc_xml("b.gif", width=0), "no valid size: width 0"),
        (voc_xml("b.gif", width="wide"), "<size><width> of the image is 'wide'"),
        (voc_xml("b.gif", width="1e999"), "<size><width> of the image is '1e999'"),
        (voc_xml("b.gif", voc_object("")), "object 0 has no name"),
        (voc_xml("b.gif", voc_object("a"), "<object/>"), "object 1 has no name"),
        (voc_xml("b.gif", voc_object("a", (1, 2, "x", 4))), "<bndbox><xmax> of object 0 is 'x'"),
        (voc_xml("b.gif", voc_object("a", (1, 2, "nan", 4))), "bndbox of object 0 is not finite"),
        (voc_xml("b.gif", voc_object("a", (1, "-inf", 2, 4))), "bndbox of object 0 is not finite"),
        (voc_xml("b.gif", "<object><name>a</name></object>"), "object 0 has no <bndbox><xmin>"),
        (voc_xml("b.gif", voc_object("a", more="<difficult>2</difficult>")), "<difficult> of obj"),
    ],
)
def test_a_wrong_file_is_the_fault_of_its_image(tmp_path, text, words):
    write_voc(tmp_path, {"a": [voc_object("cat")], "b": []})
    write(tmp_path / "Annotations/b.xml", text)
    source = open_source(str(tmp_path))
    good, bad = source.items()
    assert source.load(good)[f"{OBJECT}/class/text"] == ["cat"]
    with pytest.raises(SourceError, match=words) as caught:
        source.load(bad)
    assert not isinstance(caught.value, SourceChanged)
    assert (caught.value.item, caught.value.message[:6]) == ("b.gif", "b.xml:")
    run = shardwriter.RunOptions(on_error="skip")
    assert shardwriter.write(str(tmp_path), tmp_path / "o/t@1", run=run).num_records == 1


def test_nothing_that_was_declared_is_expanded():
    layers = "".join(f'<!ENTITY e{i + 1} "{f"&e{i};" * 10}">' for i in range(12))
    with pytest.raises(BadAnnotation, match="DOCTYPE"):
        parse_xml(f'<!DOCTYPE a [<!ENTITY e0 "x">{layers}]><a>&e12;</a>'.encode())
    assert parse_xml("<a>&lt;ü&#65;</a>".encode("utf-16")).text == "<üA"
    assert parse_xml(b"\xef\xbb\xbf<a>x</a>").text == "x"


def test_images_that_can_not_be_used(tmp_path):
    write_voc(tmp_path, {name: [] for name in "abc"})
    write(tmp_path / "JPEGImages/a.gif", gif(20, 40))
    source = VocDetection(str(tmp_path))
    write(tmp_path / "JPEGImages/b.gif", gif(40, 20) + b"x")
    with pytest.raises(SourceError, match="20 x 40 pixels"):
        source.load(source.item(0))
    with pytest.raises(SourceChanged, match="has changed"):
        source.load(source.item(1))


@pytest.mark.parametrize("name", ["d", "d/Annotations"])
def test_a_folder_without_annotations(tmp_path, name):
    (tmp_path / name).mkdir(parents=True)
    with pytest.raises(SourceError, match="no XML files with annotations"):
        open_source(str(tmp_path / "d"), "voc")


def test_engines_agree(tmp_path):
    write_voc(tmp_path, {str(i): [voc_object("cat")] * (i % 3) for i in range(20)})
    written = []
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        run = shardwriter.RunOptions(workers=workers)
        assert shardwriter.write(str(tmp_path), out / "t@3", format="voc", run=run).num_items == 20
        files = sorted(path for path in out.iterdir() if "-of-" in path.name)
        written.append([path.read_bytes() for path in files])
    assert written[0] == written[1]
