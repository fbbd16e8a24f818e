"""Which image goes with which mask: by what their names have in common.

An image and its mask have one path below their folders, without the ending. Where most have not,
one word at the end of all names of a side, or at their beginning, may differ: ``0001`` and
``0001_mask``, ``image_1`` and ``gt_1``. :mod:`shardwriter.sources.image_sides` says where they lie.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from shardwriter.errors import SourceError
from shardwriter.formats.images import EXTENSIONS
from shardwriter.sources.folder_files import scan
from shardwriter.sources.image_sides import MASK_FOLDERS, Side, Sides, ambiguous
from shardwriter.storage.inputs import Entry, Tree

_SEPARATOR: Final = re.compile(r"[-_. ]+")
_MOST_WORDS: Final = 8  # of a side that are tried, the most frequent ones
_MASK_WORDS: Final = frozenset({*MASK_FOLDERS, "seg", "segm"})

Listed = tuple[Entry, str]


class Pairs(NamedTuple):
    """What :func:`pair_up` found.

    Attributes:
        pairs: Image and mask, in the order of the images; behind them masks alone, of every part.
        sides: Where they lie, and how their names go together.
    """

    pairs: list[tuple[Listed | None, Listed | None]]
    sides: list[Sides]


def pair_up(
    root: str,
    parts: Sequence[Sides],
    listing: Callable[[str], Iterable[Listed]],
    *,
    looking: bool,
) -> Pairs:
    """Pair the images of some folders with their masks.

    Args:
        root: The folder, for messages.
        parts: Where images and masks lie.
        listing: Lists the images at and below a folder.
        looking: Whether words that only one side's names have are found by looking.

    Raises:
        SourceError: An image has two masks, or a mask two images, or words differ in two ways.
    """
    names = [_by_stems(sides, listing) for sides in parts]
    if looking:
        found = _find_words(
            root,
            parts[0],
            [f"{part}/{stem}" for part, (images, _) in enumerate(names) for stem in images],
            [f"{part}/{stem}" for part, (_, masks) in enumerate(names) for stem in masks],
        )
        parts = [_with_words(sides, found) for sides in parts]
    pairs: list[tuple[Listed | None, Listed | None]] = []
    for sides, (images, masks) in zip(parts, names, strict=True):
        alone = _by_shared(root, sides.masks, masks, looking=looking)
        for shared, image in _by_shared(root, sides.images, images, looking=looking).items():
            pairs.append((image, alone.pop(shared, None)))
        pairs += [(None, mask) for mask in alone.values()]
    return Pairs(pairs, list(parts))


def find_mixed(tree: Tree, root: str) -> Sides | None:
    """Return how the masks in a folder differ from the images beside them, by their names.

    Only names that have a word for masks are looked at, and there have to be as many of them as
    others, or nearly so. What lies in folders below is not looked at: these may be classes.

    Raises:
        SourceError: Several words would do.
    """
    names = [os.path.splitext(entry.name) for entry in scan(tree, root)]
    stems = [stem for stem, ending in names if ending.lower() in EXTENSIONS]
    masks = [stem for stem in stems if not _MASK_WORDS.isdisjoint(_SEPARATOR.split(stem.lower()))]
    images = sorted({*stems} - {*masks})
    if not masks or not images or not len(images) / 2 <= len(masks) <= 2 * len(images):
        return None
    words = _find_words(root, Sides(Side(""), Side("")), images, masks)
    return None if words.masks.words == words.images.words else words


def _by_stems(
    sides: Sides, listing: Callable[[str], Iterable[Listed]]
) -> tuple[dict[str, list[Listed]], dict[str, list[Listed]]]:
    images = _by_stem(sides.images, listing)
    masks = _by_stem(sides.masks, listing)
    if sides.are_mixed:
        if len("".join(sides.masks.words)) >= len("".join(sides.images.words)):
            images = _without(images, sides.masks)
        else:
            masks = _without(masks, sides.images)
    return images, masks


def _by_stem(side: Side, listing: Callable[[str], Iterable[Listed]]) -> dict[str, list[Listed]]:
    found: dict[str, list[Listed]] = {}
    for entry, key in listing(side.folder):
        stem, ending = os.path.splitext(key[len(side.prefix) :])
        if side.ending in ("", ending):
            found.setdefault(stem, []).append((entry, key))
    return found


def _without(by_stem: Mapping[str, list[Listed]], other: Side) -> dict[str, list[Listed]]:
    """Leave out the files of the other side."""
    left = {
        stem: [(entry, key) for entry, key in files if not other.fits(key[len(other.prefix) :])]
        for stem, files in by_stem.items()
    }
    return {stem: files for stem, files in left.items() if files}


def _by_shared(
    root: str, side: Side, by_stem: Mapping[str, list[Listed]], *, looking: bool
) -> dict[str, Listed]:
    found: dict[str, Listed] = {}
    for stem, files in by_stem.items():
        shared = side.shared(stem)
        if len(files) > 1 and (looking or shared is not None):
            names = " and ".join(repr(key) for _, key in files)
            raise SourceError(
                f"which of them is meant can not be told: {names}",
                path=root,
                hint="leave one of them there, or say which ending is meant, as in "
                f"'{side.pattern}{os.path.splitext(files[0][1])[1]}'",
            )
        if shared is not None:
            found[shared] = files[0]
        elif looking:
            found[f"/{side.folder}/{stem}"] = files[0]  # nobody else's name begins so
    return found


def _find_words(root: str, folders: Sides, images: Sequence[str], masks: Sequence[str]) -> Sides:
    """Return what stands around the names of images and of masks; of a side only that counts.

    Raises:
        SourceError: Several choices pair about as many, and not the same ones.
    """
    plain = Side("")
    enough = min(len(images), len(masks)) / 2
    if len({*images} & {*masks}) >= enough:
        return Sides(plain, plain)
    choices: list[tuple[int, Sides, dict[str, str]]] = []
    for words_of in (_tails, _heads):
        if choices:
            break
        of_masks = [(word, _shared_names(word, masks)) for word in (plain, *words_of(masks))]
        for image_word in (plain, *words_of(images)):
            shared = _shared_names(image_word, images)
            for mask_word, others in of_masks:
                both = shared.keys() & others.keys()
                if len(both) >= max(enough, 1):
                    paired = {shared[name]: others[name] for name in both}
                    choices.append((len(both), Sides(image_word, mask_word), paired))
    # The most pairs; where several words give the same, the shortest.
    choices.sort(key=lambda choice: (-choice[0], len(choice[1].spec), choice[1]))
    if not choices:
        return Sides(plain, plain)
    best = choices[0]
    rivals = [best]
    for choice in choices[1:]:
        if 2 * choice[0] > best[0] and all(_contradict(choice[2], known[2]) for known in rivals):
            rivals.append(choice)
    if len(rivals) > 1:
        raise ambiguous(
            "names of images and masks go together in several ways",
            root,
            [_with_words(folders, words) for _, words, _ in rivals],
        )
    return best[1]


def _contradict(a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    """Tell whether an image has another mask, or a mask another image."""
    of_masks = {mask: image for image, mask in b.items()}
    return any(
        b.get(image, mask) != mask or of_masks.get(mask, image) != image
        for image, mask in a.items()
    )


def _with_words(sides: Sides, words: Sides) -> Sides:
    return Sides(
        *(
            side._replace(head=word.head, tail=word.tail)
            for side, word in zip(sides, words, strict=True)
        )
    )


def _shared_names(side: Side, names: Sequence[str]) -> dict[str, str]:
    found = ((side.shared(name), name) for name in names)
    return {shared: name for shared, name in found if shared is not None}


def _tails(names: Sequence[str]) -> list[Side]:
    return [Side("", tail=word) for word in _words(names, lambda base, cut: base[cut.start() :])]


def _heads(names: Sequence[str]) -> list[Side]:
    return [Side("", head=word) for word in _words(names, lambda base, cut: base[: cut.end()])]


def _words(names: Sequence[str], word: Callable[[str, re.Match[str]], str]) -> list[str]:
    """Return the most frequent words; numbers are none, as they tell files from each other."""
    counts: Counter[str] = Counter()
    for name in names:
        base = name.rpartition("/")[2]
        counts.update(word(base, cut) for cut in _SEPARATOR.finditer(base))
    told = [(-count, text) for text, count in counts.items() if any(map(str.isalpha, text))]
    return [text for _, text in sorted(told)[:_MOST_WORDS]]
