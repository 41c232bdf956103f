"""Makes docs/fields.md: every field of every dialect, what it does, and a test that sends it.

PYTHONPATH=proto:engine:daemon:tests/support python -m field_table > docs/fields.md
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from pydantic import AliasChoices

from swiftlmd.http.chat import ChatRequest
from swiftlmd.http.completions import CompletionRequest
from swiftlmd.http.embeddings import EmbeddingRequest
from swiftlmd.http.messages_request import MessagesRequest
from swiftlmd.http.ollama.embed import EmbedBody
from swiftlmd.http.ollama.requests import OllamaChat, OllamaOptions, OllamaPrompt
from swiftlmd.http.rerank import RerankRequest
from swiftlmd.http.responses_request import ResponsesRequest
from swiftlmd.http.schema import Body

ROOT = Path(__file__).resolve().parents[2]
DIALECTS: dict[str, type[Body]] = {
    "chat": ChatRequest,
    "completions": CompletionRequest,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
    "embeddings": EmbeddingRequest,
    "rerank": RerankRequest,
    "ollama chat": OllamaChat,
    "ollama generate": OllamaPrompt,
    "ollama embed": EmbedBody,
    "ollama options": OllamaOptions,
}
TESTS = ("tests/integration/test_http_*.py", "tests/unit/daemon/test_http_request_models.py")
HEAD = """# Fields of requests

Every field of every dialect that is known here: what it does, and a test that sends it. A field
that is not in this table is ignored and named once in the log. What is refused may be sent with a
value that means "off": `null`, `false`, `0`, `""`, an empty list, and where it is so in its own
server, `-1` or `1`. Made by `tests/support/field_table.py`; a test holds it against the code.

