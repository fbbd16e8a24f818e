"""A dataset that is made in its run directory: claimed first, prepared, published at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from shardwriter.dataset.assignment import law_breach
from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.naming import Output
from shardwriter.errors import LawViolation, StorageError
from shardwriter.formats import canonical
from shardwriter.formats.packing import PLAIN, Packing
from shardwriter.python_words import python_words
from shardwriter.schema.data_warnings import to_manifest
from shardwriter.storage.protocol import LocalStorage, Storage
from shardwriter.writing.engine import Outcome
from shardwriter.writing.options import RunOptions
from shardwriter.writing.publication import (
    check_output,
    finish_committed,
    is_committed,
    publish,
    write_index,
)
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.shapes import Retry
from shardwriter.writing.tfds import check_folder


@contextmanager
def claimed(
    output: Output, run_options: RunOptions, storage: Storage | None = None
) -> Iterator[RunDirectory]:
    """Hold the run directory of an output while a dataset is made in it.

    After an error what a worker has marked stays, and can be gone on with. A run that came to no
    mark has nothing worth keeping, and leaves nothing.
    """
    resume = run_options.resume or run_options.retry_errors
    with RunDirectory.claim(output.directory, output.name, storage or LocalStorage()) as run:
        finish_committed(run, overwrite=run_options.overwrite)
        check_output(run, overwrite=run_options.overwrite or resume, pattern=output.pattern(1))
        try:
            if output.tfds is not None:
                check_folder(run.storage, run.directory, output.tfds)
            yield run
        except BaseException as error:  # Ctrl-C and SIGTERM are tidied up too
            with suppress(StorageError):  # it would hide what has happened
                if not is_committed(run):
                    is_kept = run.is_worth_keeping
                    if isinstance(error, KeyboardInterrupt):
                        _note_what_is_kept(error, run, is_kept=is_kept)
                    if not is_kept:
                        run.discard()
            raise


def _note_what_is_kept(error: KeyboardInterrupt, run: RunDirectory, *, is_kept: bool) -> None:
    """Have the traceback of Ctrl-C in Python end with what there is; the commands say it too."""
    if not hasattr(error, "add_note"):  # before Python 3.11
        return
    note = f"nothing of {run.name!r} was published"
    if is_kept:
        note += f"; what is done is kept in {run.path}: --resume goes on with it"
    error.add_note(python_words(note))


def finish(run: RunDirectory, outcome: Outcome, output: Output, **facts: Any) -> Manifest:
    """Publish a dataset, and return its manifest; see :func:`prepared`."""
    manifest = prepared(run, outcome, output, **facts)
    publish(run, manifest, ledger_of(outcome))
    return manifest


def ledger_of(outcome: Outcome) -> bytes:
    """Return the lines of ``<name>.errors.jsonl``."""
    return "".join(map(canonical.dumps, outcome.errors)).encode("ascii")


def prepared(
    run: RunDirectory,
    outcome: Outcome,
    output: Output,
    *,
    job: str,
    source: Mapping[str, Any],
    order: Mapping[str, Any],
    packing: Packing = PLAIN,
    dali: bool = False,
    hint: str | None = None,
    retries: Sequence[Retry] = (),
) -> Manifest:
    """Hold the counts against the law, write the index, and return the manifest.

    Raises:
        LawViolation: The shards are not what the law gives; nothing is published.
    """
    counts = [shard.num_records for shard in outcome.shards]
    breach = law_breach(counts, outcome.num_items, outcome.gaps)
    if breach is not None:
        shard, expected, count = breach
        raise LawViolation(
            f"shard {shard} got {count:,} records, and the law gives it {expected:,} of "
            f"{outcome.num_items:,}",
            hint=hint,
        )
    pattern = output.pattern(len(counts))
    index = write_index(
        run, pattern, outcome.shards, outcome.gaps, compression=packing.compression, dali=dali
    )
    return Manifest(
        pattern,
        outcome.num_items,
        outcome.shards,
        outcome.gaps,
        packing.to_json(),
        index,
        job,
        source,
        order,
        outcome.schema,
        outcome.labels,
        {
            **({"retries": list(retries)} if retries else {}),
            **({} if output.tfds is None else {"tfds": output.tfds.to_json()}),
            **to_manifest(outcome.warnings),
        },
    )
