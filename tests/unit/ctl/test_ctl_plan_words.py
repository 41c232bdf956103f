"""A plan in sentences, and tables that fit a narrow terminal."""

import pytest

from swiftlmctl.output import Table, fitted, wrapped
from swiftlmctl.views.plan_words import sentences, told

PLAN = {
    "strategy": "resident", "needed_bytes": 5_000_000_000, "available_bytes": 16_000_000_000,
    "context": 32_768, "parallel": 4, "kv": "fp16", "streaming": None, "reductions": [],
    "warnings": [], "speed": {"decode_tokens_s": [12.4, 41.2], "calibrated": False},
}  # fmt: skip
EXPERTS = {"mode": "experts", "slots": 40, "num_experts": 128, "resident_layers": 0,
           "streamed_layers": 48}  # fmt: skip


def test_a_resident_model_takes_three_sentences() -> None:
    said = sentences(PLAN)
    assert said == [
        "Runs, all of it in memory. It takes 5.0 GB of 16.0 GB.",
        "32,768 tokens of context for 4 requests at once, KV cache fp16.",
        "Writes 12 to 41 tokens/s (predicted).",
    ]


def test_a_streamed_model_says_what_is_read_and_that_it_is_slow() -> None:
    slow = {"decode_tokens_s": [0.04, 0.12], "calibrated": True}
    said = " ".join(sentences(PLAN | {"strategy": "streamed", "streaming": EXPERTS, "speed": slow}))
    assert "Runs. Two thirds of its experts are read from the SSD." in said
    assert "Below one word a second here (0.04 to 0.12 tokens/s, by calibration)." in said


def test_the_answer_no_says_what_would_fit() -> None:
    said = " ".join(sentences(PLAN | {"strategy": "refused", "fixes": ["--kv turbo", "other"]}))
    assert said.startswith("Does not run here")
    assert "Smallest change that fits: --kv turbo." in said


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_tables_fit_the_terminal_and_cut_no_word(width: int) -> None:
    name, notes = "mlx-community/Qwen3-8B-4bit", "tools, reasoning, 4.5 bits per weight"
    table = Table(
        ("model", "size", "fit", "context", "tok/s", "licence", "notes"),
        (("smollm2-135m", "119 MB", "fits", "8192", "7-26", "apache-2.0", "here"),
         (name, "4.6 GB", "~ streams", "32768", "0.04-0.12", "Apache-2.0", notes)),
        frozenset({"size"}),
    )  # fmt: skip
    lines = fitted(table, width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).replace(",", "").split()
    for cell in table.rows[1]:
        assert set(cell.replace(",", "").split()) <= set(words)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_long_sentences_are_wrapped_between_words(width: int) -> None:
    text = "[ warn  ] BLAS: /usr/lib/libopenblas.so: one row takes 0.26 ms, sixteen 198 ms"
    lines = wrapped(f"{text}\n  short", width, 10).split("\n")
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == f"{text} short".replace("  ]", " ]")
    assert lines[-1] == "  short"
    if width < len(text):
        assert lines[1].startswith(" " * (10 if width > 20 else 4))


def test_a_word_longer_than_the_terminal_is_left_whole() -> None:
    path = "/" + "x" * 60
    assert path in wrapped(f"the folder {path} is not there", 40).split("\n")[1]


def test_a_plans_table_leaves_out_what_is_not_so() -> None:
    plan = {"forced": False, "shortfall_bytes": 0, "here": False, "total_bytes": 0, "engine": {
        "wired_bytes": 0, "kv_budget_bytes": 5}}  # fmt: skip
    assert told(plan) == {"here": False, "total_bytes": 0, "engine": {"kv_budget_bytes": 5}}
    assert told({"forced": True, "ranks": []}) == {"forced": True, "ranks": []}
