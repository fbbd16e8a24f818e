"""Samples of tar files: what belongs together, what a feature is, and archives that are damaged."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.errors import RecordTooLarge, SourceChanged, SourceError
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources import webdataset as tar_samples
from shardwriter.sources.webdataset import StreamedSample, WebDataset, _parse_plain

BLOCK = 512


def tar_bytes(members, format=tarfile.GNU_FORMAT):
    """Make an archive of (name, bytes) or TarInfo."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            name, data = member
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def special(name, type, **more):
    info = tarfile.TarInfo(name)
    info.type = type
    for key, value in more.items():
        setattr(info, key, value)
    return info


@pytest.fixture(params=["tar", "tgz"])
def opened(request, tmp_path):
    """Opens an archive, plain and packed."""

    def open_it(members, format=tarfile.GNU_FORMAT):
        data = members if isinstance(members, bytes) else tar_bytes(members, format)
        path = tmp_path / f"x.{request.param}"
        path.write_bytes(gzip.compress(data) if request.param == "tgz" else data)
        return WebDataset([str(path)])

    return open_it


@pytest.fixture
def plain(tmp_path):
    def open_it(members, name="x.tar"):
        data = members if isinstance(members, bytes) else tar_bytes(members)
        (tmp_path / name).write_bytes(data)
        return WebDataset([str(tmp_path / name)])

    return open_it


def samples(source):
    return [source.load(item) for item in source.items()]


# -- what a sample is ------------------------------------------------------------------------------


def test_neighbours_that_agree_up_to_the_first_dot_are_a_sample(opened):
    source = opened(
        [
            ("./b/1.seg.PNG", b"p"),
            ("./b/1.jpg", b"j"),
            ("b/1.jpg", b"k"),
            ("b.d/1.jpg", b"l"),
            ("b.d/2.jpg", b"m"),
            ("a.jpg", b"n"),
        ]
    )
    assert samples(source) == [
        {"__key__": "./b/1", "seg.png": b"p", "jpg": b"j"},
        {"__key__": "b/1", "jpg": b"k"},
        {"__key__": "b.d/1", "jpg": b"l"},
        {"__key__": "b.d/2", "jpg": b"m"},
        {"__key__": "a", "jpg": b"n"},
    ]
    assert [source.key(item) for item in source.items()] == ["./b/1", "b/1", "b.d/1", "b.d/2", "a"]


def test_a_feature_is_what_the_last_part_of_its_extension_says(opened):
    source = opened(
        [
            ("1.cls", b" -12\n"),
            ("1.a.cls", b"9223372036854775807"),
            ("1.txt", "é\n".encode()),
            ("1.json", b'{"a": [1'),
            ("1.txt.gz", b"\0\xff"),
            ("1.jpeg", b"no image"),
            ("1.npy", b""),
        ]
    )
    assert samples(source) == [
        {
            "__key__": "1",
            "cls": -12,
            "a.cls": 2**63 - 1,
            "txt": "é\n",
            "json": '{"a": [1',
            "txt.gz": b"\0\xff",
            "jpeg": b"no image",
            "npy": b"",
        }
    ]
    string, number = FeatureType("bytes", "string", ()), FeatureType("int64", "int64", ())
    plain = FeatureType("bytes", "bytes", ())
    assert source.plan == {
        "__key__": string,
        "cls": number,
        "a.cls": number,
        "txt": string,
        "json": string,
        "txt.gz": plain,
        "jpeg": FeatureType("bytes", "bytes", (), "image"),
        "npy": plain,
    }
    assert source.label == "cls"


def test_the_plan_of_plain_files_knows_all_extensions_and_of_a_stream_those_in_front(opened):
    source = opened([("1.jpg", b""), ("2.jpg", b""), ("2.cls", b"1")])
    more = {"cls"} if source.random_access else set()
    assert source.plan.keys() == {"__key__", "jpg"} | more
    assert source.label == ("cls" if more else None)


