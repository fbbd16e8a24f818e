"""WAV files: what their headers say, headers that lie, and folders of them."""

from __future__ import annotations

import io
import struct
import wave

import pytest

import shardwriter as sw
from shardwriter.errors import SourceError
from shardwriter.formats.media import WavHeader, read_wav_header
from shardwriter.sources.audio import AudioFolder

GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")


def chunk(name, body, num_bytes=None):
    size = struct.pack("<I", len(body) if num_bytes is None else num_bytes)
    return name + size + body + b"\0" * (len(body) % 2)


def fmt(code=1, channels=2, rate=8000, bits=16, frame_bytes=None, extra=b""):
    size = channels * -(-bits // 8) if frame_bytes is None else frame_bytes
    return chunk(
        b"fmt ", struct.pack("<HHIIHH", code, channels, rate, rate * size, size, bits) + extra
    )


def extensible(code, tail=GUID_TAIL, **more):
    extra = struct.pack("<HHIH", 22, more.get("bits", 16), 3, code) + tail
    return fmt(0xFFFE, extra=extra, **more)


def riff(*chunks, name=b"RIFF"):
    body = b"WAVE" + b"".join(chunks)
    return name + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_what_the_standard_library_writes(width, channels):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((channels, width, 44100, 0, "NONE", ""))
        out.writeframes(bytes(width * channels * 37))
    header = read_wav_header(file.getvalue())
    assert header == WavHeader(44100, channels, 8 * width, 37)


@pytest.mark.parametrize(
    ("data", "header"),
    [
        (riff(fmt(), chunk(b"data", b"")), (8000, 2, 16, 0)),
        (riff(fmt(3, bits=32), chunk(b"data", bytes(24))), (8000, 2, 32, 3)),
        (riff(fmt(3, bits=64), chunk(b"data", bytes(32))), (8000, 2, 64, 2)),
        (riff(fmt(6, 1, bits=8), chunk(b"data", bytes(5))), (8000, 1, 8, 5)),
        (riff(fmt(7, 1, bits=8), chunk(b"data", bytes(5))), (8000, 1, 8, 5)),
        (riff(fmt(1, 3, bits=5), chunk(b"data", bytes(6))), (8000, 3, 5, 2)),
        (riff(extensible(1, bits=20), chunk(b"data", bytes(12))), (8000, 2, 20, 2)),
        (riff(extensible(3, bits=32), chunk(b"data", bytes(16))), (8000, 2, 32, 2)),
        (riff(chunk(b"LIST", b"odd"), fmt(), chunk(b"data", bytes(4))), (8000, 2, 16, 1)),
        (riff(fmt(), chunk(b"data", bytes(4)), b"LIST\xff\0\0\0cut"), (8000, 2, 16, 1)),
        (
            riff(
                chunk(b"ds64", struct.pack("<QQQI", 0, 8, 2, 0)),
                fmt(),
                chunk(b"data", bytes(8), 0xFFFFFFFF),
                name=b"RF64",
            ),
            (8000, 2, 16, 2),
        ),
    ],
)
def test_headers(data, header):
    assert read_wav_header(data) == header


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"fLaC" + bytes(100), "not a WAV file: it begins with b'fLaC"),
        (b"RIFF\0\0\0\0AVI ", "not a WAV file"),
        (riff(), "chunk `fmt ` and `data` is missing"),
        (riff(fmt()), "chunk `data` is missing"),
        (riff(fmt(), chunk(b"LIST", b"", 1 << 30)), "chunk `data` is missing"),
        (riff(chunk(b"data", bytes(4)), fmt()), "`data` comes before `fmt `"),
        (riff(chunk(b"fmt ", bytes(14))), "has 14 bytes"),
        (riff(fmt(2, bits=4)), "format 0x0002; known are PCM"),
        (riff(extensible(1, tail=bytes(14))), "subformat"),
        (riff(fmt(0xFFFE)), "subformat"),
        (riff(extensible(0x55)), "format 0x0055"),
        (riff(fmt(channels=0)), "0 channels"),
        (riff(fmt(rate=0)), "at 0 Hz"),
        (riff(fmt(bits=0)), "PCM of 0 bits"),
        (riff(fmt(3, bits=16)), "IEEE float of 16 bits"),
        (riff(fmt(frame_bytes=3)), "3 bytes per frame, but 2"),
        (riff(fmt(), chunk(b"data", bytes(4), 8)), "says 8 bytes of samples, but the file has 4"),
        (riff(fmt(), chunk(b"data", bytes(4), 0xFFFFFFFF)), "an unknown number of bytes"),
        (riff(fmt(), chunk(b"data", bytes(6))), "not a whole number of frames of 4 bytes"),
    ],
)
def test_headers_that_lie(data, words):
    with pytest.raises(ValueError, match=words):
        read_wav_header(data)


