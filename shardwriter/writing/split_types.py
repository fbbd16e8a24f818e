"""Splits have to go together: types and names of classes are the same in all of them."""

from __future__ import annotations

from collections.abc import Mapping

from shardwriter.dataset.manifest import Manifest
from shardwriter.errors import SchemaConflict, SourceError
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources.source import Source


def check_sources(sources: Mapping[str, Source], *, is_mapped: bool) -> None:
    """Hold what is known of splits before their first items are loaded against each other.

    Args:
        sources: By the names of the splits.
        is_mapped: Whether a map comes between: then the types are those of what it makes.

    Raises:
        SchemaConflict: A feature has types that do not go together.
        SourceError: Two splits give the numbers of a class other names.
    """
    if not is_mapped:
        _check({name: source.plan for name, source in sources.items()})
    known: dict[str, tuple[str, list[str]]] = {}
    for name, source in sources.items():
        for feature, words in source.vocabularies.items():
            first, before = known.setdefault(feature, (name, words))
            if words != before:
                raise SourceError(
                    f"the classes are not the same in splits {first!r} and {name!r}: "
                    f"{before[:5]} and {words[:5]}",
                    feature=feature,
                    hint="give both the same names of classes, in one order",
                )


def check_manifests(manifests: Mapping[str, Manifest]) -> None:
    """Hold the types of splits that were made against each other.

    Raises:
        SchemaConflict: A feature has types that do not go together.
    """
    if len(manifests) > 1:
        _check(
            {
                name: {feature: summary.type for feature, summary in manifest.features.items()}
                for name, manifest in manifests.items()
            }
        )


def _check(types: Mapping[str, Mapping[str, FeatureType]]) -> None:
    known: dict[str, tuple[str, FeatureType]] = {}
    for split, features in types.items():
        for name, found in features.items():
            first, before = known.setdefault(name, (split, found))
            try:
                known[name] = first, before.join(found)
            except ValueError as error:
                kinds = {found.kind, before.kind}
                remedy = f"--schema {name}=float" if kinds == {"int64", "float"} else "a map"
                raise SchemaConflict(
                    f"splits {first!r} and {split!r} do not go together: {error}",
                    feature=name,
                    hint=f"{remedy} gives it one type in all splits",
                ) from None
