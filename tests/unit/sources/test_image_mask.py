"""Images and masks: which go together, what is refused, and that pairs stay together."""

from __future__ import annotations

import os
import pickle
import re
import struct

import pytest

import shardwriter as sw
from shardwriter.errors import OptionError, SourceChanged, SourceError
from shardwriter.sources.find import open_source
from shardwriter.sources.image_mask import ImageMask, has_pairs, parse_spec


def gif(width=7, height=5, more=b""):
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;" + more


@pytest.fixture
def root(tmp_path):
    """Return a function that writes files, and returns their folder."""

    def make(*names, **files):
        for name in names:
            files.setdefault(name, gif())
        for name, data in files.items():
            path = tmp_path / "data" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return str(tmp_path / "data")

    return make


def pairs(source):
    return [(item.image, item.mask) for item in source.items()]


# -- which folders -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        ("images", "masks"),
        ("image", "mask"),
        ("img", "label"),
        ("imgs", "annotations"),
        ("Images", "Labels"),
        ("JPEGImages", "SegmentationClass"),
        ("train", "trainannot"),
        ("train", "train_labels"),
        ("train", "train-masks"),
        ("val/images", "val/masks"),
    ],
)
def test_folders_are_known_by_name(root, images, masks):
    path = root(f"{images}/1.jpg", f"{images}/a/2.jpg", f"{masks}/1.png", f"{masks}/a/2.png")
    source = ImageMask(path)
    assert pairs(source) == [
        (f"{images}/1.jpg", f"{masks}/1.png"),
        (f"{images}/a/2.jpg", f"{masks}/a/2.png"),
    ]
    assert has_pairs(path)
    assert source.notes[0].startswith(
        f"images with masks, paired by name: {{{images}/*,{masks}/*}}"
    )
    assert "--format image-folder" in source.notes[0]
    assert open_source(path, "image-folder").num_items == 4


def test_other_folders_and_files_are_left_out(root):
    path = root("images/1.gif", "masks/1.gif", "masks/x.json", "ImageSets/a.txt", "other/3.gif")
    source = ImageMask(path)
    assert pairs(source) == [("images/1.gif", "masks/1.gif")]
    assert source.notes[1:] == ["files that are not images were left out: 1 .json"]


def test_parts_are_one_dataset_and_can_be_had_alone(root):
    path = root(
        *(
            f"{side}/{n}.gif"
            for side in ("val", "valannot", "train", "trainannot")
            for n in range(2)
        )
    )
    source = ImageMask(path)
    assert [item.image for item in source.items()] == [
        "train/0.gif",
        "train/1.gif",
        "val/0.gif",
        "val/1.gif",
    ]
    assert source.notes[1] == (
        f"2 parts are one dataset; SOURCE '{path}/{{train/*,trainannot/*}}' is only the first"
    )
    alone = ImageMask(f"{path}/{{train/*,trainannot/*}}")
    assert pairs(alone) == pairs(source)[:2]
    assert pairs(ImageMask(f"{path}/{{val,valannot}}/")) == pairs(source)[2:]


def test_several_folders_that_would_do_are_listed(root):
    path = root(
        "JPEGImages/1.gif",
        "SegmentationClass/1.gif",
        "SegmentationObject/1.gif",
        "Annotations/1.xml",
    )
    assert has_pairs(path)
    with pytest.raises(SourceError, match="several folders may have") as caught:
        open_source(path, "image-mask")  # by looking it is VOC
    choice = f"'{path}/{{JPEGImages/*,SegmentationObject/*}}'"
    assert choice in caught.value.hint
    assert pairs(open_source(choice[1:-1])) == [("JPEGImages/1.gif", "SegmentationObject/1.gif")]


def test_a_link_to_a_folder_is_followed(root, tmp_path):
    path = root("images/1.gif", "elsewhere/1.gif")
    (tmp_path / "data" / "masks").symlink_to("elsewhere")
    assert pairs(ImageMask(path)) == [("images/1.gif", "masks/1.gif")]


