"""`models add|search|repair|du`, `import`, `convert` and `pack`: models and what they cost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swiftlmctl.commands.options import Json, Model

if TYPE_CHECKING:
    from swiftlm_proto import messages as m
    from swiftlmctl import client

Name = Annotated[str, typer.Option("--name", help="Local name of the model.")]


def register(app: typer.Typer) -> None:
    app.command("import")(import_gguf)
    app.command()(convert)
    app.command()(pack)


def register_in_models(group: typer.Typer) -> None:
    group.command()(add)
    group.command()(search)
    group.command()(best)
    group.command()(repair)
    group.command()(du)


def add(
    folder: Annotated[Path, typer.Argument(help="A model folder.", show_default=False)],
    name: Name = "",
    json: Json = False,
) -> None:
    """List a model folder of yours where it is; nothing is copied."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    request = m.AddModelRequest(path=absolute(folder), name=name)

    async def verb(daemon: client.Daemon) -> m.AddModelReply:
        return await daemon.store.add(request)

    reply = client.call(verb)
    client.check(reply.fault)
    assert reply.model is not None, "a reply without a fault names the model"
    if json:
        output.show_json(reply.model)
    else:
        problem = f", but: {reply.model.error}" if reply.model.error else ""
        output.say(f"{reply.model.model} is listed{problem}")


def search(
    text: Annotated[
        str, typer.Argument(help="Words to search for (default: list the catalogue).")
    ] = "",
    fits: Annotated[bool, typer.Option("--fits", help="Only what runs on this machine.")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Ask the hub for exact sizes, for exact verdicts.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of results.")] = 20,
    json: Json = False,
) -> None:
    """Find models on the hub and show whether each fits this machine."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.views import model_table

    request = m.SearchModelsRequest(text=text, limit=limit, fits=fits, refresh=refresh)

    async def verb(daemon: client.Daemon) -> m.SearchModelsReply:
        return await daemon.store.search(request)

    reply = client.call(verb)
    client.check(reply.fault)
    if json:
        output.show_json(reply.models)
    elif reply.models:
        output.show_table(model_table.offers_table(reply.models))
    else:
        output.say("nothing found" + (" that fits; leave --fits away to see all" if fits else ""))


def best(json: Json = False) -> None:
    """Show the largest, the fastest and the best model for agents here."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output
    from swiftlmctl.views import best_models

    async def verb(daemon: client.Daemon) -> m.SearchModelsReply:
        return await daemon.store.search(m.SearchModelsRequest())

    reply = client.call(verb)
    client.check(reply.fault)
    found = best_models.picks(reply.models)
    if json:
        output.show_json([{"best": x.best, **output.plain(x.model)} for x in found])
    elif found:
        output.show_table(best_models.table(found))
        output.say_wrapped(
            "\n`swiftlmctl plan MODEL` says how one runs, `swiftlmctl pull MODEL` fetches it", 0
        )
    else:
        output.say("no model of the catalogue runs here; `swiftlmctl models search` says why")


def repair(model: Model, json: Json = False) -> None:
    """Read a model again; fetch what is wrong or missing."""
    from swiftlm_proto import messages as m

    request = m.RepairModelRequest(model=model)
    _operation(lambda daemon: daemon.store.repair(request), f"repair {model}", json)


def du(json: Json = False) -> None:
    """Show the disk space that models and caches use."""
    from swiftlm_proto import messages as m
    from swiftlmctl import client, output

    async def verb(daemon: client.Daemon) -> m.DiskUsageReply:
        return await daemon.store.usage(m.DiskUsageRequest())

    reply = client.call(verb)
    if json:
        output.show_json(reply)
        return
    rows = tuple((row.name, output.size_text(row.disk_bytes), row.path) for row in reply.rows)
    output.show_table(output.Table(("name", "size", "path"), rows, frozenset({"size"})))
    total, free = output.size_text(reply.total_bytes), output.size_text(reply.free_bytes)
    output.say(f"{total} taken, {free} free")


def import_gguf(
    file: Annotated[Path, typer.Argument(help="A .gguf file.", show_default=False)],
    name: Name = "",
    dtype: Annotated[
        str, typer.Option(help="Dtype of scales: float32, float16, bfloat16 (default: by machine).")
    ] = "",
    json: Json = False,
) -> None:
    """Convert a GGUF file to a model and report the rounding error."""
    from swiftlm_proto import messages as m

    request = m.ImportModelRequest(path=absolute(file), name=name, dtype=dtype)
    _operation(lambda daemon: daemon.store.import_(request), f"import {file.name}", json)


def convert(
    model: Model,
    name: Name = "",
    bits: Annotated[int, typer.Option(help="2, 3, 4, 5, 6 or 8 per weight.")] = 4,
    group_size: Annotated[int, typer.Option("--group-size", help="32, 64 or 128 weights.")] = 64,
    json: Json = False,
) -> None:
    """Make a smaller copy of a model that is not quantized."""
    from swiftlm_proto import messages as m

    request = m.ConvertModelRequest(model=model, name=name, bits=bits, group_size=group_size)
    _operation(lambda daemon: daemon.store.convert(request), f"convert {model}", json)


def pack(
    model: Model,
    remove: Annotated[bool, typer.Option("--remove", help="Delete the records again.")] = False,
    json: Json = False,
) -> None:
    """Write a model's experts as records, to stream from disk.

    They take as much disk as the experts, and are used only if reading them was measured to be at
    least a tenth faster.
    """
    from swiftlm_proto import messages as m

    request = m.PackModelRequest(model=model, remove=remove)
    verb = "unpack" if remove else "pack"
    _operation(lambda daemon: daemon.store.pack(request), f"{verb} {model}", json)


def absolute(path: Path) -> str:
    """As the daemon must hear it: it has another working directory."""
    return str(path.expanduser().absolute())


def _operation(
    start: Callable[[client.Daemon], AsyncIterator[m.OperationEvent]], title: str, json: bool
) -> None:
    """Follows it to the end and says what came of it."""
    from swiftlmctl import client, output
    from swiftlmctl.views import progress

    async def verb(daemon: client.Daemon) -> m.OperationEvent:
        return await progress.follow(start(daemon), title, json=json)

    last = client.call(verb)
    if not json and last.model is not None:
        detail = f"; {last.detail}" if last.detail else ""
        output.say(
            f"{last.model.model} is here ({output.size_text(last.model.size_bytes)}){detail}"
        )