def test_what_belongs_to_no_sample_is_left_out_and_told(opened):
    source = opened(
        [
            special("d", tarfile.DIRTYPE),
            ("__meta__", b"x"),
            ("__group__/1.jpg", b"x"),
            ("d/1.jpg", b"j"),
            ("d/._1.jpg", b"x" * 700),
            ("d/1.txt", b"t"),
            special("d/1.png", tarfile.SYMTYPE, linkname="1.jpg"),
            special("d/1.gif", tarfile.LNKTYPE, linkname="d/1.jpg", size=7),
            ("d/README", b"x"),
            ("d/2.", b"x"),
            ("d/2.jpg", b"k"),
            ("d/.DS_Store", b"x"),
        ]
    )
    assert samples(source) == [
        {"__key__": "d/1", "jpg": b"j", "txt": "t"},
        {"__key__": "d/2", "jpg": b"k"},
    ]
    told = (
        "members that are not part of a sample were left out: "
        "2 reserved members of WebDataset (__...__), 2 hidden files, 2 links and devices, "
        "2 files without an extension"
    )
    assert source.notes == ([told] if source.random_access else [])


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names(opened, format):
    deep = "/".join(["d" * 50] * 3) + "/" + "n" * 70
    names = [deep + ".jpg", deep + ".cls", "short.jpg"]
    if format != tarfile.USTAR_FORMAT:
        names += ["é" * 300 + ".jpg", "é" * 300 + ".txt", "next.jpg"]
    source = opened([(name, b"7" * i) for i, name in enumerate(names, 1)], format)
    assert [(s["__key__"], sorted(s)[1:]) for s in samples(source)] == [
        (deep, ["cls", "jpg"]),
        ("short", ["jpg"]),
        *([("é" * 300, ["jpg", "txt"]), ("next", ["jpg"])] if len(names) > 3 else []),
    ]


def test_a_size_in_the_attributes_counts(opened):
    info = tarfile.TarInfo("1.jpg")
    info.pax_headers = {"size": "5", "comment": "é"}
    head = info.tobuf(tarfile.PAX_FORMAT)
    data = head + b"12345".ljust(BLOCK, b"\0") + tar_bytes([("2.jpg", b"x")])
    assert samples(opened(data)) == [
        {"__key__": "1", "jpg": b"12345"},
        {"__key__": "2", "jpg": b"x"},
    ]


def test_a_global_header_belongs_to_no_member(opened):
    info = tarfile.TarInfo()
    comment = info.create_pax_global_header({"comment": "made by git"})
    assert len(samples(opened(comment + tar_bytes([("1.jpg", b"x")])))) == 1
    named = info.create_pax_global_header({"path": "all.jpg"})
    with pytest.raises(SourceError, match="global PAX"):
        samples(opened(named + tar_bytes([("1.jpg", b"x")])))


def test_many_extensions_are_told(plain):
    source = plain([(f"v1.{i:03}.jpg", b"") for i in range(100)])
    assert source.num_items == 1
    assert source.notes == [
        "there are 100 different extensions, such as '099.jpg': names are split at their first "
        "dot, so keys can not have dots"
    ]


NAMES = st.text("ab./_", min_size=1, max_size=8).filter(lambda name: name.strip("/"))


@given(st.lists(st.tuples(NAMES, st.binary(max_size=1200)), max_size=8))
def test_plain_and_packed_are_the_same(tmp_path_factory, members):
    folder = tmp_path_factory.mktemp("tars")
    paths = [str(folder / "x.tar"), str(folder / "x.tgz")]
    data = tar_bytes(members)
    for path, content in zip(paths, (data, gzip.compress(data)), strict=True):
        with open(path, "wb") as file:
            file.write(content)
    found = []
    for path in paths:
        try:
            source = WebDataset([path])
            found.append(
                [
                    item.sample
                    if isinstance(item, StreamedSample)
                    else source._files[0].sample(*source._place(item)[1:])
                    for item in source.items()
                ]
            )
        except SourceError as error:
            found.append([] if "no samples" in error.message else error.message)
    assert found[0] == found[1]
    if isinstance(found[0], list):
        contents = [content for sample in found[0] for _, content in sample.members]
        rest = iter(content for _, content in members)
        assert all(content in rest for content in contents)  # in order, and none is another


