"""MiniMax M3's calls: what stands in a tag may itself look like one."""

from __future__ import annotations

import json

import pytest

from swiftlm_engine.text.tools.nested_tags import TAG_MARK, parse_nested_calls


def call(*elements: str) -> str:
    parts = ['<invoke name="f">', *elements, "</invoke>"]
    return "".join(TAG_MARK + part for part in parts)


@pytest.mark.parametrize(
    "value",
    [
        {"b": f"text {TAG_MARK}</a> and {TAG_MARK}<item>"},
        [f"{TAG_MARK}</a>", {"c": [1, f"{TAG_MARK}</invoke>"]}],
        {},
        [],
    ],
)
def test_json_that_holds_a_tag_in_its_texts_is_read_whole(value: object) -> None:
    body = call(f"<a>{json.dumps(value)}", "</a>", "<b>5", "</b>")
    assert parse_nested_calls(body, []) == [{"name": "f", "arguments": {"a": value, "b": 5}}]


@pytest.mark.parametrize("text", ["{not json", "[1, 2] and more", '{"a": 1} {"b": 2}'])
def test_what_only_begins_like_json_is_text(text: str) -> None:
    [found] = parse_nested_calls(call(f"<a>{text}", "</a>"), [])
    assert found["arguments"] == {"a": text}