# -- which names ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("{}", "{}_mask"),
        ("{}", "{}_L"),
        ("{}", "{}-gt"),
        ("{}", "{}.mask"),
        ("{}_image", "{}_mask"),
        ("{}_training", "{}_manual1"),
        ("x_{}_leftImg8bit", "x_{}_gtFine_labelIds"),
        ("image_{}", "gt_{}"),
        ("{}", "mask_{}"),
        ("sub/image_{}", "sub/gt_{}"),
    ],
)
def test_a_word_of_one_side_is_found(root, image, mask):
    names = ["0001", "0010", "0101", "1", "10"]
    path = root(
        *(f"images/{image.format(n)}.jpg" for n in names),
        *(f"masks/{mask.format(n)}.png" for n in names),
    )
    source = ImageMask(path)
    assert sorted(pairs(source)) == sorted(
        (f"images/{image.format(n)}.jpg", f"masks/{mask.format(n)}.png") for n in names
    )
    spec = source.notes[0].split(": ")[1].split(";")[0]
    if "/" not in image:
        assert pairs(ImageMask(f"{path}/{spec}")) == pairs(source)


def test_equal_names_come_first(root):
    path = root(
        "images/a_1.gif",
        "images/a_2.gif",
        "masks/a_1.gif",
        "masks/a_2.gif",
        "masks/a_1_L.gif",
        "masks/a_2_L.gif",
    )
    assert pairs(ImageMask(path)) == [
        ("images/a_1.gif", "masks/a_1.gif"),
        ("images/a_2.gif", "masks/a_2.gif"),
        ("", "masks/a_1_L.gif"),
        ("", "masks/a_2_L.gif"),
    ]
    assert pairs(ImageMask(f"{path}/{{images/*,masks/*_L}}")) == [
        ("images/a_1.gif", "masks/a_1_L.gif"),
        ("images/a_2.gif", "masks/a_2_L.gif"),
    ]


def test_numbers_are_no_words(root):
    path = root("images/a_1.gif", "images/b_1.gif", "masks/a_2.gif", "masks/b_2.gif")
    with pytest.raises(SourceError, match="no image has a mask of the same name") as caught:
        ImageMask(path)
    assert "'images/a_1.gif'" in str(caught.value)
    assert "'masks/a_2.gif'" in str(caught.value)
    assert not has_pairs(path)


@pytest.mark.parametrize("missing", [[], ["masks/3_instance.gif"]])
def test_several_masks_of_an_image_are_listed(root, tmp_path, missing):
    path = root(
        *(f"images/{n}.gif" for n in range(4)),
        *(f"masks/{n}_{kind}.gif" for n in range(4) for kind in ("mask", "instance")),
    )
    for name in missing:
        (tmp_path / "data" / name).unlink()
    with pytest.raises(SourceError, match="match in several ways") as caught:
        ImageMask(path)
    assert caught.value.hint == (
        f"give '{path}/{{images/*,masks/*_instance}}' or '{path}/{{images/*,masks/*_mask}}'; "
        "or add --format image-folder for class folders"
    )
    source = ImageMask(f"{path}/{{images/*,masks/*_mask.gif}}")
    assert [mask for _, mask in pairs(source)] == [f"masks/{n}_mask.gif" for n in range(4)]


def test_a_longer_word_of_some_names_is_no_second_way(root):
    names = ["a_b", "c_b", "d_b", "e_b", "f"]
    path = root(*(f"images/{n}_im.gif" for n in names), *(f"masks/{n}_gt.gif" for n in names))
    assert [mask for _, mask in pairs(ImageMask(path))] == [f"masks/{n}_gt.gif" for n in names]


