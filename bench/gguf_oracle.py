"""llama.cpp's side of gguf_text.py, run by the Python that has llama-cpp-python and numpy alone.

Reads one JSON request from stdin and writes token ids and logits into the .npz it names.
"""

import json
import sys
from typing import Any

import numpy as np
from llama_cpp import Llama

_CONTEXT = 256
_F32 = 0  # GGML_TYPE_F32, so that the KV cache rounds nothing


def main() -> None:
    request = json.load(sys.stdin)
    model = Llama(
        request["file"], n_ctx=_CONTEXT, logits_all=True, type_k=_F32, type_v=_F32, verbose=False
    )
    found: dict[str, Any] = {}
    for number, text in enumerate(request["texts"]):
        found[f"read{number}"] = model.tokenize(text.encode(), add_bos=True, special=True)
    for number in range(request["continued"]):
        ids, logits = _continued(model, found[f"read{number}"], request["tokens"])
        found |= {f"ids{number}": ids, f"logits{number}": logits}
    np.savez(request["out"], **found)


def _continued(model: Llama, prompt: list[int], count: int) -> tuple[list[int], np.ndarray]:
    """The prompt with its greedy continuation, and the logits behind every token of both."""
    model.reset()
    ids = list(prompt)
    model.eval(ids)
    for _ in range(count):
        token = int(model.scores[len(ids) - 1].argmax())
        if token == model.token_eos():
            break
        ids.append(token)
        model.eval([token])
    return ids, model.scores[: len(ids)].copy()


if __name__ == "__main__":
    main()
