"""What to do about each kind of defect, in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_BROKEN: Final = (
    "`shardwriter repair PATH OUT` keeps every good record; of a dataset with a manifest, "
    "--source SOURCE makes the shard anew"
)
_NO_RECORDS: Final = (
    "nothing in this file is a TFRecord: give the shards of a dataset; `shardwriter write FILE "
    "OUT@N` makes shards of other data"
)
_NOT_THE_WRITTEN: Final = (
    "copy the shard again from where it was written; of a dataset with a manifest, `shardwriter "
    "repair PATH OUT --source SOURCE` makes it anew"
)
_INDEX: Final = "`shardwriter index PATH` makes the index anew"
_TABLE: Final = (
    "make the table of offsets anew: `shardwriter index PATH --idx` for a whole set of plain "
    "shards, else DALI's tfrecord2idx"
)
_METADATA: Final = "write the metadata anew with tfds.folder_dataset.write_metadata"
_COUNT: Final = (
    "copy the shard again from where it was written; if it is right, make anew what tells otherwise"
)
_REMEDIES: Final = {
    "torn-tail": "`shardwriter repair PATH OUT` copies the records without the zeros behind them",
    "no-crc": "the writer left the checksums out: nothing proves these records; `shardwriter "
    "repair PATH OUT --trust-no-crc` copies them with checksums, where no manifest or index "
    "speaks of them",
    "unmasked-crc": "the writer forgot the mask of the checksums: mend it there; `shardwriter "
    "repair PATH OUT` copies these records with right ones",
    "misnamed": "rename the file, so that its name says what is in it",
    "missing-shard": _NOT_THE_WRITTEN,
    "record-count": _NOT_THE_WRITTEN,
    "other-content": _NOT_THE_WRITTEN,
    "other-compression": _NOT_THE_WRITTEN,
    "other-size": _NOT_THE_WRITTEN,
    "other-bytes": _NOT_THE_WRITTEN,
    "stale-generation": "delete the shards of the run that is not wanted, or readers that take all "
    "files of the folder will mix both",
    "beyond-last": "rename the shards so that they are counted from 0",
    "index": _INDEX,
    "index-broken": _INDEX,
    "index-count": _COUNT,
    "index-offset": _COUNT,
    "idx-broken": _TABLE,
    "idx-count": _COUNT,
    "idx-offset": _TABLE,
    "tfds-broken": _METADATA,
    "tfds-count": _COUNT,
    "tfds-name": _METADATA,
    "tfds-compression": "TFDS reads plain shards only: write them anew with --compression none",
}


def remedy(kind: str) -> str:
    """Return what to do about a defect."""
    return _REMEDIES.get(kind, _BROKEN)


def remedies(defects: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return what to do, each with the kinds of defect that it is for, in order."""
    found: dict[str, list[str]] = {}
    for defect in defects:
        what = _NO_RECORDS if _is_of_no_records(defect) else remedy(defect["kind"])
        kinds = found.setdefault(what, [])
        if defect["kind"] not in kinds:
            kinds.append(defect["kind"])
    return found


def _is_of_no_records(defect: Mapping[str, Any]) -> bool:
    """Tell whether a file that no dataset claims has no good record from its first byte on."""
    return (
        defect["kind"] == "length-crc"
        and defect["offset"] == 0
        and defect.get("num_recoverable") == 0
        and defect["global_index"] is None
    )


def aftermath(defect: Mapping[str, Any]) -> str:
    """Say what is lost with a defect, and where good records begin again; "" if nothing tells."""
    if _is_of_no_records(defect):
        return "no record was found in it"
    told = []
    behind = defect.get("num_recoverable")
    if defect["kind"] == "unmasked-crc":
        return f"readers refuse {behind:,} of them, which `shardwriter repair` keeps"
    if "num_lost" in defect:
        lost = defect["num_lost"]
        if lost is None:
            told.append("how many records are lost is not known")
        elif lost:
            told.append(f"{lost:,} record{'s' * (lost != 1)} lost")
    if defect.get("resync_offset") is not None:
        told.append(f"good again at byte {defect['resync_offset']:,}")
    if behind:
        told.append(
            f"{behind:,} good record{'s' * (behind != 1)} behind it, which only "
            "`shardwriter repair` brings back"
        )
    return "; ".join(told)