@pytest.mark.parametrize("side", ["images", "masks"])
def test_one_name_with_two_endings_is_refused(root, side):
    path = root("images/1.gif", "masks/1.gif", f"{side}/1.PNG")
    with pytest.raises(SourceError, match=f"'{side}/1.PNG' and '{side}/1.gif'") as caught:
        ImageMask(path)
    assert ".PNG'" in caught.value.hint
    source = ImageMask(f"{path}/{{images/*.gif,masks/*.gif}}")
    assert pairs(source) == [("images/1.gif", "masks/1.gif")]


@pytest.mark.parametrize(
    ("data", "root", "spec"),
    [
        ("d/{a,b}", "d", "{a/*,b/*}"),
        ("{a,b}", ".", "{a/*,b/*}"),
        ("/{a/x,b}/", "/", "{a/x/*,b/*}"),
        ("gs://bkt/d/{a/i_*.JPG,b/*_L.png}", "gs://bkt/d", "{a/i_*.JPG,b/*_L.png}"),
        ("d/{a/*.x,b/*.png}", "d", "{a/*.x,b/*.png}"),
    ],
)
def test_what_is_said_is_taken_apart(data, root, spec):
    found = parse_spec(data)
    assert (found[0], found[1].spec, found[2]) == (root, spec, "*" in data)


@pytest.mark.parametrize("data", ["d/{a}", "d/{a,b,c}", "d/{a,b}*.csv", "d", "{,}"])
def test_other_braces_are_names(data):
    assert parse_spec(data) is None


# -- what is loaded ------------------------------------------------------------------------------


def test_one_record_holds_both(root):
    image, mask = gif(4, 6, b"image"), gif(4, 6, b"mask")
    source = ImageMask(root(**{"images/a/1.jpg": image, "masks/a/1_mask.png": mask}))
    assert source.load(source.item(0)) == {
        "image/encoded": image,
        "image/filename": "images/a/1.jpg",
        "image/format": "gif",
        "image/height": 6,
        "image/width": 4,
        "image/segmentation/class/encoded": mask,
        "image/segmentation/class/filename": "masks/a/1_mask.png",
        "image/segmentation/class/format": "gif",
    }
    assert source.key(source.item(0)) == "images/a/1.jpg"
    assert source.size_bytes(source.item(0)) == len(image) + len(mask)


def test_sizes_must_agree(root):
    source = ImageMask(root("images/1.gif", **{"masks/1.gif": gif(5, 7)}))
    with pytest.raises(SourceError, match=r"5 x 7 pixels.*'masks/1.gif' has 7 x 5") as caught:
        source.load(source.item(0))
    assert caught.value.path.endswith("images/1.gif")


@pytest.mark.parametrize("name", ["images/1.gif", "masks/1.gif"])
@pytest.mark.parametrize("change", ["no image", "gone", "newer"])
def test_a_bad_or_changed_file_is_named(root, tmp_path, name, change):
    path = root(
        "images/1.gif", "masks/1.gif", **({name: b"<html>"} if change == "no image" else {})
    )
    source = ImageMask(path)
    if change == "gone":
        (tmp_path / "data" / name).unlink()
    elif change == "newer":
        os.utime(tmp_path / "data" / name, (1, 1))
    with pytest.raises(SourceError) as caught:
        source.load(source.item(0))
    assert caught.value.path == os.path.join(path, name)
    assert isinstance(caught.value, SourceChanged) == (change != "no image")


def test_missing_partners_are_told_and_give_errors(root):
    path = root(
        "images/1.gif",
        "images/2.gif",
        "images/3.gif",
        "masks/1_L.gif",
        "masks/3_L.gif",
        "masks/4_L.gif",
    )
    source = ImageMask(path)
    assert pairs(source) == [
        ("images/1.gif", "masks/1_L.gif"),
        ("images/2.gif", ""),
        ("images/3.gif", "masks/3_L.gif"),
        ("", "masks/4_L.gif"),
    ]
    assert source.notes[1:] == [
        "1 image(s) without mask: images/2.gif",
        "1 mask(s) without image: masks/4_L.gif",
    ]
    for place, words, partner in (
        (1, "image has no mask", "masks/2_L.*"),
        (3, "mask has no image", "images/4.*"),
    ):
        with pytest.raises(SourceError, match=words) as caught:
            pickle.loads(pickle.dumps(source)).load(source.item(place))
        assert caught.value.path == os.path.join(path, source.key(source.item(place)))
        assert f"add '{partner}'" in caught.value.hint
        assert "1 image(s) without mask and 1 mask(s) without image" in str(caught.value)


