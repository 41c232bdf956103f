"""`run "prompt"` and `chat`: one answer, or a conversation, through the daemon.

Ctrl-C ends the answer: closing the stream aborts the request in the engine within one step.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from swiftlmctl.commands.options import Json, model_name

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from swiftlmctl.commands import chat_loop

OfModel = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Model name, or a folder's path (default: the default model).",
        callback=model_name,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Fetch a model that is not here.")]
System = Annotated[str, typer.Option("--system", "-s", help="System prompt.")]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", "-n", min=1, help="Maximum tokens of an answer (default: what fits)."
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", "-t", min=0, max=2, help="0 = greedy (default: configured)."),
]
Seed = Annotated[
    int | None, typer.Option(min=0, max=2**64 - 1, help="The same seed draws the same answer.")
]
Think = Annotated[
    bool | None, typer.Option("--think/--no-think", help="For models that can reason.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print token counts and speed.")]


def register(app: typer.Typer) -> None:
    app.command()(run)
    app.command()(chat)


def run(
    prompt: Annotated[str, typer.Argument(help="The question; - reads it from stdin.")] = "-",
    model: OfModel = "",
    system: System = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    think: Think = None,
    verbose: Verbose = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Answer one prompt."""
    from swiftlmctl import client, output
    from swiftlmctl.commands import chat_loop, first_use

    text = sys.stdin.read() if prompt == "-" else prompt
    wishes = chat_loop.Wishes(model, system, max_tokens, temperature, seed, think)

    async def verb(daemon: client.Daemon) -> chat_loop.Answer:
        await first_use.loaded(daemon, model, yes=yes)
        talk = chat_loop.Conversation(daemon, wishes)
        return await talk.ask(text, chat_loop.silent if json else output.write)

    answer = client.call(verb)
    if json:
        output.show_json(answer)
        return
    output.say()
    if verbose:
        output.say_wrapped(chat_loop.summary(answer))


def chat(
    model: OfModel = "",
    system: System = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    think: Think = None,
    verbose: Verbose = False,
    yes: Yes = False,
) -> None:
    """Chat with a model; /help lists commands, Ctrl-D exits."""
    from swiftlmctl import client
    from swiftlmctl.commands import chat_loop, first_use

    wishes = chat_loop.Wishes(model, system, max_tokens, temperature, seed, think)

    async def verb(daemon: client.Daemon) -> None:
        await first_use.loaded(daemon, model, yes=yes)
        await _talk(chat_loop.Conversation(daemon, wishes), verbose)

    client.call(verb)


async def _talk(talk: chat_loop.Conversation, verbose: bool) -> None:
    import signal

    from swiftlmctl import output
    from swiftlmctl.commands import chat_loop

    # asyncio's own handler would let the first Ctrl-C at the prompt pass unseen.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while (text := _typed()) is not None:
        if text == "/clear":
            talk.clear()
        elif text == "/help":
            output.say(
                "/clear forgets what was said, /exit or Ctrl-D leaves, Ctrl-C ends an answer"
            )
        elif text:
            answer = await _until_interrupted(talk.ask(text, output.write))
            output.say()
            if verbose and answer is not None:
                output.say_wrapped(chat_loop.summary(answer))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C is no error: we are leaving


def _typed() -> str | None:
    """A line from the user, None when they leave. Nothing else runs meanwhile: it may block."""
    from swiftlmctl import output

    try:
        text = input("> " if output.on_terminal() else "").strip()
    except (EOFError, KeyboardInterrupt):
        return None
    return None if text in ("/exit", "/quit") else text


async def _until_interrupted(
    asking: Coroutine[None, None, chat_loop.Answer],
) -> chat_loop.Answer | None:
    """Ctrl-C ends the answer, not the conversation."""
    import asyncio
    import signal

    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(asking)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        loop.remove_signal_handler(signal.SIGINT)
