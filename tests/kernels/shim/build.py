"""Compile a kernel's C++ with clang (or zig) into a library, or into a program under a sanitizer.

Compiler: $SHIM_CXX, else the newest clang++ (16 or later) on the path, else `python -m ziglang c++`
(no AddressSanitizer, casts between address spaces unseen). Results are kept in $SHIM_CACHE.
"""

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kernels.shim.signature import Buffer, ShimError, Signature
from kernels.shim.text import cuda_to_cpp, metal_to_cpp

HERE = Path(__file__).parent
MAX_SHARED_BYTES = {"metal": 32768, "cuda": 49152}

_NOTE = """#if SHIM_SPACES
#define SHIM_NOTE(n)
#else
#define SHIM_NOTE(n) shim::tg_mem((void*)&n, sizeof(n));
#endif
"""
_GLUE = r"""
static int go_(void** b_, const int64_t* l_, double timeout, char* err, int64_t* bytes) {
  shim::Launch L{{l_[0], l_[1], l_[2]}, {l_[3], l_[4], l_[5]}, timeout, MAX_BYTES};
  auto r = shim::launch(L, [&](const shim::Pos& p_) { (void)p_; CALL; });
  *bytes = r.tg_bytes;
  snprintf(err, 1000, "%s", r.err.c_str());
  return r.err.empty() ? 0 : 1;
}
extern "C" int shim_run(void** b, const int64_t* l, double t, char* err, int64_t* bytes) {
  return go_(b, l, t, err, bytes);
}
int main(int c, char** v) {  // folder timeout gx gy gz tx ty tz (mode bytes)*, mode r or w
  int64_t l[6], bytes = 0;
  char err[1024];
  for (int i = 0; i < 6; ++i) l[i] = atoll(v[3 + i]);
  std::vector<void*> b;
  const int n = (c - 9) / 2;
  auto file = [&](int i, const char* mode, size_t k) {
    FILE* f = fopen((std::string(v[1]) + "/" + std::to_string(i)).c_str(), mode);
    if (*mode == 'w') fwrite(b[i], 1, k, f);
    else if (fread(b[i], 1, k, f) != k) abort();
    fclose(f);
  };
  for (int i = 0; i < n; ++i) {
    const size_t k = (size_t)atoll(v[10 + 2 * i]);
    b.push_back(malloc(k));
    file(i, "rb", k);
  }
  if (go_(b.data(), l, atof(v[2]), err, &bytes)) { fprintf(stderr, "SHIM: %s\n", err); return 3; }
  for (int i = 0; i < n; ++i) {
    if (v[9 + 2 * i][0] == 'w') file(i, "wb", (size_t)atoll(v[10 + 2 * i]));
  }
  printf("%lld\n", (long long)bytes);
}
"""
_SANITIZERS = {
    None: ["-shared"],
    "thread": ["-fsanitize=thread"],
    "address": [
        "-fsanitize=address,array-bounds,shift,alignment",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ],
}


@dataclass(frozen=True, slots=True)
class Options:
    """How a kernel text is checked."""

    sanitize: str | None = None  # thread, address
    spaces: bool = True  # Metal: compile once more with real address spaces
    timeout_s: float = 60.0


@functools.cache
def compiler() -> list[str] | None:
    """The command of a C++ compiler that can build the shim; None if there is none."""
    if os.environ.get("SHIM_CXX"):
        return shlex.split(os.environ["SHIM_CXX"])
    for name in ("clang++", *(f"clang++-{v}" for v in range(25, 15, -1))):
        path = shutil.which(name)
        if path and _clang_version(path) >= 16:
            return [path]
    zig = [sys.executable, "-m", "ziglang", "c++"]
    found = subprocess.run([*zig, "--version"], capture_output=True).returncode == 0
    return zig if found else None


def is_zig() -> bool:
    return "ziglang" in (compiler() or [])