"""

# What a field does. Two fields of one name do the same in every dialect.
EFFECTS = {
    "model": "the model by name or alias; without it the default one",
    "messages": "the conversation",
    "input": "the conversation, or the texts to embed",
    "prompt": "the text to go on with, or the user's message",
    "stream": "answers in pieces",
    "stream_options": "`include_usage`: the counts come in a last chunk",
    "n": "how many choices",
    "max_tokens": "the most tokens of the answer",
    "max_completion_tokens": "the most tokens of the answer",
    "max_output_tokens": "the most tokens of the answer",
    "min_tokens": "no end before that many tokens",
    "temperature": "flattens or sharpens the distribution; 0 is the likeliest token",
    "top_p": "the likeliest tokens of that share; 0 is the likeliest one",
    "top_k": "the k likeliest tokens; 0 and -1 are off",
    "min_p": "tokens of at least that share of the likeliest one's probability",
    "repetition_penalty": "makes tokens that were said less likely",
    "repetition_context_size": "how many tokens that looks back; -1 all, 0 off",
    "presence_penalty": "subtracts from tokens that the answer has",
    "frequency_penalty": "subtracts from them for each time",
    "xtc_probability": "how often the likeliest tokens are left out",
    "xtc_threshold": "the probability above which they are; above 0.5 it cannot act",
    "logit_bias": "adds to the logits of tokens",
    "seed": "the same draw for the same request",
    "stop": "ends the answer before these strings",
    "stop_sequences": "ends the answer before these strings",
    "stop_token_ids": "ends the answer at these tokens",
    "ignore_eos": "the model's own ends do not end the answer",
    "keep_alive": "how long the model stays loaded",
    "cache_salt": "requests of different salts share no cached prefix",
    "cache_prompt": "`false`: the prefix cache is not used",
    "return_token_ids": "token ids come with the text",
    "guided_json": "the answer follows a JSON schema",
    "guided_regex": "the answer follows a regular expression",
    "guided_choice": "the answer is one of these texts",
    "guided_grammar": "the answer follows a Lark grammar",
    "structured_outputs": "any of the four, in vLLM's spelling",
    "tools": "the functions that the model may call",
    "tool_choice": "whether a call is made, and of what",
    "parallel_tool_calls": "`false`: one call at most",
    "response_format": "the answer is JSON, or follows a schema",
    "logprobs": "log-probabilities of the chosen tokens",
    "top_logprobs": "and of the likeliest others",
    "reasoning_effort": "how much the model thinks",
    "reasoning": "`effort`, `enabled`, `max_tokens`: how much the model thinks",
    "thinking": "`type`, `budget_tokens`: whether and how much the model thinks",
    "enable_thinking": "whether the model thinks",
    "thinking_budget": "the most tokens of thoughts",
    "think": "whether, or how much, the model thinks",
    "chat_template_kwargs": "variables of the chat template",
    "continue_final_message": "the answer goes on with the last message",
    "add_generation_prompt": "`false` with a last message of the assistant: as above",
    "reasoning_format": "`none`: thoughts stay in the content",
    "modalities": "only `text`",
    "suffix": "the text behind the gap that is filled",
    "echo": "the prompt comes first, with `logprobs` scored",
    "best_of": "only the same as `n`",
    "instructions": "a system message",
    "text": "`format`: the answer is JSON, or follows a schema",
    "include": "encrypted thoughts, log-probabilities",
    "store": "`false`: the response is not kept",
    "previous_response_id": "goes on with a kept response",
    "metadata": "comes back in the response",
    "user": "comes back in the response",
    "system": "a system message",
    "output_config": "`effort`, `format`",
    "output_format": "the answer follows a schema",
    "encoding_format": "`float` or `base64`",
    "dimensions": "cuts the vectors",
    "truncate": "cuts long texts to the context",
    "format": "the answer is JSON, or follows a schema",
    "options": "see ollama options",
    "images": "images of the message",
    "raw": "the prompt goes to the model as it is",
    "query": "what the documents are to answer",
    "documents": "the texts to sort",
    "top_n": "how many of them come back",
    "return_documents": "their texts come with them",
    "instruction": "what the search is for",
    "num_ctx": "a warning where the model's context is smaller",
}


def sent_fields() -> dict[str, str]:
    """Each text and argument name in the tests, with the first test that has it."""
    found: dict[str, str] = {}
    for pattern in TESTS:
        for path in sorted(ROOT.glob(pattern)):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
                if isinstance(node, kinds) and node.name.startswith("test_"):
                    for name in _names(node):
                        found.setdefault(name, f"{path.stem}: {node.name}")
            for name in _names(tree):  # of a table that a test runs through
                found.setdefault(name, path.stem)
    return found


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg


def fields(body: type[Body]) -> Iterator[tuple[str, str]]:
    """The names that a client may send, and what each does; empty where nobody has said it."""
    for name, field in body.model_fields.items():
        yield name, EFFECTS.get(name, "")
        alias = field.validation_alias
        for other in alias.choices if isinstance(alias, AliasChoices) else ():
            if other != name:
                yield str(other), f"the same as `{name}`"
    for name in sorted(body.ignored - body.model_fields.keys()):
        yield name, "no effect here"
    for name, reason in sorted(body.refused.items()):
        yield name, f"refused: {reason}"


def rows() -> dict[tuple[str, str], list[str]]:
    """The dialects of each field and effect."""
    table: dict[tuple[str, str], list[str]] = {}
    for dialect, body in DIALECTS.items():
        for name, effect in fields(body):
            table.setdefault((name, effect), []).append(dialect)
    return table


# These are sent by tests that run through the table itself.
_TABLES = {
    "refused": "test_http_fields: test_refused_fields_are_named_and_pass_when_off",
    "no effect here": "test_http_fields: test_fields_without_effect_are_taken",
}


def untested() -> list[str]:
    sent = sent_fields()
    return [n for n, effect in rows() if n not in sent and effect.partition(":")[0] not in _TABLES]


def page() -> str:
    tests = sent_fields()
    lines = ["| field | dialects | what it does | test |", "|---|---|---|---|"]
    for (name, effect), dialects in sorted(rows().items()):
        test = _TABLES.get(effect.partition(":")[0], "") or tests.get(name, "")
        shown = effect.replace("|", "\\|")
        lines.append(f"| `{name}` | {', '.join(dialects)} | {shown} | {test and f'`{test}`'} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
