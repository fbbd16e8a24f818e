"""The house: floors, no cycles, nothing heavy at the door, and every public name where it says."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import shardwriter

PACKAGE = Path(shardwriter.__file__).parent
HEAVY = ["tensorflow", "apache_beam", "torch", "pandas", "pyarrow", "jax", "datasets", "PIL"]

# A module imports from its own floor and from those below it.
FLOORS = {
    0: ["errors", "python_words", "quantities"],
    1: [
        "codec",
        "formats",
        "images",
        "formats.crc32c",
        "formats.cursor",
        "formats.frame_block",
        "formats.tfrecord",
        "formats.tfrecord_options",
        "formats.tfrecord_reader",
        "formats.varint",
        "codec.feature_errors",
        "codec.feature_values",
        "codec.float32",
        "codec.example",
        "codec.example_bodies",
        "codec.example_columns",
        "codec.example_columns_wire",
        "codec.example_lockstep",
        "codec.example_entries",
        "codec.example_plain",
        "codec.example_wire",
        "formats.compression",
        "formats.compressed_writer",
        "formats.packing",
        "formats.zlib_blocks",
        "formats.canonical",
        "option_types",
        "reprs",
        "formats.json_shape",
        "formats.text",
        "images.headers",
        "images.plain_png",
        "codec.sequence_example",
        "formats.wav",
        "codec.raw_array",
        "codec.sequence_names",
        "images.encoded",
        "images.edit",
        "formats.events",
    ],
    2: [
        "dataset",
        "features",
        "items",
        "callables",
        "items.fields",
        "items.indices",
        "dataset.naming",
        "tfds",
        "tfds.names",
        "tfds.shapes",
        "tfds.features",
        "dataset.layout",
        "dataset.manifest_shape",
        "dataset.permutation",
        "dataset.key_order",
        "stages",
        "data_warnings",
        "notices",
        "worker",
        "options",
        "table_options",
        "features.feature_types",
        "features.schema",
        "dataset.shares",
        "features.restored_feature",
        "features.restored_values",
        "features.labels",
        "features.learnt",
        "dataset.manifest",
        "dataset.index",
        "dataset.places",
        "splitplan",
        "splitplan.document",
        "splitplan.num_shards",
        "splitplan.options",
        "splitplan.pipelines",
        "splitplan.policies",
        "splitplan.record_policies",
        "splitplan.shard_policies",
        "splitplan.work",
        "dataset.splits",
        "features.schema_text",
        "features.shape_features",
        "features.declared",
        "features.bound_values",
        "features.restored_sequences",
        "images.options",
        "images.annotations",
        "images.editor",
    ],
    3: [
        "runs",
        "shards",
        "storage",
        "storage.beam",
        "storage.beam_inputs",
        "storage.beam_system",
        "storage.choose",
        "storage.descriptor",
        "storage.file_pool",
        "storage.gcs",
        "storage.gcs_upload",
        "storage.inputs",
        "storage.local",
        "storage.many",
        "storage.ranged",
        "storage.tensorflow",
        "shards.shard",
        "runs.journal",
        "runs.snapshot",
        "runs.kept",
        "runs.lock",
        "runs.own_files",
        "runs.shapes",
        "runs.standing",
        "runs.rundir",
        "runs.recovery",
        "runs.publication",
        "tfds.folder",
        "shards.record_at",
        "shards.frame_hops",
        "shards.pieces",
        "shards.locate",
        "shards.shard_sets",
        "sources",
        "sources.adapted",
        "sources.audio",
        "sources.class_folders",
        "sources.coco",
        "sources.splits",
        "sources.split_names",
        "sources.spooled",
        "sources.coco_files",
        "sources.coco_segments",
        "sources.arrow_columns",
        "sources.arrow_file",
        "sources.arrow_rows",
        "sources.csv",
        "sources.csv_cells",
        "sources.csv_file",
        "sources.detection",
        "sources.find",
        "sources.folder_files",
        "sources.huggingface",
        "sources.huggingface_table",
        "sources.image_files",
        "sources.image_folder",
        "sources.image_mask",
        "sources.image_pairs",
        "sources.indices_file",
        "sources.jsonl",
        "sources.jsonl_file",
        "sources.jsonl_values",
        "sources.numpy",
        "sources.numpy_file",
        "sources.parquet",
        "sources.positions",
        "sources.frame_reading",
        "sources.python",
        "sources.queued",
        "sources.record_file",
        "sources.record_streams",
        "sources.row_table",
        "sources.tar_members",
        "sources.tar_samples",
        "sources.tfrecord",
        "sources.torch_loader",
        "sources.webdataset",
        "sources.voc",
        "sources.looking",
        "sources.named_files",
        "sources.arrow_types",
        "sources.image_sides",
    ],
    4: [
        "finding",
        "readers",
        "readers.core",
        "readers.dataset",
        "readers.epochs",
        "readers.opening",
        "readers.prefetch",
        "readers.ranks",
        "readers.record_files",
        "readers.resampling",
        "readers.rows",
        "readers.tensorflow",
        "readers.tensorflow.blocks",
        "readers.tensorflow.dataset",
        "readers.tensorflow.files",
        "readers.tensorflow.parsing",
        "readers.tensorflow.resampling",
        "readers.tensorflow.sequences",
        "readers.tensorflow.values",
        "readers.torch",
        "readers.torch.batches",
        "readers.torch.columns",
        "readers.torch.datasets",
        "readers.torch.images",
        "readers.torch.loader",
        "readers.torch.padding",
        "readers.torch.options",
        "readers.torch.sending",
        "readers.torch.timings",
        "readers.torch.workers",
        "items.read_ahead",
        "items.encode",
        "items.record_encoder",
        "items.float_precision",
        "items.keys",
        "images.names",
        "items.selection",
        "items.sampling",
        "job",
        "engines",
        "engines.budget",
        "engines.channel",
        "engines.choose",
        "engines.cores",
        "engines.failures",
        "engines.parcel",
        "engines.gather",
        "engines.growing",
        "engines.moving",
        "engines.part",
        "engines.pool",
        "engines.process",
        "engines.serial",
        "engines.tasks",
        "engines.template",
        "engines.unparcel",
        "engines.event_log",
        "beam",
        "beam.cargo",
        "beam.chunks",
        "beam.cut",
        "beam.keyed",
        "beam.keyed_steps",
        "beam.parts",
        "beam.place",
        "beam.publishing",
        "beam.read_shards",
        "beam.results",
        "beam.shard_stats",
        "beam.steps",
        "beam.strided",
        "beam.task",
        "beam.telling",
        "beam.text_file",
        "beam.write_shards",
        "plan",
        "progress_bar",
        "runs.run_facts",
        "runs.record_checks",
        "runs.unfinished",
        "runs.finished",
        "runs.resume",
        "runs.making",
        "write",
        "writing",
        "splitting",
        "split_types",
        "push",
        "inspection",
        "inspection.balance",
        "inspection.describe",
        "inspection.features",
        "inspection.features.blobs",
        "inspection.features.distinct",
        "inspection.features.drift",
        "inspection.features.feature_images",
        "inspection.features.feature_stats",
        "inspection.features.numbers",
        "inspection.features.outliers",
        "inspection.features.ranges",
        "inspection.features.value_histogram",
        "inspection.findings",
        "inspection.gates",
        "inspection.gates.baseline",
        "inspection.gates.baseline_shape",
        "inspection.gates.baseline_features",
        "inspection.gates.differences",
        "inspection.gates.gate_checks",
        "inspection.gates.gating",
        "inspection.judge",
        "inspection.kinds",
        "inspection.labels",
        "inspection.labels.label_mix",
        "inspection.labels.label_scan",
        "inspection.labels.label_tests",
        "inspection.labels.neighbours",
        "inspection.labels.shuffle",
        "inspection.payloads",
        "inspection.proto_forms",
        "inspection.proving",
        "inspection.proving.by_index",
        "inspection.proving.frames",
        "inspection.proving.payload_feed",
        "inspection.proving.resync",
        "inspection.proving.index_sums",
        "inspection.proving.scan",
        "inspection.proving.scan_pool",
        "inspection.proving.scan_worker",
        "inspection.report",
        "inspection.told",
        "inspection.told.foreign",
        "inspection.told.frame_tables",
        "inspection.told.names",
        "inspection.told.tfds",
        "inspection.told.tfds_folder",
        "indexing",
        "repair",
        "resharding",
        "resharding.merged",
        "resharding.append",
        "resharding.appended",
        "resharding.appending",
        "resharding.copies",
        "repairing",
        "repairing.copying",
        "repairing.known",
        "repairing.members",
        "repairing.recount",
        "repairing.report",
        "repairing.salvage",
        "repairing.survey",
        "repairing.with_source",
        "repairing.without_source",
        "stats",
        "verify",
        "show",
        "images.saving",
        "known_schema",
        "loader_code",
        "loader_code.facts",
        "loader_code.for_dali",
        "loader_code.for_tensorflow",
        "loader_code.head",
        "loader_code.samples",
        "loader_code.text",
    ],
    5: [
        "render",
        "report",
        "report.feature_table",
        "report.page",
        "report.page_charts",
        "report.page_set_view",
        "report.page_view",
        "report.pictures",
        "report.records",
        "report.remedies",
        "report.set_tables",
        "report.terminal",
        "report.written",
        "report.plan_table",
        "beam.__main__",
        "cli",
        "cli.beam",
        "cli.beam_args",
        "cli.beam_run",
        "cli.beam_stats",
        "cli.beam_write",
        "cli.common",
        "cli.append",
        "cli.find",
        "cli.making",
        "cli.notices",
        "cli.merge",
        "cli.reshard",
        "cli.index",
        "cli.plan",
        "cli.repair",
        "cli.show",
        "cli.stats",
        "cli.stats_options",
        "cli.streams",
        "cli.verify",
        "cli.write",
        "cli.write_options",
        "cli.written",
        "cli.schema",
        "report.schema_table",
    ],
    # The face.
    6: ["", "__main__"],
}
FLOOR_OF = {module: floor for floor, modules in FLOORS.items() for module in modules}

# Asked for in a function: the version, which the face finds out when it is asked for.
ALLOWED = {("cli", "")}


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules():
    return {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def names_imported(node):
    """Modules of this package that an import statement names, by their names inside of it."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        # from package import name: the module of that name where there is one, else the package.
        base = node.module or ""
        names = [
            f"{base}.{alias.name}"
            if f"{base}.{alias.name}".removeprefix("shardwriter.") in modules()
            else base
            for alias in node.names
        ]
    else:
        return
    for name in names:
        root, _, inside = name.partition(".")
        if root == "shardwriter":
            yield inside


