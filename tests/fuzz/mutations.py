"""Small changes to valid files: to bytes, and to the values inside of JSON."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any, Final

ODD_JSON: Final = (
    *("null", "true", "-1", "0", "1", "1.5", "1e999", "NaN", "[]", "{}", "[[]]", "[1,2]", '""'),
    *('"x"', '{"x":1}', str(2**31), str(2**63 - 1), str(2**63), str(2**64), "9" * 400),
    *('"\\u0000"', '"\\u001b[31m\\n"', '"\\ud800"', '"../../victim/thesis"', '"/etc/hostname"'),
    *("[0,999999900]", "[[0,999999900]]", '"%s%d{0}{a.b}"', '"' + "x" * 5000 + '"'),
    *("[" * 90 + "]" * 90, "[" * 20_000 + "]" * 20_000, '{"a":' * 5000 + "1" + "}" * 5000),
)
"""What stands in the place of a value; some of it no parser takes."""

_MARK: Final = "@here@"
_EDGES: Final = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    2**64 - 1,
)


def mutated(data: bytes, seed: int) -> bytes:
    """Return a file with one to four changes, which a seed decides."""
    draw = random.Random(seed)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        lines = data.split(b"\n")
        at = draw.randrange(len(lines))
        changed = None
        if draw.random() < 0.8:
            changed = _with_odd_json(data, draw)
            if changed is None and len(lines) > 1:
                line = _with_odd_json(lines[at], draw)
                changed = (
                    None if line is None else b"\n".join([*lines[:at], line, *lines[at + 1 :]])
                )
        data = draw.choice(_CHANGES)(data, draw) if changed is None else changed
    return data


def _with_odd_json(data: bytes, draw: random.Random) -> bytes | None:
    """Change one value of a JSON text; None where the text is no object or array."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    places = list(_places(value)) if isinstance(value, (dict, list)) else []
    if not places:
        return None
    holder, key = draw.choice(places)
    odd = draw.choice(ODD_JSON)
    action = draw.randrange(8)
    if action == 0:
        del holder[key]
    elif action == 1:
        holder[key] = copy.deepcopy(draw.choice([other[name] for other, name in places]))
    elif action == 2 and isinstance(holder[key], int):
        holder[key] += draw.choice((-1, 1, 2**31, 2**62))
    else:
        holder[key] = _MARK
    try:
        text = json.dumps(value)
    except RecursionError:
        return None
    return text.replace(f'"{_MARK}"', odd).encode()


def _places(value: Any) -> Any:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _places(inner)


def _flip(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]


def _insert(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.randbytes(draw.choice((1, 2, 8))) + data[at:]


def _delete(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + data[at + draw.choice((1, 4, 12, 512)) :]


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _repeat(data: bytes, draw: random.Random) -> bytes:
    first, last = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:last] + data[first:last] * draw.choice((1, 1, 20)) + data[last:]


def _put_edge(data: bytes, draw: random.Random) -> bytes:
    at, size = draw.randrange(len(data) + 1), draw.choice((1, 2, 4, 8))
    number = draw.choice(_EDGES) % 256**size
    return data[:at] + number.to_bytes(size, draw.choice(("little", "big"))) + data[at + size :]


def _put_text(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    odd = (
        b"\0",
        b"\n",
        b"\r",
        b'"',
        b",",
        b"\x1b[2J",
        b"\xff\xfe",
        b"../",
        b"-1",
        b"9" * 30,
        b"nan",
    )
    return data[:at] + draw.choice(odd) + data[at + draw.randrange(3) :]


_CHANGES: Final[tuple[Callable[[bytes, random.Random], bytes], ...]] = (
    *(_flip, _insert, _delete, _cut, _repeat, _put_edge, _put_text),
)
