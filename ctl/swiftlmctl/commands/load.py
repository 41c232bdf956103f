"""`load`, `unload`, `pin`, `unpin`, `plan`, `mem`: models in memory and the arithmetic of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.commands.options import Force, Json, Model, draft_name, layers

if TYPE_CHECKING:
    from swiftlm_proto import messages as m

_MOST = 2**31 - 1  # that a message carries: a larger number would arrive as another one

Context = Annotated[
    int | None,
    typer.Option(
        "--context", "--ctx", min=1, max=_MOST, help="Tokens of context (default: from the plan)."
    ),
]
Parallel = Annotated[
    int | None,
    typer.Option(min=1, max=_MOST, help="Maximum concurrent sequences (default: from the plan)."),
]
Kv = Annotated[
    str | None,
    typer.Option(
        help="Format of the KV cache: auto, fp16, turbo (= k4v3), k4v4, k8v3, spec or spec-srht."
    ),
]
Budget = Annotated[
    str | None,
    typer.Option("--memory-budget", help="What all models together may hold: auto, 12GB, 70%."),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="Activation dtype: float32, float16, bfloat16 (default: the model's)."),
]
GpuLayers = Annotated[
    int | None,
    typer.Option(
        parser=layers,
        metavar="N|auto|all",
        help="First layers on the accelerator, rest on the CPU.",
    ),
]
Stream = Annotated[
    str | None,
    typer.Option(
        "--stream-experts", help="Read experts, or whole layers, from disk: auto, on, off."
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(
        "--expert-slots", min=1, max=_MOST, help="Experts kept in memory per layer, streaming."
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(
        "--top-k-experts", min=1, max=_MOST, help="Experts used per token, fewer than trained."
    ),
]
NoCache = Annotated[
    str | None,
    typer.Option("--ssd-nocache", help="Bypass the page cache when streaming: auto, on, off."),
]
Prefetch = Annotated[
    str | None, typer.Option("--ssd-prefetch", help="Read ahead of need: off, next-router.")
]
Draft = Annotated[
    str | None,
    typer.Option(
        help="Speculative decoding: a model name, a folder's path, ngram or off.",
        callback=draft_name,
    ),
]
DraftTokens = Annotated[
    int | None,
    typer.Option(
        "--draft-tokens", min=1, max=_MOST, help="Draft tokens per step (default: 4; 8 with ngram)."
    ),
]
Chunk = Annotated[
    int | None,
    typer.Option(
        "--prefill-chunk",
        min=1,
        max=_MOST,
        help="Prefill chunk size in tokens (default: measured).",
    ),
]
CpuWeights = Annotated[
    str | None,
    typer.Option(
        "--cpu-weights",
        help="Hold quantized weights as float32 on the CPU: auto, expand (always), keep (never).",
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(load)
    app.command()(unload)
    app.command()(pin)
    app.command()(unpin)
    app.command()(plan)
    app.command()(mem)


def load(
    model: Model,
    context: Context = None,
    parallel: Parallel = None,
    kv: Kv = None,
    memory_budget: Budget = None,
    dtype: Dtype = None,
    gpu_layers: GpuLayers = None,
    stream_experts: Stream = None,
    expert_slots: Slots = None,
    top_k_experts: TopK = None,
    ssd_nocache: NoCache = None,
    ssd_prefetch: Prefetch = None,
    draft: Draft = None,
    draft_tokens: DraftTokens = None,
    prefill_chunk: Chunk = None,
    cpu_weights: CpuWeights = None,
    keep_alive: Annotated[
        str | None,
        typer.Option("--keep-alive", help="Unload after this idle time: 10m, 2h, 0, never."),
    ] = None,
    pin: Annotated[bool, typer.Option("--pin", help="Never unload it to make room.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Fetch a model that is not here.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Load even if the plan or the weights check refuses.")
    ] = False,
    json: Json = False,
) -> None:
    """Load a model into memory and wait until it answers."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.commands import durations, first_use
    from swiftlmctl.views import progress

    options = m.LoadOptions(
        context=context,
        parallel=parallel,
        kv=kv,
        memory_budget=memory_budget,
        dtype=dtype,
        gpu_layers=gpu_layers,
        stream_experts=stream_experts,
        expert_slots=expert_slots,
        top_k_experts=top_k_experts,
        ssd_nocache=ssd_nocache,
        ssd_prefetch=ssd_prefetch,
        draft=draft,
        draft_tokens=draft_tokens,
        prefill_chunk=prefill_chunk,
        cpu_weights=cpu_weights,
        keep_alive_s=None if keep_alive is None else durations.keep_alive(keep_alive),
    )
    request = m.LoadModelRequest(model=model, options=options, pin=pin, force=force)

    async def verb(daemon: client.Daemon) -> m.OperationEvent:
        await first_use.fetched(daemon, model, yes=yes)
        return await progress.follow(daemon.admin.load(request), f"load {model}", json=json)

    last = client.call(verb)
    if not json:
        output.say(_loaded_words(model, last.model))


