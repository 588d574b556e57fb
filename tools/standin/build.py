"""Compile the stand-in for CUDA with gcc, against the headers in the wheels of a CUDA build of torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
# need no header of CUDA
PLAIN = ("books.c", "memory.c", "graphs.c", "logs.c", "delivery.c", "reduction.c", "collectives.c")
# neither do these; a process has them once, so they are not in NVML's library
ONCE = ("attention.c", "mark.c")
CUDA = ("devices.c", "streams.c", "kernels.c", "products.c", "driver.c", "mapping.c", *ONCE)
FLAGS = ("-O2", "-fPIC", "-shared", "-fno-strict-aliasing", "-D_GNU_SOURCE")
# what torch needs of CUDA and has no meaning here: a function that returns 0 and is counted
UNSUPPORTED = "int {0}(void) {{ return 3; }}\n"  # NVML_ERROR_NOT_SUPPORTED
STUB = 'long {0}(void) {{ standin_count("stub", "{0}", 0, 0); return 0; }}\n'
FIND_TORCH = """
import importlib.util, json, pathlib, re
spec = importlib.util.find_spec("torch")
folder = spec and pathlib.Path(spec.origin).parent
text = (folder / "version.py").read_text() if folder else ""
cuda = re.search(r"^cuda\\b.*= '([^']+)'", text, re.M)
print(json.dumps({"torch": str(folder or ""), "cuda": cuda and cuda[1]}))
"""


class BuildError(Exception):
    """The stand-in cannot be compiled here; the message says what to do."""


class Standin(NamedTuple):
    """folder: holds the libraries, and bin/nvidia-smi."""

    folder: Path

    def environment(self, chip: str = "H100-80", devices: int = 8) -> dict[str, str]:
        """The variables with which a program runs on pretended devices."""
        return {
            "LD_PRELOAD": str(self.folder / "libstandin.so"),
            "LD_LIBRARY_PATH": str(self.folder),
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
            "TRITON_LIBCUDA_PATH": str(self.folder),
            "LEVELFIELD_STANDIN_CHIP": chip,
            "LEVELFIELD_STANDIN_DEVICES": str(devices),
            "LEVELFIELD_PRETENDED_DEVICES": f"{devices} x {chip}",
        }


def build(python: Path, cache: Path | None = None) -> Standin:
    """The stand-in for the torch of `python`, compiled if it is not in the cache. Raises BuildError."""
    check_compiler()
    torch = cuda_torch(python)
    folder = cache_folder(cache) / f"standin-{digest(' '.join(map(str, (torch, *engine(torch)))))}"
    if not (folder / "complete").exists():
        make(folder, lambda work: compile_all(work, torch))
    return Standin(folder)


def build_delivery(cache: Path | None = None) -> Path:
    """The library with what needs gcc and no header of CUDA. Raises BuildError."""
    check_compiler()
    folder = cache_folder(cache) / f"standin-{digest('delivery')}"
    if not (folder / "complete").exists():
        make(folder, lambda work: gcc("-o", work / "libdelivery.so", *sources((*PLAIN, *ONCE)), "-ldl", "-lpthread"))
    return folder / "libdelivery.so"


def cache_folder(cache: Path | None) -> Path:
    return cache or Path(os.environ.get("LEVELFIELD_STANDIN_CACHE") or CHECKOUT / ".venvs")


def check_compiler() -> None:
    missing = [tool for tool in ("gcc", "nm") if not shutil.which(tool)]
    if missing:
        raise BuildError(
            f"found no {' and no '.join(missing)}; the stand-in for CUDA is compiled: install gcc (binutils)"
        )


def cuda_torch(python: Path) -> Path:
    """The folder of the torch package of `python`, which must be a CUDA build."""
    if not Path(python).exists():
        raise BuildError(f"{python}: found no such Python; give --python one with a CUDA build of torch")
    answer = subprocess.run([str(python), "-c", FIND_TORCH], capture_output=True, text=True)
    if answer.returncode:
        raise BuildError(f"{python}: cannot look for torch: {answer.stderr.strip().splitlines()[-1:]}")
    found = json.loads(answer.stdout)
    if not found["torch"] or not found["cuda"]:
        what = "a torch without CUDA" if found["torch"] else "no torch"
        raise BuildError(f"{python}: found {what}; expected a CUDA build: install torch from the default index")
    return Path(found["torch"])


def digest(more: str) -> str:
    """Changes with the sources, this module, the compiler and `more`."""
    whole = hashlib.sha256(more.encode())
    for path in sorted((*HERE.glob("*.[ch]"), HERE / "build.py")):
        whole.update(path.read_bytes())
    whole.update(subprocess.run(["gcc", "--version"], capture_output=True).stdout)
    return whole.hexdigest()[:12]


def make(folder: Path, compile_into) -> None:
    """Fill a folder beside the final one and rename it, so that a half one is never used."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        compile_into(work)
        (work / "complete").touch()
        work.chmod(0o755)
        work.rename(folder)
    except OSError:
        if not (folder / "complete").exists():
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def compile_all(work: Path, torch: Path) -> None:
    main, include = work / "libstandin.so", headers(torch)
    stubs = work / "stubs.c"
    written = sources((*PLAIN, *CUDA))
    gcc("-o", main, *written, *include, "-ldl", "-lpthread")
    absent = sorted((wanted(torch) | triton_wants(torch)) - defined(main))
    stubs.write_text('#include "standin.h"\n' + "".join(STUB.format(name) for name in absent))
    gcc("-o", main, *written, stubs, *include, f"-I{HERE}", "-ldl", "-lpthread")
    beside = ("-L", work, "-Wl,--no-as-needed", "-l:libstandin.so", "-Wl,-rpath,$ORIGIN")
    empty = work / "empty.c"
    empty.write_text("int standin_driver_is_here;\n")
    gcc("-o", work / "libcuda.so.1", empty, "-Wl,-soname,libcuda.so.1", *beside)
    (work / "libcuda.so").symlink_to("libcuda.so.1")
    plain = sources(PLAIN)
    monitor, unsupported = [HERE / "nvml.c", *plain, "-Wl,-soname,libnvidia-ml.so.1"], work / "unsupported.c"
    gcc("-o", work / "libnvidia-ml.so.1", *monitor, "-ldl", "-lpthread")
    absent = sorted(monitor_wanted(torch) - defined(work / "libnvidia-ml.so.1"))
    unsupported.write_text("".join(UNSUPPORTED.format(name) for name in absent))
    gcc("-o", work / "libnvidia-ml.so.1", *monitor, unsupported, "-ldl", "-lpthread")
    (work / "bin").mkdir()
    gcc("-no-pie", "-o", work / "bin" / "nvidia-smi", HERE / "smi.c", *plain, "-ldl", "-lpthread", shared=False)