def imports(module, *, when_imported=False):
    """Modules of this package that one imports; ``when_imported`` leaves out what comes later."""
    todo = list(ast.parse(modules()[module].read_text(encoding="utf-8")).body)
    found = set()
    while todo:
        node = todo.pop()
        if when_imported:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                todo += node.orelse
                continue
        found.update(names_imported(node))
        todo += ast.iter_child_nodes(node)
    return found


def test_every_module_has_its_floor():
    assert len(FLOOR_OF) == sum(map(len, FLOORS.values())), "a module stands on two floors"
    assert set(FLOOR_OF) == set(modules())


@pytest.mark.parametrize("module", [m for m in FLOOR_OF if FLOOR_OF[m] < 6])
def test_a_module_imports_from_no_higher_floor(module):
    upward = {
        name
        for name in imports(module)
        if FLOOR_OF[name] > FLOOR_OF[module] and (module, name) not in ALLOWED
    }
    assert not upward


def test_exceptions_are_still_needed():
    assert all(name in imports(module) for module, name in ALLOWED)


def test_no_two_modules_import_each_other():
    graph = {module: imports(module, when_imported=True) - {""} for module in modules()}
    done, path = set(), []

    def visit(module):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module in done:
            return
        path.append(module)
        for name in sorted(graph[module]):
            visit(name)
        path.pop()
        done.add(module)

    for module in graph:
        visit(module)
    assert done == set(modules())