def test_masks_that_do_not_fit_are_alone(root):
    path = root(
        *(f"images/{n}.gif" for n in range(3)),
        *(f"masks/{n}_L.gif" for n in range(3)),
        "masks/colours.gif",
    )
    source = ImageMask(path)
    assert pairs(source)[-1] == ("", "masks/colours.gif")
    with pytest.raises(SourceError, match="no image") as caught:
        source.load(source.item(3))
    assert caught.value.hint == "leave it out with --on-error skip"
    assert ImageMask(f"{path}/{{images/*,masks/*_L}}").num_items == 3


# -- what is written -----------------------------------------------------------------------------


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if "tfrecord" in path.name}


@pytest.fixture
def six_hundred(root):
    """600 pairs that tell their number, as the sizes of their images do."""
    files = {}
    for number in range(600):
        files[f"images/{number:04d}.jpg"] = gif(1 + number, 2, b"i%d" % number)
        files[f"masks/{number:04d}_mask.png"] = gif(1 + number, 2, b"m%d" % number)
    return root(**files)


def test_600_pairs_stay_together_in_any_engine(six_hundred, tmp_path):
    for engine, run in {
        "serial": sw.RunOptions(engine="serial"),
        "process": sw.RunOptions(engine="process", workers=2),
    }.items():
        sw.write(six_hundred, tmp_path / engine / "t@6", run=run)
    assert files_of(tmp_path / "serial") == files_of(tmp_path / "process")
    dataset = sw.open(tmp_path / "serial" / "t")
    assert len(dataset) == 600
    for number in range(600):
        record = dataset[number]
        assert bytes(record["image/encoded"]).endswith(b"i%d" % number)
        assert bytes(record["image/segmentation/class/encoded"]).endswith(b"m%d" % number)


@pytest.mark.parametrize("seed", [None, 5])
def test_two_jobs_of_equal_n_stay_in_step_too(six_hundred, tmp_path, seed):
    def names(shard):
        source = open_source(str(shard))
        loaded = (source.decode(source.load(item)) for item in source.items())
        return [features["image/filename"][0].decode() for features in loaded]

    shards = []
    for side in ("images", "masks"):
        folder = os.path.join(six_hundred, side)
        sw.write(folder, tmp_path / side / "t@6", shuffle_seed=seed)
        shards.append(sorted((tmp_path / side).glob("t.tfrecord-*")))
    assert len(shards[0]) == 6
    for images, masks in zip(*shards, strict=True):
        assert len(names(images)) == 100
        assert names(masks) == [name.replace(".jpg", "_mask.png") for name in names(images)]


def test_beam_writes_the_same(root, tmp_path):
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    from beam_jobs import assert_same, run

    from shardwriter.cluster import WriteShards

    path = root(*(f"images/{n}.gif" for n in range(7)), *(f"masks/{n}.gif" for n in range(6)))
    options = sw.RunOptions(on_error="skip")
    sw.write(path, tmp_path / "serial" / "t@3", run=options)
    run(WriteShards(tmp_path / "beam" / "t@3", source=path, run=options))
    assert_same(tmp_path / "beam", tmp_path / "serial")


