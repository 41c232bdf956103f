"""Kernel text to C++: lint what C++ would let pass, mark shared memory for the shim."""

import re

from kernels.shim.signature import ShimError

_SPACES = {"device", "constant", "thread", "threadgroup"}
_NOT_IN_METAL = {
    *("double", "new", "delete", "throw", "try", "catch", "goto", "virtual", "std", "printf"),
    *("asm", "malloc", "__syncthreads", "__shfl_sync", "__half", "threadIdx", "blockIdx"),
}
_METAL_TYPES = {
    *("float", "half", "bfloat", "int", "uint", "short", "ushort", "char", "uchar", "long"),
    *("ulong", "bool", "void", "float16_t", "bfloat16_t", "uint32_t", "int32_t", "uint8_t"),
    *(f"{t}{n}" for t in ("float", "half", "int", "uint") for n in (2, 3, 4)),
}


def metal_to_cpp(expanded: str) -> str:
    """Macro-expanded Metal text -> what stands inside `namespace metal`."""
    text = _cleaned(re.sub(r"\[\[[^\[\]]*\]\]", "", expanded))
    _lint_metal(text)
    return _marked(_floats(text), "threadgroup")


def cuda_to_cpp(expanded: str) -> str:
    text = _cleaned(expanded)
    if re.search(r"(?<![\w.])\d+\.\d*(?![\w.])", re.sub(r"^#.*$", "", text, flags=re.M)):
        raise ShimError("lint", "a double literal: kernels are float throughout")
    return _marked(text, "__shared__")


def _cleaned(text: str) -> str:
    """Line markers of the preprocessor as #line, its own headers' dropped."""
    text = re.sub(r'^# (\d+) "([^"]*)".*$', r'#line \1 "\2"', text, flags=re.M)
    return re.sub(r'#line \d+ "<[^"]*"\n', "", text)


def _lint_metal(text: str) -> None:
    body = re.sub(r'^#.*$|"(?:[^"\\]|\\.)*"', "", text, flags=re.M)
    foreign = sorted(set(re.findall(r"\b[A-Za-z_]\w*\b", body)) & _NOT_IN_METAL)
    if foreign:
        raise ShimError("lint", f"not in Metal: {foreign}")
    known = _METAL_TYPES | set(re.findall(r"\btypedef\s+[^;]*?(\w+)\s*;", body))
    known |= set(re.findall(r"\b(?:typename|class)\s+(\w+)", body))
    names = "|".join(sorted(known))
    for found in re.finditer(rf"\b({names})\b\s*(?:const\s*)?[*&](?![&=])", body):
        lead = re.split(r"[;{}(),<>]", body[: found.start()])[-1]
        if not _SPACES & set(lead.split()):
            where = (lead + body[found.start() : found.end() + 20]).strip()
            raise ShimError("lint", f"pointer or reference without address space: {where!r}")


def _floats(text: str) -> str:
    """Unsuffixed floating literals are float in Metal."""
    number = r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+"
    return re.sub(rf"(?<![\w.])({number})(?![\w.])", r"\1f", text)


def _marked(text: str, word: str) -> str:
    """Shared variables become static and are announced; `word` in pointer types stays."""
    out, done = [], 0
    for found in re.finditer(rf"\b{word}\b", text):
        if found.start() < done:
            continue
        end = _declaration_end(text, found.end())
        if end is None:
            continue
        declared, start = text[found.end() : end], found.start()
        before = re.search(r"\balignas\s*\([^)]*\)\s*$", text[:start])
        if before is not None:
            start = before.start()
        elif re.match(r"\s*alignas", declared):
            raise ShimError("lint", f"alignas must stand before {word}: {word}{declared}")
        if "=" in re.sub(r"\[[^\]]*\]", "", declared):
            raise ShimError("lint", f"{word} variables take no initialiser: {word}{declared}")
        out.append(text[done:start] + text[start : found.start()])
        static = "static threadgroup" if word == "threadgroup" else "static"
        notes = "".join(f" SHIM_NOTE({name})" for name in _names(declared))
        out.append(f"{static} {declared};{notes}")
        done = end + 1
    return "".join(out) + text[done:]


def _declaration_end(text: str, at: int) -> int | None:
    """The ';' of a declaration that starts at `at`; None if this is a pointer type."""
    depth = 0
    for i in range(at, len(text)):
        c = text[i]
        if c in "([":
            depth += 1
        elif c in ")]":
            if depth == 0:
                return None
            depth -= 1
        elif depth == 0 and c in "*&":
            return None
        elif depth == 0 and c == ";":
            return i
    return None


def _names(declared: str) -> list[str]:
    flat = declared
    for nested in (r"\([^()]*\)", r"\([^()]*\)", r"<[^<>]*>"):
        flat = re.sub(nested, "", flat)
    flat = re.sub(r"\[[^\]]*\]", "[]", flat)
    found = [re.search(r"(\w+)\s*(?:\[\]\s*)*$", part) for part in flat.split(",")]
    return [f.group(1) for f in found if f is not None]