def _loaded_words(model: str, status: m.ModelStatus | None) -> str:
    from swiftlmctl import output

    if status is None or status.loaded is None:
        return f"{model} is loaded"
    loaded = status.loaded
    words = [
        f"{status.model} is loaded in {loaded.load_s:.1f} s: "
        f"{output.size_text(loaded.weight_bytes)} of weights in memory, "
        f"context {loaded.context}, kv {loaded.kv}, {loaded.device}",
        *(f"  {note}" for note in _plan_notes(status.plan)),
        *([f"  {loaded.weights_note}"] if loaded.weights_note else []),
        *(f"  note: {note}" for note in loaded.notes),
    ]
    return "\n".join(words)


def _plan_notes(text: str) -> list[str]:
    """What the plan chose that somebody who asked for nothing would not expect."""
    import json

    plan = json.loads(text) if text else {}
    streaming = plan.get("streaming") or {}
    notes = [f"{plan['strategy']}: {streaming['note']}"] if streaming.get("note") else []
    return [*notes, *plan.get("reductions", []), *plan.get("warnings", [])]


def unload(model: Model, force: Force = False, json: Json = False) -> None:
    """Take a model out of memory; its process ends."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    async def verb(daemon: client.Daemon) -> m.UnloadModelReply:
        return await daemon.admin.unload(m.UnloadModelRequest(model=model, force=force))

    reply = client.call(verb)
    client.check(reply.fault)
    if json:
        output.show_json(reply)
    elif reply.was_loaded:
        output.say(f"{model} is unloaded; {output.size_text(reply.freed_bytes)} came back")
    else:
        output.say(f"{model} was not loaded")


def pin(model: Model) -> None:
    """Keep a loaded model in memory, idle or not."""
    _set_pinned(model, True)


def unpin(model: Model) -> None:
    """Let a pinned model be unloaded again."""
    _set_pinned(model, False)


def _set_pinned(model: str, pinned: bool) -> None:
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    async def verb(daemon: client.Daemon) -> m.PinModelReply:
        return await daemon.admin.pin(m.PinModelRequest(model=model, pinned=pinned))

    client.check(client.call(verb).fault)
    output.say(f"{model} is {'pinned' if pinned else 'not pinned any more'}")


def plan(
    model: Model,
    context: Context = None,
    parallel: Parallel = None,
    kv: Kv = None,
    memory_budget: Budget = None,
    gpu_layers: GpuLayers = None,
    stream_experts: Stream = None,
    expert_slots: Slots = None,
    top_k_experts: TopK = None,
    draft: Draft = None,
    prefill_chunk: Chunk = None,
    cpu_weights: CpuWeights = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every byte of it.")
    ] = False,
    json: Json = False,
) -> None:
    """Say whether and how a model runs here, before anything is loaded or fetched.

    Exits with 8 where it does not fit.
    """
    import json as jsonlib

    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.views import plan_words, report_tables

    options = m.LoadOptions(
        context=context,
        parallel=parallel,
        kv=kv,
        memory_budget=memory_budget,
        gpu_layers=gpu_layers,
        stream_experts=stream_experts,
        expert_slots=expert_slots,
        top_k_experts=top_k_experts,
        draft=draft,
        prefill_chunk=prefill_chunk,
        cpu_weights=cpu_weights,
    )

    async def verb(daemon: client.Daemon) -> m.PlanModelReply:
        return await daemon.admin.plan(m.PlanModelRequest(model=model, options=options))

    reply = client.call(verb)
    client.check(reply.fault)
    plan = jsonlib.loads(reply.plan)
    if json:
        output.say(reply.plan)
    elif verbose or "ranks" in plan or "strategy" not in plan:  # a group's plan is a table
        report_tables.show(reply.plan)
    else:
        for sentence in plan_words.sentences(plan):
            output.say(sentence)
        output.say("`-v` shows every byte of it.")
    if plan.get("strategy") == "refused":
        raise typer.Exit(CtlExit.DOES_NOT_FIT)


def mem(json: Json = False) -> None:
    """Show every byte the service holds or has promised."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.views import report_tables

    async def verb(daemon: client.Daemon) -> m.MemoryReply:
        return await daemon.admin.memory(m.MemoryRequest())

    reply = client.call(verb)
    if json:
        output.say(reply.ledger)
    else:
        report_tables.show(reply.ledger)
