"""Requests as schemathesis makes them of an OpenAPI document, and some that it forbids."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.core import NotSet

_FORBIDDEN_SHARE = 4  # one of so many is a request that the document does not allow


@dataclass(frozen=True, slots=True)
class Case:
    method: str
    route: str  # as the document has it
    path: str
    body: str


def cases(document: Mapping[str, Any], count: int, number: int, model: str) -> list[Case]:
    """About `count` of them over all operations, shuffled. Half of those that name a model name
    `model`: a random name would never pass the door."""
    random, found = Random(number), []
    loaded = schemathesis.openapi.from_dict(json.loads(json.dumps(document)))
    operations = [operation.ok() for operation in loaded.get_all_operations()]
    with_body = [operation for operation in operations if operation.body]
    rest = [operation for operation in operations if not operation.body]
    each = max(1, (count - 4 * len(rest)) // len(with_body))
    for operation in operations:
        found += _of(operation, each if operation.body else 4, number)
    random.shuffle(found)
    return [_written(case, model if random.random() < 0.5 else "") for case in found]


def _of(operation: Any, count: int, number: int) -> list[Any]:
    """The same ones for the same number. Some operations have fewer than that."""
    modes = schemathesis.GenerationMode
    forbidden = count // _FORBIDDEN_SHARE if operation.body else 0
    allowed = operation.as_strategy(generation_mode=modes.POSITIVE)
    found = _examples(allowed, count - forbidden, number)
    if forbidden:
        found += _examples(operation.as_strategy(generation_mode=modes.NEGATIVE), forbidden, number)
    return found


def _examples(strategy: Any, count: int, number: int) -> list[Any]:
    found: list[Any] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(case: Any) -> None:
        found.append(case)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collect()
    return found[:count]


def _written(case: Any, model: str) -> Case:
    body = "" if isinstance(case.body, NotSet) else case.body
    if model and isinstance(body, dict):
        body = {**body, "model": model}
    text = body if body == "" else json.dumps(body, default=str)
    return Case(case.method, case.operation.path, case.formatted_path, text)
