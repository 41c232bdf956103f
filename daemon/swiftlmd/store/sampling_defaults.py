"""What a request samples with where its client says nothing.

In order: the request, `engine.sampling` of the configuration, the model's own
`generation_config.json` (its makers' advice), OpenAI's defaults.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from swiftlm_proto import messages as m

log = logging.getLogger(__name__)

# Field -> (smallest, largest). `repetition_context` and `seed` are no advice a model gives.
_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
}
FIELDS = tuple(_RANGES)


def sampling_profile(folder: Path, configured: Mapping[str, str]) -> m.Sampling:
    """The defaults of one model. Values nobody could sample with are logged and left out."""
    advice = _generation_config(folder)
    if advice.get("do_sample") is False:
        advice = {"temperature": 0.0}  # how transformers spells greedy
    values = advice | dict(configured)
    profile = m.Sampling()
    for name in FIELDS:
        if values.get(name) is not None:
            _put(profile, name, values[name], folder)
    return profile


def completed(sampling: m.Sampling | None, profile: m.Sampling) -> m.Sampling:
    """The request's own values, and the profile's where it has none."""
    result = m.Sampling() if sampling is None else sampling
    if result.temperature is not None:
        # Whoever chose a temperature chose a distribution: filters made for another are not added.
        return result
    for name in FIELDS:
        if getattr(result, name) is None:
            setattr(result, name, getattr(profile, name))
    return result


def _generation_config(folder: Path) -> dict[str, object]:
    try:
        content = json.loads((folder / "generation_config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}  # most models have one; none needs one
    return content if isinstance(content, dict) else {}


def _put(profile: m.Sampling, name: str, value: object, folder: Path) -> None:
    low, high = _RANGES[name]
    try:
        number = float(str(value))
    except ValueError:
        number = float("nan")
    if not low <= number <= high:  # also NaN
        log.warning("default left out %s=%r of %s: not in %g..%g", name, value, folder, low, high)
        return
    setattr(profile, name, int(number) if name == "top_k" else number)