@pytest.mark.parametrize(
    "module", ["", ".cli", ".cli.beam", ".write", ".stats", ".push", ".verify", ".show"]
)
def test_importing_it_imports_nothing_heavy(module):
    code = (
        f"import sys, shardwriter{module}\n"
        f"print(*sorted({set(HEAVY)} & {{name.partition('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_rich_and_typer_live_on_the_top_floor():
    for module in modules():
        tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                if name.partition(".")[0] in ("rich", "typer", "click"):
                    assert FLOOR_OF[module] >= 5 or module == "progress_bar", module


def test_rich_is_imported_when_a_bar_is_shown_and_not_before():
    code = "import sys, shardwriter\nassert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_text_reaches_the_terminal_through_one_module():
    # Program text is printed as it is: loader code, a shell command, the version.
    as_it_is = {"cli.schema", "cli.beam_stats", "cli.beam_write", "cli"}
    for module, path in modules().items():
        if FLOOR_OF[module] == 5 and module != "cli.common":
            text = path.read_text(encoding="utf-8")
            calls = text.count("typer.echo(") + text.count("typer.secho(")
            assert calls == (module in as_it_is), module


# -- the face --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shardwriter.__all__)
def test_every_public_name_can_be_imported(name):
    value = getattr(shardwriter, name)
    assert value is getattr(shardwriter, name)
    assert getattr(value, "__doc__", None)


def test_a_star_import_gives_all_of_them():
    names = {}
    exec("from shardwriter import *", names)
    assert set(shardwriter.__all__) <= set(names)


def test_a_star_import_replaces_no_builtin():
    names = {}
    exec("from shardwriter import *", names)
    assert not set(shardwriter.__all__) & set(dir(builtins))
    assert "open" not in names
    assert shardwriter.open is shardwriter.open_dataset


def test_all_names_are_those_that_the_face_imports():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardwriter.")
        for alias in node.names
    }
    assert imported == set(shardwriter.__all__)
    assert len(shardwriter.__all__) == len(imported), "a name stands twice"


def test_functions_stay_functions_when_the_modules_of_their_names_are_imported():
    code = (
        "import shardwriter.write, shardwriter.stats, shardwriter.verify\n"
        "assert all(map(callable, [shardwriter.write, shardwriter.stats, shardwriter.verify]))\n"
        "from shardwriter.writing import write_dataset\n"
        "assert callable(shardwriter.write)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = shardwriter.nothing


def test_the_version_is_that_of_the_package():
    assert shardwriter.__version__[0].isdigit()