def test_a_cut_file_is_never_a_shorter_one():
    data = riff(fmt(), chunk(b"data", bytes(range(40))))
    assert read_wav_header(data).num_frames == 10
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"cut off|the file has|empty|not a WAV|has \d+ bytes"):
            read_wav_header(data[:length])


SOUND = riff(fmt(), chunk(b"data", bytes(range(40))))


def fill(folder, files):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def test_classes(tmp_path):
    fill(tmp_path, {"yes/1.wav": SOUND, "no/a/2.WAVE": SOUND, "no/3.flac": b"fLaC", "empty/x": b""})
    source = AudioFolder(str(tmp_path))
    assert source.classes == ["no", "yes"]
    assert source.vocabularies == {"audio/class/label": ["no", "yes"]}
    assert source.label == "audio/class/label"
    assert source.notes == [
        "files that are not WAV files were left out: 1 without ending, 1 .flac",
        "folders without WAV files are not classes: empty",
    ]
    assert [source.load(item) for item in source.items()] == [
        {
            "audio/encoded": SOUND,
            "audio/format": "wav",
            "audio/sample_rate": 8000,
            "audio/channels": 2,
            "audio/bits_per_sample": 16,
            "audio/num_frames": 10,
            "audio/filename": name,
            "audio/class/label": label,
            "audio/class/text": text,
        }
        for label, (name, text) in enumerate([("no/a/2.WAVE", "no"), ("yes/1.wav", "yes")])
    ]


def test_no_classes(tmp_path):
    source = AudioFolder(str(fill(tmp_path, {"1.wav": SOUND, "2.wav": SOUND})))
    assert source.label is None
    assert not any("class" in name for name in source.plan)
    with pytest.raises(SourceError, match=r"2 WAV file\(s\) are beside the class folders"):
        AudioFolder(str(fill(tmp_path, {"c/3.wav": SOUND})))


def test_nothing_but_other_audio(tmp_path):
    with pytest.raises(SourceError, match="this folder has no WAV files") as caught:
        AudioFolder(str(fill(tmp_path, {"1.flac": b"fLaC"})))
    assert ".wav" in caught.value.hint


@pytest.mark.parametrize("workers", [1, 2])
def test_a_damaged_file_is_an_item_that_can_be_skipped(tmp_path, workers):
    fill(tmp_path / "in", {f"c/{i}.wav": SOUND[: len(SOUND) - (i == 3)] for i in range(7)})
    run = sw.RunOptions(workers=workers)
    with pytest.raises(SourceError, match="40 bytes of samples, but the file has 39") as caught:
        sw.write(tmp_path / "in", tmp_path / "out/t@2", run=run)
    assert (caught.value.index, caught.value.item) == (3, "c/3.wav")
    run = sw.RunOptions(workers=workers, on_error="skip")
    result = sw.write(tmp_path / "in", tmp_path / "skipped/t@2", run=run)
    assert result.num_records == 6


def test_engines_write_the_same_bytes(tmp_path):
    sounds = {
        f"{c}/{i}.wav": riff(fmt(), chunk(b"data", bytes(4 * i))) for c in "ab" for i in range(9)
    }
    fill(tmp_path / "in", sounds)
    for workers in (1, 2):
        run = sw.RunOptions(workers=workers)
        sw.write(tmp_path / "in", tmp_path / f"{workers}/t@4", run=run)
    one, two = (
        {file.name: file.read_bytes() for file in (tmp_path / str(workers)).iterdir()}
        for workers in (1, 2)
    )
    assert one == two


# -- other people's files --------------------------------------------------------------------------


def test_real_files(data_dir):
    folder = data_dir / "tensorflow+io/tests/test_audio"
    if not folder.is_dir():
        pytest.skip("tensorflow+io is not among the test data")
    source = AudioFolder(str(folder))
    assert source.num_items == 6
    for item in source.items():
        features = source.load(item)
        try:
            with wave.open(str(folder / item.key)) as file:
                known = (file.getframerate(), file.getnchannels(), 8 * file.getsampwidth())
                known = (*known, file.getnframes())
        except wave.Error:  # no floats, no extensible headers
            known = (44100, 2, 32 if "f32" in item.key else 24, 14336)
        names = ("sample_rate", "channels", "bits_per_sample", "num_frames")
        assert tuple(features[f"audio/{name}"] for name in names) == known