# Of the fields that say what a member is: name, size, sum, type, magic and prefix.
PLACES = st.sampled_from(
    [*range(98), *range(124, 134), *range(148, 160), *range(257, 262), 345, 400]
)


@given(PLACES, st.binary(min_size=1, max_size=3), st.booleans())
@example(148, b"\0", False)
@example(124, b"\0", True)
def test_headers_are_what_tarfile_says(at, data, is_summed):
    block = bytearray(special("a/b.jpg", tarfile.REGTYPE, size=1234).tobuf())
    block[at : at + len(data)] = data
    del block[BLOCK:]
    if is_summed:
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
    ours = _parse_plain(bytes(block))
    try:
        theirs = tarfile.TarInfo.frombuf(bytes(block), "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        assert ours is None
    else:
        assert ours is None or (ours.name, ours.size, ours.type) == (
            theirs.name,
            theirs.size,
            theirs.type,
        )


# -- what is refused -------------------------------------------------------------------------------


def test_a_key_that_comes_back_is_an_error(opened):
    members = [("1.jpg", b""), ("2.jpg", b""), ("1.cls", b"1")]
    with pytest.raises(SourceError, match="the key '1' is repeated") as caught:
        samples(opened(members))
    assert caught.value.offset == 2 * BLOCK
    assert "--sort=name" in caught.value.hint


def test_each_file_has_its_own_keys(tmp_path):
    paths = [tmp_path / "a.tar", tmp_path / "b.tar"]
    for path in paths:
        path.write_bytes(tar_bytes([("1.txt", path.name.encode())]))
    source = WebDataset(list(map(str, paths)))
    assert [s["txt"] for s in samples(source)] == ["a.tar", "b.tar"]
    assert [source.key(item) for item in source.items()] == ["a.tar/1", "b.tar/1"]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (
            [("2.jpg", b""), ("2.JPG", b"")],
            r"two members of the sample '2' have the extension \.jpg",
        ),
        ([("2.cls", b"cat")], r"2\.cls is b'cat', not an integer"),
        ([("2.cls", b"")], "not an integer"),
        ([("2.cls", b"1.0")], "not an integer"),
        ([("2.cls", b"9" * 5000)], "beyond 64 bits"),
        ([("2.txt", b"ab\xe9")], r"2\.txt is not UTF-8: byte 0xe9 at 2"),
        ([("2.__key__", b"")], "two members"),
    ],
)
def test_one_bad_sample_can_be_skipped(opened, tmp_path, members, words):
    source = opened([("1.npy", b""), *members, ("3.npy", b"")])
    first, bad, last = source.items()
    with pytest.raises(SourceError, match=words) as caught:
        source.load(bad)
    assert caught.value.path == str(next(tmp_path.glob("x.*")))
    assert not isinstance(caught.value, SourceChanged)
    assert [source.load(item)["__key__"] for item in (first, last)] == ["1", "3"]
    path = next(tmp_path.glob("x.*"))
    result = sw.write(path, tmp_path / "out/t@2", run=sw.RunOptions(on_error="skip", workers=1))
    assert result.num_records == 2
    assert '"item":"2"' in (tmp_path / "out/t.errors.jsonl").read_text()


def test_a_sample_that_no_record_holds(opened, monkeypatch):
    monkeypatch.setattr(tar_samples, "MAX_PAYLOAD_BYTES", 2000)
    source = opened([("1.jpg", b"x" * 900), ("2.jpg", b"x" * 1999), ("2.txt", b"xyz")])
    small, large = source.items()
    assert len(source.load(small)["jpg"]) == 900
    with pytest.raises(RecordTooLarge, match="less than 2 GiB"):
        source.load(large)


