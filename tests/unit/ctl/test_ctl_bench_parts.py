"""The parts of `swiftlmctl bench` that need no daemon."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.bench import bar_chart, compare, context, quality, texts
from swiftlmctl.bench.coherence import complaint
from swiftlmctl.bench.endpoint import Endpoint, EndpointReply, Refused, _collect
from swiftlmctl.bench.estimate import Ask, Probe, Speed, duration
from swiftlmctl.bench.figures import Figure, ratio
from swiftlmctl.bench.report import Report, save
from swiftlmctl.bench.session import MemoryUse, Session, objection, speed
from swiftlmctl.commands.bench import _measure
from swiftlmctl.errors import CtlError

STORY = (
    "The keeper climbed the stairs before the storm came in from the west. He lit the lamp, "
    "wrote the hour into his book and waited for the ship that his brother had promised."
)


def words(text: str) -> int:
    return len(text.split())


def reply(text: str, num_tokens: int = 11) -> EndpointReply:
    return EndpointReply(text, 1.0, 2.0, num_tokens, 100, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no text"),
        (" \n\t ", "whitespace"),
        ("so it is � not", "UTF-8"),
        ("the lamp is lit " * 20, "repeats"),
        ((STORY + " ") * 4, "repeats"),
        ("!" * 200, "again and again"),
        ("word" + " " * 50, "whitespace"),
    ],
)
def test_nonsense_is_called_by_its_name(text, said):
    assert said in complaint(text)


@pytest.mark.parametrize("text", [STORY, "Paris.", "42", '{"city": "Kiel", "people": 246000}'])
def test_language_passes(text):
    assert complaint(text) == ""


def test_a_run_of_nonsense_has_no_speed():
    assert speed([reply(STORY), reply("ha " * 90)]) == "no speed: repeats 'ha ha ha ha'"
    assert speed([reply(STORY)]) == Figure((10.0,), "tok/s")


@pytest.mark.parametrize("make", [texts.payload, lambda n, count: texts.prose_of(n, count, 3)])
def test_texts_come_close_to_the_wanted_length_and_never_pass_it(make):
    for wanted in (300, 5_537):
        assert 0.9 * wanted < words(make(wanted, words)) <= wanted


def test_a_payload_is_json():
    assert json.loads(texts.payload(500, words))["records"]


def test_a_pass_key_lies_at_its_depth_and_its_question_at_the_end():
    text = texts.passkey(2_000, words, 0.7, 12345)
    assert 0.6 < text.index("12345") / len(text) < 0.8
    assert text.endswith("number only.")
    assert words(text) <= 2_000


def test_equal_distributions_have_no_divergence_and_different_ones_have():
    even = {"a": -0.7, "b": -0.7}
    tilted = {"a": -0.1, "b": -3.0}
    assert quality._mean_kld([("a", even)], [("a", even)]) == pytest.approx(0)
    assert quality._mean_kld([("a", even)], [("a", tilted)]) > 0.1


def test_results_are_kept_as_page_picture_and_json(tmp_path):
    report = Report("context m<o>del", ("a", "b"))
    report.add("512", Figure((1.0, 2.0, 3.0), "tok/s"))
    report.bars["vanilla <512>"] = Figure((1.0, 2.0, 3.0), "tok/s")
    assert report.check(False, "text stays") == "NO"
    page = save(report, tmp_path)
    text = page.read_text()
    assert "| 512 | 2 tok/s (1-3) |" in text
    assert "Not kept: text stays" in text
    picture = ElementTree.parse(tmp_path / "context_m_o_del.svg")
    assert any("vanilla" in (node.text or "") for node in picture.iter())
    kept = json.loads(page.with_suffix(".json").read_text())
    assert kept["reports"][0]["bars"]["vanilla <512>"]["values"] == [1.0, 2.0, 3.0]


def test_reports_of_other_names_stay_on_the_page_and_the_same_name_is_replaced(tmp_path):
    for name, cell in (("cache m", "old"), ("agents m", "turn"), ("cache m", "new")):
        report = Report(name, ("a", "b"), bars={"x": Figure((1.0, 2.0), "s")})
        report.add(cell)
        page = save(report, tmp_path)
    text = page.read_text()
    assert "| turn |  |" in text
    assert "| new |  |" in text
    assert "old" not in text
    assert len(json.loads(page.with_suffix(".json").read_text())["reports"]) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CtlError("swiftlmd is not running")])
def test_what_was_measured_before_an_end_is_kept_with_its_reason(tmp_path, error):
    report = Report("context m", ("a",))

    def fill() -> None:
        report.add("512")
        raise error

    _measure(report, fill)
    assert report.ended_early in ("interrupted", "swiftlmd is not running")
    assert f"Ended early: {report.ended_early}" in save(report, tmp_path).read_text()


@pytest.mark.parametrize("fill", [quality.fill, context.fill])
def test_a_daemon_that_is_gone_is_no_refusal(monkeypatch, fill):
    def load_anew(self, **options):
        raise CtlError("swiftlmd is not running", code=CtlExit.NOT_RUNNING)

    monkeypatch.setattr(Session, "load_anew", load_anew)
    session, report = Session(Endpoint("http://x/v1", "m"), 1), Report("quality m", ("KV",))
    with pytest.raises(CtlError, match="not running"):
        fill(report, session, ["vanilla"], quality.QUICK if fill is quality.fill else ["vanilla"])
    assert report.rows == []


def test_an_end_before_the_first_row_is_the_error_itself():
    def fill() -> None:
        raise CtlError("swiftlmd is not running")

    with pytest.raises(CtlError):
        _measure(Report("context m", ("a",)), fill)


def sse(*choices: dict) -> list[dict]:
    return [{"choices": [choice]} for choice in choices]


def test_an_answer_without_an_end_is_no_reply_and_pieces_count_where_the_server_does_not():
    pieces = [{"delta": {"content": text}} for text in ("a", "b", "c")]
    assert _collect(iter(sse(*pieces)), 0.0) is None
    found = _collect(iter(sse(*pieces, {"delta": {}, "finish_reason": "stop"})), 0.0)
    assert (found.text, found.num_tokens) == ("abc", 3)


def test_a_base_model_is_asked_with_a_plain_prompt(monkeypatch):
    asked = []

    def events(self, path, body):
        asked.append((path, body.get("prompt")))
        if path == "/chat/completions":
            raise Refused("400 this model has no chat template; send a plain prompt instead")
        yield {"choices": [{"text": "a lamp", "finish_reason": "length"}]}

    monkeypatch.setattr(Endpoint, "_events", events)
    found = Endpoint("http://x/v1", "base").chat([{"role": "user", "content": "Once"}])
    assert found.text == "a lamp"
    assert asked == [("/chat/completions", None), ("/completions", "Once")]
    with pytest.raises(CtlError):
        Endpoint("http://x/v1", "base").chat([{"role": "user", "content": "Once"}], tools=[{}])


def test_a_prompt_too_long_for_a_server_is_a_row_and_the_others_are_compared(monkeypatch):
    def chat(self, messages, **fields):
        if len(messages[0]["content"]) > 5_000:
            raise Refused("400 the context is too short")
        return reply(STORY)

    monkeypatch.setattr(Endpoint, "chat", chat)
    monkeypatch.setattr(compare, "_announce", lambda session: None)
    report = Report("compare", compare.COLUMNS)
    compare.fill(report, Session(Endpoint("http://a/v1", "m"), 2), Endpoint("http://b/v1", "m"))
    assert [row[:2] for row in report.rows[-2:]] == [
        ("page of text", "generation"),
        ("long text", "refused"),
    ]


def test_one_token_has_no_speed_and_nonsense_has_no_times():
    assert speed([reply("Yes", num_tokens=1)]) == "no speed: one token"
    assert objection([reply(STORY), reply(" ")]) == "no speed: nothing but whitespace"
    assert objection([EndpointReply("", 1.0, 2.0, 9, 9, 0, ({"name": "look"},))]) == ""


def test_a_picture_marks_what_is_ours_and_stands_on_white():
    text = bar_chart.bars(
        "speed <tok/s>", {"us": Figure((2.0,)), "them": Figure((1.0, 3.0))}, ["us"]
    )
    assert "speed &lt;tok/s&gt;" in text
    fills = [node.get("fill") for node in ElementTree.fromstring(text).iter() if "rect" in node.tag]
    assert fills[0] == "#fff"
    assert fills[1] != fills[2]


def test_a_ratio_is_of_medians():
    assert ratio(Figure((1, 4, 9)), Figure((2, 2, 2))) == "2.00 x"


def test_an_outlook_prices_attention_over_what_a_prompt_has_before_it():
    # 4 ms a token and 1 us more for each token before it; 50 ms for a new one, and 20 us.
    def probe(tokens: int) -> Probe:
        return Probe(tokens, tokens * (4e-3 + 1e-6 * tokens), 0.05 + 2e-5 * tokens)

    speed = Speed(probe(256), probe(1024))
    assert speed.seconds(Ask(6_000, 0)) == pytest.approx(24 + 36)
    assert speed.seconds(Ask(6_000, 0, cached=5_000)) == pytest.approx(60 - 45)
    assert speed.seconds(Ask(1_000, 10)) == pytest.approx(5 + 0.7)


def test_an_outlook_of_a_machine_that_got_faster_between_its_probes_is_not_negative():
    speed = Speed(Probe(256, 2.0, 0.2), Probe(1024, 4.0, 0.1))
    assert speed.seconds(Ask(6_000, 10)) == pytest.approx(6_000 / 256 + 1)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 seconds"), (40, "40 seconds"), (420, "7 min"), (9e3, "2.5 h")],
)
def test_durations_are_round(seconds, words):
    assert duration(seconds).startswith(words)


class Answers:
    """An endpoint that gives one text to everything."""

    def __init__(self, text: str) -> None:
        self.text = text

    def chat(self, messages, **fields):
        if "tools" in fields:
            raise Refused("400 this model has no chat template; send a plain prompt instead")
        return reply(self.text)


def test_what_a_grammar_did_not_hold_and_a_story_without_sense_are_promises_not_kept():
    report = Report("quality", quality.COLUMNS)
    broken = Answers('{"city": "Ki')
    assert quality._valid(report, "fp16: JSON", 2, quality._is_json(broken)) == "0 of 2"
    assert "repeats" in quality._sense(report, "fp16", Answers("ha " * 90))
    assert "no chat" in quality._valid(report, "fp16: calls", 2, quality._is_call(broken))
    assert [promise[:14] for promise in report.failed] == ["fp16: JSON: 2 ", "fp16: a story "]


@pytest.mark.parametrize(("read", "said"), [(4_000_000, "4.0 MB"), (0, "nothing was read")])
def test_a_row_of_ssd_says_what_it_read_and_is_none_without(read, said):
    class Disk:
        runs, endpoint, total = 1, Answers(STORY), 0

        def pid(self):
            return 1

        def memory(self):
            self.total += read
            return MemoryUse(1, 2, 3, 4, read=self.total)

        def count_tokens(self, text):
            return len(text.split())

        def repeated(self, ask):
            return [reply(STORY)]

    report = Report("context", context.COLUMNS)
    context._measured(report, Disk(), "SSD", 512)
    assert any(said in cell for cell in report.rows[0])
    assert bool(report.bars) == bool(read)