def build(kernel: Signature, dialect: str, options: Options) -> Path:
    """The compiled kernel, from the cache if this very text was compiled before."""
    glue = _GLUE.replace("MAX_BYTES", str(MAX_SHARED_BYTES[dialect]))
    glue = glue.replace("CALL", _call(kernel, dialect))
    flags = [
        *("-std=c++20", "-O1", "-g1", "-fPIC", "-pthread", "-w", "-I", str(HERE)),
        *("-Xclang", "-ffloat16-excess-precision=none", "-fno-strict-aliasing"),
        *("-Xclang", "-fbfloat16-excess-precision=none", *_SANITIZERS[options.sanitize]),
    ]
    headers = "".join(path.read_text() for path in sorted(HERE.glob("*.h")))
    command = _required_compiler()
    key = "\0".join([headers, kernel.text, glue, *flags, *command, str(options.spaces)])
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    built = _cache_folder() / f"{digest}{'.so' if options.sanitize is None else '.exe'}"
    if not built.exists():
        with tempfile.TemporaryDirectory() as work:
            _compile(kernel, dialect, options, glue, flags, Path(work), built)
    return built


def _compile(
    kernel: Signature,
    dialect: str,
    options: Options,
    glue: str,
    flags: list[str],
    work: Path,
    built: Path,
) -> None:
    if options.sanitize == "address" and is_zig():
        raise ShimError("sanitizer", "zig has no AddressSanitizer; set SHIM_CXX to a clang++")
    source = _source(kernel, dialect, work)
    (work / "kernel.cpp").write_text(source + '#line 1 "glue"\n' + glue)
    if dialect == "metal" and options.spaces:
        _check_spaces(source, work)
    output = work / "out"
    command = [*_required_compiler(), *flags, "-o", str(output), str(work / "kernel.cpp")]
    _checked(command, "compile")
    private = built.with_suffix(f".{os.getpid()}")
    shutil.copy(output, private)
    private.replace(built)


def _source(kernel: Signature, dialect: str, work: Path) -> str:
    raw = re.sub(r"^\s*#\s*include.*$", "", kernel.text, flags=re.M)
    (work / "text.cpp").write_text(raw)
    expand = [
        *_required_compiler(),
        "-E",
        "-undef",
        "-DTQ_EMULATED=1",
        "-std=c++20",
        str(work / "text.cpp"),
    ]
    expanded = _checked(expand, "compile")
    if dialect == "metal":
        return f'#include "metal.h"\n{_NOTE}namespace metal {{\n{metal_to_cpp(expanded)}\n}}\n'
    return f'#include "cuda.h"\n{_NOTE}{cuda_to_cpp(expanded)}\n'


def _check_spaces(source: str, work: Path) -> None:
    """Real address spaces, instantiated; then casts from one to another, which clang lets pass."""
    file = work / "spaces.cpp"
    file.write_text(source)
    command = [*_required_compiler(), "-std=c++20", "-w", "-I", str(HERE), "-DSHIM_SPACES=1"]
    if is_zig():
        _checked(
            [*command, str(file), "-S", "-emit-llvm", "-o", str(work / "x.ll")], "address space"
        )
        return
    dump = ["-fsyntax-only", "-Xclang", "-ast-dump", "-Xclang", "-ast-dump-filter=metal::"]
    tree = _checked([*command, str(file), *dump], "address space")
    casts = [line for line in tree.splitlines() if "AddressSpaceConversion" in line]
    if casts:
        raise ShimError("address space", f"cast between address spaces: {casts[0].strip()}")


def _call(kernel: Signature, dialect: str) -> str:
    arguments = [_argument(i, buffer) for i, buffer in enumerate(kernel.buffers)]
    space = "metal::" if dialect == "metal" else ""
    joined = ", ".join([*arguments, *kernel.arguments])
    return f"{space}{kernel.function}{kernel.call}({joined})"


def _argument(i: int, buffer: Buffer) -> str:
    plain = buffer.ctype.rstrip("*&")
    return f"{'*' if buffer.ctype.endswith('&') else ''}({plain}*)b_[{i}]"


def _required_compiler() -> list[str]:
    command = compiler()
    if command is None:
        raise ShimError("compile", "no clang++ 16 or later and no ziglang; see docs/turboquant.md")
    return command


def _clang_version(path: str) -> int:
    text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"clang version (\d+)", text)
    return int(found.group(1)) if found else 0


def _checked(command: list[str], kind: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ShimError(kind, done.stderr[:6000])
    return done.stdout


def _cache_folder() -> Path:
    folder = os.environ.get("SHIM_CACHE") or f"{tempfile.gettempdir()}/swiftlm_shim_{os.getuid()}"
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)
