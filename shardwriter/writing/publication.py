"""Publication: give the files of a run directory their final names.

::

    all shards sealed and synced -> write commit.json
    -> delete the old manifest -> rename shards, .idx, index, error log -> TFDS's files
    -> rename the new manifest -> delete other generations -> delete the run directory

Before commit.json exists, nothing outside the run directory changes. Once it exists, the
publication can only be completed: any process that finds it repeats the same steps, each of which
is idempotent, and the manifest comes last. So no dataset with a manifest is ever partial.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

from shardwriter.dataset import (
    DALI_INDEX_SUFFIX,
    KINDS,
    MAX_EXPANDED_GAPS,
    IndexEntry,
    Manifest,
    Output,
    SealedShard,
    ShardPattern,
    assignment_error,
    dali_index,
    error_log_file,
    generations,
    index_chunks,
    index_head,
    is_url,
    lost_items_file,
    manifest_file,
    parse_manifest,
    pattern_from_template,
)
from shardwriter.errors import (
    AssignmentError,
    ManifestError,
    OutputExists,
    StorageError,
    python_words,
)
from shardwriter.formats import PLAIN, Compression, Packing, canonical, clean, extend_crc32c
from shardwriter.schema import to_manifest
from shardwriter.storage import (
    LocalStorage,
    Storage,
    each,
    each_in_turn,
)
from shardwriter.writing.engine import WriteResult
from shardwriter.writing.journal import Retry
from shardwriter.writing.options import RunOptions
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.tfds import adding_split, check_folder, publishing_split, remove_split

COMMIT: Final = "commit.json"
_DALI_MARK: Final = "dali"  # its presence means that the run has .idx files
_ERROR_LOG_MARK: Final = "with-ledger"  # its presence means that the run has an error log
_ERROR_LOG: Final = "errors.jsonl"
_LOST_MARK: Final = "with-lost"  # its presence means that the run has a list of lost items
_LOST: Final = "lost.jsonl"
_READ_BYTES: Final = 1 << 22
_RESUME: Final = "`shardwriter write --resume` continues it"


def existing_files(file_names: list[str], name: str, pattern: ShardPattern | None) -> str | None:
    """Return which files of a folder belong to a dataset, as text; None if none do."""
    found = list(generations(file_names, name, [pattern]))
    if found:
        return found[0].template.replace("{shard}", "*")
    return "its manifest" if manifest_file(name) in file_names else None


def is_committed(run: RunDirectory) -> bool:
    """Return whether a publication has begun and is not completed."""
    return run.storage.size(run.file(COMMIT)) is not None


def finished_manifest(run: RunDirectory) -> Manifest | None:
    """Return the manifest of the published dataset; None if there is none that can be read."""
    path = os.path.join(run.directory, manifest_file(run.name))
    try:
        data = run.storage.read(path)
        if data is None:
            return None
        manifest = parse_manifest(data, path)
        if len(manifest.gaps) <= MAX_EXPANDED_GAPS:
            return manifest
        index_bytes = run.storage.size(os.path.join(run.directory, manifest.index.file))
        return parse_manifest(data, path, index_bytes or 0)
    except (StorageError, ManifestError):
        return None


def check_output(
    run: RunDirectory, *, overwrite: bool, pattern: ShardPattern | None = None
) -> None:
    """Complete a begun publication; raise if a dataset or an unfinished run is in the way.

    Args:
        run: The claimed run directory.
        overwrite: Whether a dataset may be replaced, and an unfinished run discarded.
        pattern: The files to be written, with any N.

    Raises:
        OutputExists: A dataset or an unfinished run of this name exists, without ``overwrite``.
        StorageError: A begun publication cannot be completed.
    """
    finish_committed(run, overwrite=overwrite)
    if overwrite:
        return
    if run.is_resumable:
        raise OutputExists(
            f"an unfinished run of {run.name!r} exists",
            path=run.path,
            hint=("a Beam job is writing it, or has failed" if run.is_beam_run else _RESUME)
            + "; --overwrite discards it and starts over",
        )
    files = existing_files(run.storage.list(run.directory), run.name, pattern)
    if files is not None:
        run.discard()
        raise OutputExists(
            f"a dataset {run.name!r} exists already ({files})",
            path=run.directory,
            hint="--overwrite replaces it once the new one is complete; or choose another name",
        )


def begin_run(run: RunDirectory, facts: Mapping[str, Any]) -> None:
    """Begin a run: write run.json, with the dataset that the run replaces."""
    run.begin({"replaces": replaced_files(run), **facts})


def replaced_files(run: RunDirectory) -> tuple[str, int] | None:
    """Return the pattern and N of the published dataset, from its manifest; None for none."""
    manifest = finished_manifest(run)
    return None if manifest is None else (manifest.pattern.template, manifest.num_shards)


def write_index(
    run: RunDirectory,
    pattern: ShardPattern,
    shards: list[SealedShard],
    gaps: list[int],
    *,
    compression: Compression = "none",
    dali: bool,
) -> IndexEntry:
    """Write the dataset's index from the shards' indexes, and ``.idx`` files if ``dali``."""
    numbers = range(len(shards))
    counts = each(run.storage, lambda shard: run.index_rows(shard, compression), numbers)
    found = each_in_turn(run.storage, lambda shard: run.index_columns(shard, compression), numbers)
    head = index_head(counts, KINDS[compression], len(gaps))
    path = run.file("index")
    crc = size = 0
    with closing(run.storage.create(path)) as file:
        for chunk in index_chunks(found, head, gaps):
            file.write(chunk)
            crc = extend_crc32c(crc, chunk)
            size += len(chunk)
        run.storage.sync(path)
    if dali:
        run.write_synced(_DALI_MARK, b"")
        each(run.storage, lambda shard: _write_dali_index(run, shard), numbers)
    else:
        run.storage.delete(run.file(_DALI_MARK))  # of an earlier attempt
    return IndexEntry(pattern.index_file, size, crc)


def _write_dali_index(run: RunDirectory, shard: int) -> None:
    path = run.file(f"dali-{shard:05d}")
    with closing(run.storage.create(path)) as file:
        file.write(dali_index(run.index_columns(shard, "none")[0]))
        run.storage.sync(path)


def publish(run: RunDirectory, manifest: Manifest, ledger: bytes = b"", lost: bytes = b"") -> None:
    """Commit to a manifest and give every file its final name; see :func:`commit`."""
    commit(run, manifest, ledger, lost)
    complete(run)


def complete(run: RunDirectory) -> None:
    """Complete the publication of a committed run, and delete the run directory."""
    roll_forward(run)
    run.discard()


def commit(
    run: RunDirectory,
    manifest: Manifest,
    ledger: bytes = b"",
    lost: bytes = b"",
    beside: Sequence[Manifest] = (),
) -> None:
    """Commit to a manifest: from now on its publication can only be completed.

    Args:
        run: The run directory with the files.
        manifest: The manifest of the files.
        ledger: The lines of ``<name>.errors.jsonl``; without lines there is no file.
        lost: The lines of ``<name>.lost.jsonl``, likewise.
        beside: Manifests of other splits that are committed together.

    Raises:
        StorageError: A folder has the final name of a file. Nothing outside the run directory has
            changed.
        OptionError: The splits of a TFDS dataset do not fit together; likewise.
    """
    check_names(run, manifest.pattern)
    for lines, mark in ((ledger, _ERROR_LOG_MARK), (lost, _LOST_MARK)):
        if not lines:
            run.storage.delete(run.file(mark))  # of an earlier attempt
    # Created and deleted files must be on the disk before the commit.
    run.storage.sync_directory(run.path)
    for lines, file_name, mark in (
        (ledger, _ERROR_LOG, _ERROR_LOG_MARK),
        (lost, _LOST, _LOST_MARK),
    ):
        if lines:
            run.write_synced(file_name, lines)
            run.write_synced(mark, b"")
    with adding_split(run, manifest, beside):
        run.write_synced(COMMIT, manifest.dumps().encode("ascii"))


def check_names(run: RunDirectory, pattern: ShardPattern) -> None:
    """Raise StorageError if a folder has the final name of a file."""
    names = [*pattern.shard_files, pattern.index_file, pattern.manifest_file]
    names += [error_log_file(pattern.name), lost_items_file(pattern.name)]

    def check_name(name: str) -> None:
        target = os.path.join(run.directory, name)
        if run.storage.is_directory(target):
            raise StorageError("a folder of this name is in the way", path=target)

    each(run.storage, check_name, names)


def finish_committed(run: RunDirectory, *, overwrite: bool = False) -> None:
    """Complete the publication that another process has begun, if any.

    Args:
        run: The claimed run directory.
        overwrite: Whether to discard a run that cannot be completed, if nothing was published.

    Raises:
        StorageError: ``commit.json`` is invalid, or a file is missing or was replaced. Nothing has
            changed.
    """
    if not is_committed(run):
        return
    try:
        manifest = _committed(run)
        if not _is_published(run, manifest):
            _check_files(run, manifest)
    except StorageError as error:
        beside = _mixed_files(run)
        if overwrite and not beside:
            run.empty()
            return
        folder = clean(run.path)
        if beside:
            paths = ", ".join(clean(os.path.join(run.directory, name)) for name in beside)
            error.hint = (
                f"files of two runs may be mixed: remove {folder} and {paths}, and write the "
                "dataset again"
            )
        else:
            error.hint = f"nothing was published: use --overwrite to start over, or remove {folder}"
        raise
    roll_forward(run)


def _committed(run: RunDirectory) -> Manifest:
    """Return the committed manifest.

    Raises:
        StorageError: It is invalid, or of another dataset.
    """
    path = run.file(COMMIT)
    try:
        manifest = parse_manifest(run.read(COMMIT), path)
    except ManifestError as error:
        raise StorageError(f"a publication was begun, and {error.message}", path=path) from None
    if manifest.name != run.name:
        raise StorageError(
            f"a publication was begun, and of another dataset: {manifest.name!r}", path=path
        )
    return manifest


def _mixed_files(run: RunDirectory) -> list[str]:
    """Return the files beside a run directory that may be of two runs, as globs.

    Publication deletes the old manifest before it renames a shard, and renames its own last. So if
    a manifest can be read, all files are of that dataset.
    """
    if finished_manifest(run) is not None:
        return []
    names = run.storage.list(run.directory)
    found = generations(names, run.name, [_replaced(run)])
    beside = [pattern.template.replace("{shard}", "*") for pattern in found]
    return beside + [name for name in (manifest_file(run.name),) if name in names]


def _check_files(run: RunDirectory, manifest: Manifest) -> None:
    """Raise StorageError if a committed file is missing or was replaced."""
    numbers = range(manifest.num_shards)
    each(run.storage, lambda shard: _check_shard(run, manifest, shard), numbers)
    index = manifest.index
    _check_file(run, run.file("index"), manifest.pattern.index_file, index.file_bytes)


def _is_published(run: RunDirectory, manifest: Manifest) -> bool:
    """Return whether only the clean-up of a publication is left.

    The published manifest may be that of an older run of the same job, with the same text. The
    index is renamed last, so if it is still in the run directory the manifest is the older one.
    """
    final = os.path.join(run.directory, manifest.pattern.manifest_file)
    return run.storage.size(run.file("index")) is None and _holds(run, final, run.read(COMMIT))


def _check_shard(run: RunDirectory, manifest: Manifest, shard: int) -> None:
    """Raise StorageError if a shard is missing or was replaced.

    The checksum of a shard listed in ``files.json`` is compared too.
    """
    sealed = manifest.shards[shard]
    source, final = run.shard_path(shard), manifest.pattern.shard_file(shard)
    _check_file(run, source, final, sealed.file_bytes)
    if shard in run.adopted and run.storage.size(source) is not None:
        expected = sealed.crc32c if sealed.file_crc32c is None else sealed.file_crc32c
        found = run.storage.crc32c(source)
        if found is None and not is_url(source):
            found = _crc_of(run, source)
        if found not in (None, expected):
            raise _missing_file(run, source, "is not the committed one")


def _check_file(run: RunDirectory, source: str, final: str, file_bytes: int) -> None:
    found = run.storage.size(source)
    if found is None:
        found = run.storage.size(os.path.join(run.directory, final))
    if found != file_bytes:
        raise _missing_file(run, source, "is gone")


def _crc_of(run: RunDirectory, path: str) -> int:
    crc = 0
    with run.storage.open(path) as file:
        while data := file.read(_READ_BYTES):
            crc = extend_crc32c(crc, data)
    return crc


def _missing_file(run: RunDirectory, path: str, what: str) -> StorageError:
    return StorageError(
        f"a file to publish {what}",
        path=path,
        hint=f"remove {clean(run.path)} and write the dataset again",
    )


def roll_forward(run: RunDirectory) -> None:
    """Run the steps of a publication; steps already done have no effect.

    Afterwards the run directory is empty, and still claimed.
    """
    text = run.read(COMMIT)
    manifest = _committed(run)
    pattern, storage = manifest.pattern, run.storage
    # A killed process may not have synced the name of commit.json.
    storage.sync_directory(run.path)
    final = os.path.join(run.directory, pattern.manifest_file)
    if _is_published(run, manifest):
        _clean_up(run, pattern)
        return
    with_dali = storage.size(run.file(_DALI_MARK)) is not None
    storage.delete(final)
    storage.sync_directory(run.directory)
    remove_split(run, manifest)

    def publish_shard(shard: int) -> None:
        target = os.path.join(run.directory, pattern.shard_file(shard))
        sealed = manifest.shards[shard]
        crc = sealed.crc32c if sealed.file_crc32c is None else sealed.file_crc32c
        _publish(run, run.shard_path(shard), target, sealed.file_bytes, crc)
        if with_dali:
            storage.publish(run.file(f"dali-{shard:05d}"), target + DALI_INDEX_SUFFIX)
        else:
            storage.delete(target + DALI_INDEX_SUFFIX)  # of an older run

    each(storage, publish_shard, range(manifest.num_shards))
    for file_name, mark, final_name in (
        (_ERROR_LOG, _ERROR_LOG_MARK, error_log_file(run.name)),
        (_LOST, _LOST_MARK, lost_items_file(run.name)),
    ):
        target = os.path.join(run.directory, final_name)
        if storage.size(run.file(mark)) is not None:
            storage.publish(run.file(file_name), target)
        else:
            storage.delete(target)  # of an older run
    target = os.path.join(run.directory, pattern.index_file)
    _publish(run, run.file("index"), target, manifest.index.file_bytes, manifest.index.crc32c)
    storage.sync_directory(run.directory)
    run.write_synced("manifest", text)
    with publishing_split(run, manifest):
        storage.publish(run.file("manifest"), final)
        storage.sync_directory(run.directory)
    _clean_up(run, pattern)


def _publish(run: RunDirectory, source: str, target: str, file_bytes: int, crc: int) -> None:
    """Give a file its final name; if it has it already, check that it is the committed file."""
    storage = run.storage
    if source == target or storage.size(source) is None:
        if storage.size(target) != file_bytes or storage.crc32c(target) not in (None, crc):
            raise _missing_file(run, source, "is gone")
        if source == target:
            return
    storage.publish(source, target)


def _holds(run: RunDirectory, path: str, text: bytes) -> bool:
    try:
        return run.storage.read(path) == text
    except StorageError:
        return False


def _clean_up(run: RunDirectory, current: ShardPattern) -> None:
    """Delete other generations, then everything in the run directory but the lock."""
    found = generations(run.storage.list(run.directory), run.name, [_replaced(run)])
    for pattern, shards in found.items():
        if pattern != current:
            each(
                run.storage, lambda path: _delete_shard(run, path), map(pattern.shard_file, shards)
            )
    run.storage.sync_directory(run.directory)
    run.empty(last=COMMIT)


def _delete_shard(run: RunDirectory, file_name: str) -> None:
    path = os.path.join(run.directory, file_name)
    # The shard last, as it shows that there are files to delete.
    run.storage.delete(path + DALI_INDEX_SUFFIX)
    run.storage.delete(path)


def _replaced(run: RunDirectory) -> ShardPattern | None:
    """Return the files of the dataset that this run replaces, from run.json; None for none."""
    try:
        replaced = run.facts().get("replaces")
        return None if replaced is None else pattern_from_template(*replaced)
    except StorageError:  # no run.json
        return None


# -- the life of a run -----------------------------------------------------------------------------


@contextmanager
def claim_output(
    output: Output, run_options: RunOptions, storage: Storage | None = None
) -> Iterator[RunDirectory]:
    """Yield the run directory of an output, locked.

    After an error the run directory stays if the run can be resumed, and is deleted otherwise.
    """
    resume = run_options.resume or run_options.retry_errors
    with RunDirectory.claim(output.directory, output.name, storage or LocalStorage()) as run:
        finish_committed(run, overwrite=run_options.overwrite)
        check_output(run, overwrite=run_options.overwrite or resume, pattern=output.pattern(1))
        try:
            if output.tfds is not None:
                check_folder(run.storage, run.directory, output.tfds)
            yield run
        except BaseException as error:  # also Ctrl-C and SIGTERM
            with suppress(StorageError):  # it would hide the first error
                if not is_committed(run):
                    is_resumable = run.is_resumable
                    if isinstance(error, KeyboardInterrupt):
                        _add_interrupt_note(error, run, is_resumable=is_resumable)
                    if not is_resumable:
                        run.discard()
            raise


def _add_interrupt_note(error: KeyboardInterrupt, run: RunDirectory, *, is_resumable: bool) -> None:
    """Add a note to the traceback of Ctrl-C in Python; the commands print it themselves."""
    if not hasattr(error, "add_note"):  # before Python 3.11
        return
    note = f"nothing of {run.name!r} was published"
    if is_resumable:
        note += f"; the unfinished run is in {run.path}: --resume continues it"
    error.add_note(python_words(note))


def publish_result(
    run: RunDirectory, result: WriteResult, output: Output, **facts: Any
) -> Manifest:
    """Publish a dataset and return its manifest; see :func:`prepare_manifest`."""
    manifest = prepare_manifest(run, result, output, **facts)
    publish(run, manifest, error_log_lines(result))
    return manifest


def error_log_lines(result: WriteResult) -> bytes:
    """Return the content of ``<name>.errors.jsonl``."""
    return "".join(map(canonical.dumps, result.errors)).encode("ascii")


def prepare_manifest(
    run: RunDirectory,
    result: WriteResult,
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
    """Check the record counts, write the index, and return the manifest.

    Raises:
        AssignmentError: A shard does not have as many records as the assignment says.
    """
    counts = [shard.num_records for shard in result.shards]
    difference = assignment_error(counts, result.num_items, result.gaps)
    if difference is not None:
        shard, expected, count = difference
        raise AssignmentError(
            f"shard {shard} has {count:,} records; the assignment of {result.num_items:,} items "
            f"gives it {expected:,}",
            hint=hint,
        )
    pattern = output.pattern(len(counts))
    index = write_index(
        run, pattern, result.shards, result.gaps, compression=packing.compression, dali=dali
    )
    return Manifest(
        pattern,
        result.num_items,
        result.shards,
        result.gaps,
        packing.to_json(),
        index,
        job,
        source,
        order,
        result.schema,
        result.labels,
        {
            **({"retries": list(retries)} if retries else {}),
            **({} if output.tfds is None else {"tfds": output.tfds.to_json()}),
            **to_manifest(result.warnings),
        },
    )
