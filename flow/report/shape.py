"""What a JSON value must look like, as a value of the same look, and where one does not.

A shape is ``str``, ``float`` (a finite number), ``None``, ``[shape]`` (a list of such), ``{str: shape}`` (such values
under any keys), ``{"key": shape}`` (these keys and maybe others; ``"key?"`` may be missing) or a tuple of alternatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Shape = Any
MOST = 1e300  # of numbers, so that sums and products of some stay finite
KINDS = ((str, "text"), (float, "a number"), (None, "null"))


def fault(value: Any, shape: Shape, place: str = "") -> str | None:
    """The first place where a value is not of a shape and what belongs there; None where all is well."""
    if isinstance(shape, tuple):
        faults = [fault(value, one, place) for one in shape]
        return None if None in faults else f"{_named(place)} must be {' or '.join(map(_kind, shape))}"
    if not _is(value, shape):
        return f"{_named(place)} must be {_kind(shape)}"
    return next((found for found in _faults_inside(value, shape, place) if found is not None), None)


def _faults_inside(value: Any, shape: Shape, place: str) -> Iterator[str | None]:
    if isinstance(shape, list):
        yield from (fault(item, shape[0], f"{place}[{i}]") for i, item in enumerate(value))
    elif isinstance(shape, dict):
        for key, inside in shape.items():
            if key is str:
                yield from (fault(item, inside, _below(place, name)) for name, item in value.items())
            elif (name := key.removesuffix("?")) in value:
                yield fault(value[name], inside, _below(place, name))
            elif name == key:
                yield f"{_below(place, name)} is missing"


def _is(value: Any, shape: Shape) -> bool:
    """Whether a value is of a shape, what is in it apart."""
    if shape is float:  # comparisons refuse nan and infinity, and whole numbers beyond any float
        return isinstance(value, int | float) and not isinstance(value, bool) and -MOST < value < MOST
    if isinstance(shape, list | dict):
        return isinstance(value, type(shape))
    return value is None if shape is None else isinstance(value, shape)


def _kind(shape: Shape) -> str:
    if isinstance(shape, list | dict):
        return "a list" if isinstance(shape, list) else "keys and values"
    return next(words for kind, words in KINDS if kind is shape)


def _named(place: str) -> str:
    return place or "the whole"


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
