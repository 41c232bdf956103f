"""Small tokenizers, made in memory: one token per byte and a few words, plus what a test adds."""

from collections.abc import Sequence
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

WORDS = [
    "the weather in Paris is fine , said the assistant to the user . " * 5,
    '{"name": "a"}' * 9,
]

# Written with expressions only: transformers strips line breaks around statements.
CHATML = r"""
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{% endif %}
{{- '<tools>\n' }}
{%- for tool in tools %}{{- tool | tojson }}{{- '\n' }}{% endfor %}
{{- '</tools>\nAnswer with <tool_call>\n{"name": tool_call.name}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\n' }}
{%- if m.reasoning_content and loop.last %}
{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}
{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}
{%- elif enable_thinking is defined %}{{- '<think>\n' }}{%- endif %}
{%- endif %}"""
# Roles must alternate, no system role, ids of nine characters, arguments as objects.
STRICT = r"""
{%- set ns = namespace(turn=0) %}{#- knows tools #}
{%- for m in messages %}
{%- if m.role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
{%- if (m.role == 'user') != (ns.turn % 2 == 0) %}
{{- raise_exception('roles must alternate') }}
{%- endif %}
{%- set ns.turn = ns.turn + 1 %}
{%- endif %}
{%- if m.role == 'user' %}{{- '[INST]' + m.content + '[/INST]' }}
{%- elif m.tool_calls %}
{{- '[TOOL_CALLS] [' }}
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{- raise_exception('ids have length 9') }}{%- endif %}
{{- '{"name": "' + call.function.name + '", "arguments": {' }}
{%- for k, v in call.function.arguments.items() %}
{{- '"' + k + '": ' }}{{- v | tojson }}{{- ', ' if not loop.last }}
{%- endfor %}
{{- '}}' }}{{- ', ' if not loop.last }}
{%- endfor %}
{{- ']</s>' }}
{%- elif m.role == 'tool' %}{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
{%- else %}{{- m.content + '</s>' }}
{%- endif %}
{%- endfor %}"""


@cache
def tokenizer(
    template: str | None = CHATML,
    special: Sequence[str] = ("<|im_start|>", "<|im_end|>"),
    added: Sequence[str] = ("<think>", "</think>", "<tool_call>", "</tool_call>"),
) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        WORDS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_special_tokens([AddedToken(t, special=True) for t in special])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in added])
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=special[-1], clean_up_tokenization_spaces=False
    )
    made.chat_template = template
    return made