def test_a_missing_partner_stops_or_is_skipped_or_filtered(root, tmp_path):
    path = root("images/1.gif", "images/2.gif", "images/3.gif", "masks/1.gif", "masks/3.gif")
    with pytest.raises(SourceError, match="this image has no mask"):
        sw.write(path, tmp_path / "a" / "t@2")
    sw.write(path, tmp_path / "b" / "t@2", run=sw.RunOptions(on_error="skip"))
    assert len(sw.open(tmp_path / "b" / "t")) == 2
    assert "images/2.gif" in (tmp_path / "b" / "t.errors.jsonl").read_text()
    sw.write(path, tmp_path / "c" / "t@2", filter=lambda item: item.image and item.mask)
    names = [record["image/filename"] for record in sw.open(tmp_path / "c" / "t")]
    assert names == ["images/1.gif", "images/3.gif"]


# -- real files ----------------------------------------------------------------------------------


def test_real_camvid(data_dir, tmp_path):
    path = data_dir / "cvat-ai+datumaro/tests/assets/camvid_dataset"
    source = open_source(str(path))
    assert source.kind == "image-mask"
    assert pairs(source) == [
        (f"{part}/{name}.png", f"{part}annot/{name}.png")
        for part, name in (
            ("test", "0001TP_008550"),
            ("test", "0001TP_008580"),
            ("train", "0001TP_006690"),
            ("val", "0016E5_07959"),
        )
    ]
    sw.write(str(path), tmp_path / "t@2")
    for (image, mask), record in zip(pairs(source), sw.open(tmp_path / "t"), strict=True):
        assert bytes(record["image/encoded"]) == (path / image).read_bytes()
        assert bytes(record["image/segmentation/class/encoded"]) == (path / mask).read_bytes()


def test_tensorflow_reads_what_deeplab_asks_for(data_dir, tmp_path, tf):
    path = data_dir / "cvat-ai+datumaro/tests/assets/camvid_dataset"
    sw.write(str(path), tmp_path / "t@1")
    [shard] = tmp_path.glob("t.tfrecord-*")
    text = tf.io.FixedLenFeature((), tf.string)
    number = tf.io.FixedLenFeature((), tf.int64)
    asked = {
        **dict.fromkeys(("image/encoded", "image/filename", "image/format"), text),
        **dict.fromkeys(("image/height", "image/width"), number),
        "image/segmentation/class/encoded": text,
        "image/segmentation/class/format": text,
    }
    for record in tf.data.TFRecordDataset(str(shard)):
        found = tf.io.parse_single_example(record, asked)
        image = tf.io.decode_image(found["image/encoded"])
        mask = tf.io.decode_image(found["image/segmentation/class/encoded"])
        assert (*image.shape[:2],) == (*mask.shape[:2],)
        assert (*image.shape[:2],) == (int(found["image/height"]), int(found["image/width"]))


@pytest.mark.parametrize(
    ("folder", "words"),
    [("dataset", ("", "")), ("non_standard_dataset/segmentation", ("image_", "gt_"))],
)
def test_real_images_and_masks(data_dir, folder, words):
    assets = data_dir / "cvat-ai+datumaro/tests/assets/common_semantic_segmentation_dataset"
    source = open_source(str(assets / folder))
    image, mask = words
    assert pairs(source) == [
        (f"images/{image}{n}.png", f"masks/{mask}{n}.png") for n in ("0001", "0002")
    ]
    for item in source.items():
        assert source.load(item)["image/segmentation/class/format"] == "png"


def test_a_pattern_that_can_not_be_is_refused(root):
    path = root("a/1.gif", "b/1.gif")
    with pytest.raises(OptionError, match="not a relative folder"):
        ImageMask(f"{path}/{{a/*_*,b}}")