def test_sparse_files(opened):
    gnu = special("1.jpg", tarfile.GNUTYPE_SPARSE)
    with pytest.raises(SourceError, match=r"'1\.jpg' is stored as a sparse file"):
        samples(opened([gnu]))
    info = tarfile.TarInfo("1.jpg")
    info.pax_headers = {"GNU.sparse.major": "1"}
    with pytest.raises(SourceError, match="sparse"):
        samples(opened(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)))


def test_a_name_that_is_not_utf8(opened):
    info = tarfile.TarInfo("\udcff.jpg")
    data = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + bytes(1024)
    with pytest.raises(SourceError, match=r"udcff\.jpg' is not UTF-8"):
        samples(opened(data))


# -- damage ----------------------------------------------------------------------------------------

WHOLE = tar_bytes([("1.jpg", b"a" * 700), ("1.txt", b"t"), ("n" * 200 + ".jpg", b"b" * 600)])
END = len(WHOLE.rstrip(b"\0")) // BLOCK * BLOCK + BLOCK  # of the last member


@pytest.mark.parametrize("length", [*range(1, END, 173), *range(BLOCK, END + 1, BLOCK)])
def test_a_tar_that_is_cut_off_is_never_taken_for_a_short_one(opened, length):
    with pytest.raises(SourceError, match=r"truncated|not a tar file") as caught:
        samples(opened(WHOLE[:length]))
    assert caught.value.path.endswith((".tar", ".tgz"))
    assert caught.value.offset is not None
    assert caught.value.offset <= length


def test_an_end_marker_is_asked_for_and_can_be_added(opened):
    with pytest.raises(SourceError, match="no end marker") as caught:
        samples(opened(WHOLE[:END]))
    assert caught.value.offset == END
    assert "truncate -s +1024" in caught.value.hint
    for num_bytes in (512, 1024, 5000, 100_000):
        assert len(samples(opened(WHOLE[:END] + bytes(num_bytes)))) == 2


def test_a_damaged_header_is_not_the_end(opened):
    data = bytearray(WHOLE)
    at = 3 * BLOCK
    data[at + 3] ^= 1
    with pytest.raises(SourceError, match=r"header of a member is damaged \(bad checksum\)") as e:
        samples(opened(bytes(data)))
    assert e.value.offset == at


def test_an_archive_behind_the_end_is_not_lost_without_a_word(opened):
    with pytest.raises(SourceError, match="has more after its end marker") as caught:
        samples(opened(WHOLE + tar_bytes([("2.jpg", b"")])))
    assert caught.value.offset == len(WHOLE)


@pytest.mark.parametrize("cut", [5, 30])
def test_a_packed_file_that_is_cut_off(tmp_path, cut):
    path = tmp_path / "x.tgz"
    path.write_bytes(gzip.compress(WHOLE)[:-cut])
    with pytest.raises(SourceError, match=r"can not be decompressed|truncated"):
        samples(WebDataset([str(path)]))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty header"),
        (b"x" * 600, "not a tar file"),
        (tar_bytes([("1.jpg", b"")])[:300], "not a tar file"),
        (b"BZh91AY" + bytes(600), "compressed with bzip2"),
        (b"\x28\xb5\x2f\xfd" + bytes(600), "compressed with zstd"),
        (bytes(1024), "no samples"),
        (tar_bytes([("README", b"x")]), "no samples"),
    ],
)
def test_no_tar_and_no_samples(plain, data, words):
    with pytest.raises(SourceError, match=words):
        plain(data)


@pytest.mark.parametrize("line", [b"9 path=a", b"x path=a\n", b"99 path=a\n", b"9 size=-1\n"])
def test_damaged_attributes(opened, line):
    info = special("x", tarfile.XHDTYPE, size=len(line))
    data = info.tobuf() + line.ljust(BLOCK, b"\0") + tar_bytes([("1.jpg", b"")])
    with pytest.raises(SourceError, match=r"damaged|has the size"):
        samples(opened(data))


