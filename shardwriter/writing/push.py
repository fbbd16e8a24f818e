"""Writing records yourself: ``open_writer`` for one writer, or ``open_sharded_writers`` for N.

Both write into a run directory and publish when the block ends without an error. After an exception
nothing is published, and the run directory is deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from contextlib2 import ExitStack

from shardwriter.dataset import Manifest, Output, check_value, parse_output
from shardwriter.errors import OptionError, RecordTooLarge, ShardwriterError, StorageError
from shardwriter.formats import Compression, Packing, SequenceExample, canonical
from shardwriter.schema import SchemaLike, declare
from shardwriter.storage import LocalStorage
from shardwriter.writing.encode import RecordEncoder, record_encoder
from shardwriter.writing.notices import Notices
from shardwriter.writing.open_shards import OpenShards, ShardFile
from shardwriter.writing.part import write_result
from shardwriter.writing.publication import begin_run, check_output, is_committed, publish_result
from shardwriter.writing.resume import machine_facts
from shardwriter.writing.run_directory import RunDirectory

_SOURCE = {"digest": canonical.digest({}), "kind": "push"}
_ORDER = {"shuffle": None, "split": None}


class DatasetWriter:
    """Writes record i to shard i mod N. :func:`open_writer` returns one.

    Attributes:
        num_items: Number of records so far.
        manifest: The published manifest; None before the block has ended.
    """

    def __init__(self, shards: OpenShards, encoder: RecordEncoder) -> None:
        self._shards = shards
        self._encoder = encoder
        self._failed = False
        self.num_items = 0
        self.manifest: Manifest | None = None

    def __repr__(self) -> str:
        state = "being written" if self.manifest is None else "published"
        return f"<DatasetWriter: {self.num_items:,} items, {state}>"

    def write(self, features: Mapping[str, Any] | SequenceExample | bytes) -> None:
        """Write the next record.

        Args:
            features: Feature values by name; a SequenceExample; or the bytes of a finished record.

        Raises:
            DataError: The features can not be encoded; the record was not written.
            StorageError: The record could not be written; this writer will publish nothing.
        """
        try:
            record = self._encoder.encode(self.num_items, features)
        except ShardwriterError as error:
            raise error.locate(index=self.num_items) from error.__cause__
        is_consistent = False  # whether the record is written completely or not at all
        try:
            files = self._shards.files
            files[self.num_items % len(files)].write(record)
            self.num_items += 1
            is_consistent = True
        except RecordTooLarge as error:
            is_consistent = True
            raise error.locate(index=self.num_items) from None
        finally:
            self._failed = self._failed or not is_consistent


@contextmanager
def open_writer(
    out: str | os.PathLike[str],
    *,
    num_shards: int | None = None,
    label: str | None = None,
    schema: SchemaLike | None = None,
    compression: Compression | None = None,
    overwrite: bool = False,
) -> Iterator[DatasetWriter]:
    """Open a dataset for writing: record i goes to shard i mod N.

    Args:
        out: ``dir/name@16``.
        num_shards: N, if ``out`` does not have it.
        label: Feature whose values are counted in the manifest.
        schema: Types fixed before the first record, as `write` takes them.
        compression: ``none``, ``gzip`` or ``zlib``; by default gzip if ``out`` ends in ``.gz``.
        overwrite: Replace a dataset of this name once the new one is complete.

    Raises:
        UsageError: ``out`` has no N, or exists.

    Example:
        >>> with open_writer("out/train@16") as writer:  # doctest: +SKIP
        ...     writer.write({"image": array, "label": 3})
    """
    output = _fixed_output(out, num_shards, compression)
    assert output.num_shards is not None
    declared = declare(schema)
    with ExitStack() as stack:
        push_run = _begin(stack, output, overwrite=overwrite)
        shards = _open_shards(stack, push_run.run, output)
        encoder = record_encoder(output.num_shards, declared, label)
        writer = DatasetWriter(shards, encoder)
        yield writer
        if writer._failed:
            raise _incomplete(push_run.run.path)
        writer.manifest = push_run.publish(shards, encoder, writer.num_items)


def open_sharded_writers(
    exit_stack: Any, out: str | os.PathLike[str], *, overwrite: bool = False
) -> list[ShardFile]:
    """Open N record writers whose shards are published together when the stack unwinds.

    The well-known recipe of TensorFlow, with safe publication::

        with contextlib2.ExitStack() as stack:
            writers = open_sharded_writers(stack, "out/train@16")
            for i, example in enumerate(examples):
                writers[i % len(writers)].write(example.SerializeToString())

    Args:
        exit_stack: A ``contextlib`` or ``contextlib2`` ExitStack.
        out: ``dir/name@16``; ``dir/name@16.gz`` for gzip shards.
        overwrite: Replace a dataset of this name once the new one is complete.

    Returns:
        N writers with ``write(bytes)`` and ``flush()``.

    Raises:
        UsageError: ``out`` has no N, or exists.
        AssignmentError: When the stack unwinds: record i did not go to shard i mod N.
        StorageError: When the stack unwinds: an earlier write failed.
    """
    output = _fixed_output(out, None)
    assert output.num_shards is not None
    push_run = _begin(exit_stack, output, overwrite=overwrite)
    shards = _open_shards(exit_stack, push_run.run, output)
    writers = list(shards.files.values())

    def publish(
        kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is None:
            num_items = sum(writer.num_records for writer in writers)
            push_run.publish(shards, RecordEncoder(len(writers)), num_items)

    # Pushed last, so it runs first, while the shards are still open.
    exit_stack.push(publish)
    return writers


class _PushRun:
    """A run whose records the user writes; discarded unless it is published."""

    def __init__(self, run: RunDirectory, output: Output) -> None:
        self.run = run
        self._output = output
        self._published = False

    def publish(self, shards: OpenShards, encoder: RecordEncoder, num_items: int) -> Manifest:
        """Seal the shards, check the sizes of their files, and publish them."""
        run = self.run
        by_number = shards.seal()
        payload_bytes = sum(shard.payload_bytes for shard in by_number.values())
        outcome = write_result(encoder, by_number, num_items, [], [], payload_bytes, {})
        for warning in outcome.warnings:
            Notices().warn(warning)
        for number, sealed in enumerate(outcome.shards):
            path, index_path = run.shard_path(number), run.index_path(number)
            found = run.storage.size(path), run.storage.size(index_path)
            if found != (sealed.file_bytes, shards.files[number].index_bytes):
                raise _incomplete(path)
        manifest = publish_result(
            run,
            outcome,
            self._output,
            job=_job(self._output),
            source=_SOURCE,
            order=_ORDER,
            packing=_packing(self._output),
            hint="write record i to shard i mod N; open_writer does so by itself",
        )
        self._published = True
        return manifest

    def discard(self) -> None:
        """Delete the run directory unless the run was published: it can not be resumed."""
        if not self._published and not is_committed(self.run):
            self.run.discard()


def _incomplete(path: str) -> StorageError:
    return StorageError(
        "an earlier write failed and left a partial record: nothing was published",
        path=path,
        hint="do not catch the error of that write inside the block; write the records again",
    )


def _begin(stack: Any, output: Output, *, overwrite: bool) -> _PushRun:
    """Claim the output and begin a run that is discarded unless it is published."""
    check_value("overwrite", overwrite, bool)
    run = RunDirectory.claim(output.directory, output.name, LocalStorage())
    stack.callback(run.release)
    check_output(run, overwrite=overwrite, pattern=output.pattern(1))
    push_run = _PushRun(run, output)
    stack.callback(push_run.discard)
    begin_run(run, {"job": _job(output), "source": _SOURCE, **machine_facts()})
    return push_run


def _fixed_output(
    out: str | os.PathLike[str], num_shards: int | None, compression: Compression | None = None
) -> Output:
    output = parse_output(out, num_shards, compression)
    if output.num_shards is None:
        raise OptionError(
            "the number of records is not known before the end, so N can not be chosen",
            hint=f"give it: {output.name}@16",
        )
    return output


def _job(output: Output) -> str:
    assert output.num_shards is not None
    options: dict[str, Any] = {"files": output.pattern(output.num_shards).template}
    packing = _packing(output)
    if not packing.is_plain:
        options["compression"] = packing.to_json()
    return canonical.digest({"options": options, "source": _SOURCE})


def _open_shards(stack: Any, run: RunDirectory, output: Output) -> OpenShards:
    assert output.num_shards is not None
    return OpenShards(stack, run, range(output.num_shards), _packing(output))


def _packing(output: Output) -> Packing:
    assert output.num_shards is not None
    return Packing.of(output.compression, "isal-2", output.num_shards)
