"""Strategy A: each shard is a job of its own, and nothing is shuffled.

Whoever is given a shard lists its items (s, s + N, s + 2N, ...), loads and encodes them and writes
the shard. That takes a source that has any item at hand.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from shardwriter.cluster.place import Place, new_attempt
from shardwriter.cluster.results import Facts, MadeShard
from shardwriter.dataset.assignment import Gaps, num_shard_items
from shardwriter.dataset.index import columns
from shardwriter.formats.crc32c import crc32c
from shardwriter.writing.job import Job
from shardwriter.writing.open_shards import open_record_writer
from shardwriter.writing.record_checks import last_piece, last_record
from shardwriter.writing.resume_state import Kept
from shardwriter.writing.shard import ShardFile
from shardwriter.writing.worker import new_slot


def write_shard(
    job: Job,
    place: Place,
    shard: int,
    *,
    skip_errors: bool,
    max_errors: int | None,
    strict: bool = False,
) -> MadeShard:
    """Write one shard.

    Args:
        job: What to write.
        place: Where.
        shard: Its number.
        skip_errors: Whether an item that gives an error leaves a gap.
        strict: Whether a warning about an item is its error.
        max_errors: How many may; None for any number.

    Raises:
        ShardwriterError: An item is at fault, or the file system.
        RunChanged: An item gives another record now than when the shard was finished.
    """
    done = place.done(shard)
    if done is not None and _is_of(job, done) and (end := _last_piece(job, place, done)):
        if place.is_resumed and done.sealed.num_records:
            _check_last_record(job, done, *end)
        return done
    storage, packing = place.storage, job.packing
    attempt = new_attempt()
    path, index_path = place.shard_path(shard, attempt), place.index_path(shard, attempt)
    kept = Kept(job.num_shards)
    worker = job.worker(shard, job.num_shards, [shard], new_slot())
    items = job.encoder(kept, worker, skip_errors=skip_errors, strict=strict)
    facts = Facts(items.encoder.learnt)
    with ShardFile(
        storage,
        path,
        index_path,
        lambda on_flush: open_record_writer(
            storage, path, packing, on_flush, new=place.writes_final_names
        ),
        compressed=not packing.is_plain,
    ) as shard_file:
        write = shard_file.write
        for index, made in items.records(job.items_of([shard], kept)):
            if type(made) is bytes:
                write(made)
                continue
            facts.note_gap(index, made, max_errors)
        items.leave()
        facts.num_items = job.num_items
        sealed = shard_file.seal()
    made_shard = MadeShard(shard, sealed, path, index_path, facts)
    place.note_done(made_shard)
    return made_shard


def _is_of(job: Job, done: MadeShard) -> bool:
    """Return whether a note of a finished shard follows the law."""
    num_items, num_shards, gaps = job.num_items or 0, job.num_shards, done.facts.gaps
    mine = range(done.shard, num_items, num_shards)
    in_order = all(a < b for a, b in pairwise(gaps)) and all(gap in mine for gap in gaps)
    expected = num_shard_items(num_items, num_shards, done.shard)
    return in_order and done.sealed.num_records + len(gaps) == expected


def _last_piece(job: Job, place: Place, done: MadeShard) -> tuple[int, int] | None:
    """Return where the last piece of a shard lies; None where its rows can not be true."""
    if not done.sealed.num_records:
        return 0, 0
    compression = job.packing.compression
    rows = np.frombuffer(place.storage.read(done.index_path) or b"", "<u8")
    begin, end = last_piece(rows[:: columns(compression)], compression)
    return (begin, end) if begin < end <= done.sealed.file_bytes else None


def _check_last_record(job: Job, done: MadeShard, begin: int, end: int) -> None:
    """Make the last record of a shard again: not all that decides bytes is known by its hash."""
    record = last_record(done.path, begin, end, job.packing.compression)
    gaps = Gaps(done.facts.gaps, job.num_shards)
    index = gaps.item_index(done.shard, done.sealed.num_records - 1)
    for item_index, item in job.selection.items_at(np.array([index])):
        job.check_record(item_index, item, (len(record), crc32c(record)))