def headers(torch: Path) -> list[str]:
    """Options that name CUDA's headers: in NVIDIA's wheels, and what these lack (crt/) in Triton's."""
    found = sorted(torch.parent.glob("nvidia/*/include/driver_types.h"))
    if not found:
        raise BuildError(f"{torch.parent}/nvidia: found no driver_types.h; expected the wheel of CUDA's runtime")
    return [f"-I{found[0].parent}", f"-I{torch.parent / 'triton' / 'backends' / 'nvidia' / 'include'}"]


def sources(names) -> list[Path]:
    return [HERE / name for name in names]


def gcc(*arguments, shared: bool = True) -> None:
    flags = FLAGS if shared else ("-O2", "-D_GNU_SOURCE")
    answer = subprocess.run(
        ["gcc", *flags, *map(str, arguments)], capture_output=True, text=True, env=plain_environment()
    )
    if answer.returncode:
        raise BuildError(f"gcc failed: {answer.stderr.strip()[:2000]}")


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def wanted(torch: Path) -> set[str]:
    """CUDA's functions that torch's own libraries need, and transformer-engine's where it is installed."""
    libraries = [*sorted(torch.glob("lib/lib*.so")), *engine(torch)]
    return {name for name in symbols("--undefined-only", libraries) if is_cuda(name)}


def engine(torch: Path) -> list[Path]:
    """Transformer-engine's library beside torch, if it is there."""
    return sorted(torch.parent.glob("transformer_engine/wheel_lib/libtransformer_engine.so"))


def monitor_wanted(torch: Path) -> set[str]:
    """NVML's functions that torch's allocator looks up, whether it calls them or not."""
    header = torch / "include" / "c10" / "cuda" / "driver_api.h"
    return set(re.findall(r"\b(nvml[A-Z]\w*)", header.read_text())) if header.exists() else set()


def triton_wants(torch: Path) -> set[str]:
    """The driver's functions that Triton's own module calls, which it compiles where it runs."""
    source = torch.parent / "triton" / "backends" / "nvidia" / "driver.c"
    text = source.read_text() if source.exists() else ""
    return set(re.findall(r"\b(cu[A-Z][a-zA-Z]+(?:_v\d+)?)\s*\(", text)) | set(
        re.findall(r"CUDA_CHECK\w*\(\s*(cu[A-Z]\w+)", text)
    )


def is_cuda(name: str) -> bool:
    plain = name.startswith(("cuda", "__cuda", "cublas", "nccl"))
    driver = name.startswith("cu") and name[2:3].isupper() and not name.startswith("cuFile")
    return (plain or driver) and name.isidentifier()


def defined(library: Path) -> set[str]:
    return symbols("--defined-only", [library])


def symbols(which: str, libraries: list[Path]) -> set[str]:
    answer = subprocess.run(["nm", "-D", which, *map(str, libraries)], capture_output=True, text=True)
    lines = [line.split() for line in answer.stdout.splitlines() if line.strip()]
    return {parts[-1].partition("@")[0] for parts in lines if len(parts) >= 2}


def main() -> int:
    """Compile for the Python that the first argument names, and print the folder."""
    try:
        print(build(Path(sys.argv[1])).folder)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
