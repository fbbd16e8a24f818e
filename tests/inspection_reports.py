"""Reports of shard-stats made by hand, a section at a time."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np

LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def numbers(values: Any) -> dict[str, Any]:
    """Return what a report says of a feature's numbers."""
    array = np.asarray(values, np.float64)
    good = array[np.isfinite(array)]
    return {
        "count": len(array),
        "max": float(good.max()),
        "mean": float(good.mean()),
        "min": float(good.min()),
        "num_inf": int(np.isinf(array).sum()),
        "num_nan": int(np.isnan(array).sum()),
        "num_zero": int((array == 0).sum()),
        "quantiles": {str(q): float(np.quantile(good, q, method="inverted_cdf")) for q in LEVELS},
        "std": float(good.std()),
    }


def feature(num_records: int = 1000, **changes: Any) -> dict[str, Any]:
    """Return a feature that every record has."""
    plain = {
        "absent": 0,
        "dtype": "int64",
        "encoding": "list",
        "images": None,
        "kind": "int64",
        "lengths": {"max": 1, "mean": 1.0, "min": 1},
        "num_records": num_records,
        "numbers": None,
        "present": num_records,
        "shape": [],
        "unset": 0,
        "value_bytes": None,
    }
    return plain | changes


def images(formats: dict[str, int], **changes: Any) -> dict[str, Any]:
    """Return what a report says of a feature's images."""
    sizes = {"max": 640, "mean": 500.0, "min": 100}
    plain = {"formats": formats, "height": sizes, "num_broken": 0, "width": sizes}
    return plain | changes


def policy(**changes: Any) -> dict[str, Any]:
    """Return a policy of training under which all goes well."""
    plain = {
        "error": None,
        "hangs": False,
        "idle_workers": 0,
        "num_dropped": 0,
        "num_padded": 0,
        "num_repeated": 0,
        "policy": "tfdata-file",
        "remedy": None,
        "samples": [500, 500],
        "title": "tf.data, shards",
    }
    return plain | changes


def set_json(num_records: int = 1000, **changes: Any) -> dict[str, Any]:
    """Return a good set of four shards with every section."""
    plain = {
        "balance": {"bytes_max_over_mean": 1.02, "records_max_over_mean": 1.0},
        "compressions": ["none"],
        "drift": [],
        "features": {"label": feature(num_records)},
        "has_manifest": True,
        "kinds": {"Example": num_records},
        "kinds_sampled": False,
        "labels": {
            "counts": {"0": num_records // 2, "1": num_records - num_records // 2},
            "deviating": [],
            "feature": "label",
            "num_unlabelled": 0,
        },
        "name": "train",
        "num_records": num_records,
        "num_shards": 4,
        "plan": {"policies": [policy()], "world": 2},
        "shuffle": {"detail": "", "verdict": "shuffled"},
    }
    return deepcopy(plain | changes)


def report_json(*sets: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a report of some sets; of one good set where none are given."""
    of = list(sets) or [set_json()]
    plain = {
        "notes": [],
        "num_defects": 0,
        "num_records": sum(entry["num_records"] for entry in of),
        "schema": "shardwriter.stats/1",
        "sets": of,
        "shards": [{"num_records": 250, "path": f"s{i}"} for i in range(4)],
    }
    return plain | changes