def test_a_name_like_the_head_of_a_zlib_stream(plain):
    assert samples(plain([("x^2.jpg", b"1")])) == [{"__key__": "x^2", "jpg": b"1"}]


def test_a_file_that_changes(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(WHOLE)
    source = WebDataset([str(path)])
    os.utime(path, (1, 1))
    with pytest.raises(SourceChanged):
        source.load(0)
    with pytest.raises(SourceChanged):
        pickle.loads(pickle.dumps(list(source._files)))[0].open()
    packed = tmp_path / "x.tgz"
    packed.write_bytes(gzip.compress(WHOLE))
    source = WebDataset([str(packed)])
    os.utime(packed, (1, 1))
    with pytest.raises(SourceChanged):
        samples(source)


# -- written ---------------------------------------------------------------------------------------


class Counting:
    """A map that notes every call in a file."""

    def __init__(self, path):
        self.path = str(path)

    def __call__(self, features):
        with open(self.path, "a") as file:
            file.write(features["__key__"] + "\n")
        return features


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_map_is_called_once_for_each_sample(tmp_path, pack, workers):
    path = tmp_path / "x.tar"
    path.write_bytes(pack(tar_bytes([(f"{i:03}.cls", b"%d" % i) for i in range(30)])))
    run = sw.RunOptions(workers=workers)
    sw.write(path, tmp_path / "out/t@4", map=Counting(tmp_path / "calls"), run=run)
    assert sorted((tmp_path / "calls").read_text().split()) == [f"{i:03}" for i in range(30)]


def datasets(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_engines_write_the_same_bytes(tmp_path, pack):
    (tmp_path / "in").mkdir()
    for number in range(3):
        members = [
            (f"{i:04}.{extension}", b"%d" % i)
            for i in range(40 * number)
            for extension in ("jpg", "cls", "txt")
        ]
        (tmp_path / f"in/{number}.tar").write_bytes(pack(tar_bytes(members)))
    for workers in (1, 2):
        run = sw.RunOptions(workers=workers)
        sw.write(tmp_path / "in", tmp_path / f"{workers}/t@5", run=run)
    assert datasets(tmp_path / "1") == datasets(tmp_path / "2")


def test_plain_and_packed_give_the_same_records(tmp_path):
    for pack, name in ((bytes, "tar"), (gzip.compress, "tgz")):
        path = tmp_path / f"x.{name}"
        path.write_bytes(pack(WHOLE))
        sw.write(path, tmp_path / name / "t@1", run=sw.RunOptions(workers=1))
    (shards,) = zip(
        *[[p.read_bytes() for p in (tmp_path / n).glob("*-of-*")] for n in ("tar", "tgz")],
        strict=True,
    )
    assert shards[0] == shards[1]


# -- other people's files --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "num_samples", "first"),
    [
        ("webdataset+webdataset/testdata/sample.tgz", 90, {"__key__": "10", "cls": 0}),
        ("webdataset+webdataset/testdata/compressed.tar", 3, {"__key__": "compressed/0001"}),
        ("pytorch+data/test/_fakedata/txt.tar.gz", 3, {"__key__": "txt/0"}),
        ("pytorch+data/examples/vision/fakedata/caltech101/Annotations.tar", 6, {}),
    ],
)
def test_real_tars(data_dir, name, num_samples, first):
    path = data_dir / name
    if not path.exists():
        pytest.skip(f"{name} is not among the test data")
    found = samples(WebDataset([str(path)]))
    assert len(found) == num_samples
    assert {**found[0], **first}.keys() == found[0].keys()
    assert found[0]["__key__"] == first.get("__key__", found[0]["__key__"])
    with tarfile.open(path) as tar:
        members = [tar.extractfile(member).read() for member in tar if member.isreg()]
    mine = [value for sample in found for name, value in sample.items() if name != "__key__"]
    encoded = [v if isinstance(v, bytes) else str(v).encode() for v in mine]
    assert encoded == members