# -- both in one folder ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "mask", "spec"),
    [
        ("{}.jpg", "{}_mask.png", "{*,*_mask}"),
        ("{}.png", "{}_gt.png", "{*,*_gt}"),
        ("{}.png", "mask_{}.png", "{*,mask_*}"),
        ("{}_rgb.png", "{}_seg.png", "{*_rgb,*_seg}"),
        ("img-{}.png", "label-{}.png", "{img-*,label-*}"),
        ("a_{}.jpg", "a_{}_mask.png", "{*,*_mask}"),
    ],
)
def test_masks_beside_their_images(root, image, mask, spec):
    expected = [(image.format(n), mask.format(n)) for n in ("001", "002", "b")]
    path = root(*(name for pair in expected for name in pair), "readme.txt")
    assert has_pairs(path)
    for source in (open_source(path), open_source(f"{path}/{spec}")):
        assert source.kind == "image-mask"
        assert pairs(source) == expected
        assert source.notes[0].startswith(f"images with masks, paired by name: {spec}")
        assert source.load(source.item(0))["image/filename"] == expected[0][0]


def test_a_lone_image_or_mask_beside_others(root):
    path = root("1.jpg", "1_mask.png", "2.jpg", "2_mask.png", "3.jpg", "4_mask.png")
    source = ImageMask(path)
    assert pairs(source)[2:] == [("3.jpg", ""), ("", "4_mask.png")]
    for number, words in ((2, r"add '3_mask\.\*'"), (3, r"add '4\.\*'")):
        with pytest.raises(SourceError) as caught:
            source.load(source.item(number))
        assert re.search(words, caught.value.hint)


@pytest.mark.parametrize(
    "names",
    [
        ["1.jpg", "2.jpg", "3.jpg"],
        ["1_L.png", "1_R.png"],
        ["1_mask.png", "2_mask.png"],
        ["1.jpg", "2.jpg", "3.jpg", "4.jpg", "4_mask.png"],
        ["maskrat.jpg", "1.jpg"],
        ["1.jpg", "7_mask.jpg"],
        ["c/1.jpg", "c/1_mask.jpg"],
    ],
)
def test_images_that_are_not_masks_of_others(root, names):
    path = root(*names)
    assert not has_pairs(path)
    assert open_source(path).kind == "image-folder"


def test_sides_of_one_folder_that_are_said(root):
    path = root(
        "c/1.jpg", "c/1_seg.png", "c/1_parts_1.png", "c/1_atr.txt", "d/2.jpg", "d/2_seg.png"
    )
    source = ImageMask(f"{path}/{{*.jpg,*_seg.png}}")
    assert pairs(source) == [("c/1.jpg", "c/1_seg.png"), ("d/2.jpg", "d/2_seg.png")]
    below = ImageMask(f"{path}/{{c/*.jpg,c/*_seg.png}}")
    assert pairs(below) == [("c/1.jpg", "c/1_seg.png")]
    assert pairs(ImageMask(f"{path}/{{*_seg.png,*.jpg}}"))[0] == ("c/1_seg.png", "c/1.jpg")
    with pytest.raises(OptionError, match="the same files"):
        ImageMask(f"{path}/{{c,c}}")


def test_two_kinds_of_masks_beside_the_images(root):
    path = root(*(f"{n}{word}.png" for n in "12" for word in ("", "_mask", "_gt")))
    with pytest.raises(SourceError, match="in several ways"):
        ImageMask(path)


def test_ade20k(data_dir):
    """Real images with masks, and with masks of parts, in one folder."""
    root = data_dir / "cvat-ai+datumaro/tests/assets/ade20k2017_dataset/dataset"
    if not root.is_dir():
        pytest.skip("ADE20K is not among the test data")
    source = ImageMask(f"{root}/{{*.jpg,*_seg.png}}")
    assert pairs(source) == [
        (f"{name}.jpg", f"{name}_seg.png") for name in ("training/street/1", "validation/2")
    ]
    outcomes = [source.load(item)["image/height"] for item in source.items()]
    assert all(height > 0 for height in outcomes)


def test_engines_agree_on_one_folder(tmp_path, root):
    path = root(*(f"{n:03}{word}.png" for n in range(9) for word in ("", "_mask")))
    for workers in (1, 2):
        sw.write(path, tmp_path / str(workers) / "d@2", workers=workers)
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in "12")
    assert one == two
