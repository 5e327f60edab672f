"""A root file system for tests, as a tar stream on stdout: this interpreter, a shell and tools."""

import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

TOOLS = """
bash sh cat chmod chown cp date dd dirname echo env false find grep gzip head id kill ln ls mkdir
cut mkfifo mktemp mv od ps pwd readlink realpath rm rmdir sed seq sleep sort stat tail tar tee test
timeout touch tr true truncate uname wc which whoami xargs yes
"""
FOR_WHEELS = (
    "libdl.so.2 libgcc_s.so.1 libm.so.6 libpthread.so.0 librt.so.1 libstdc++.so.6 libutil.so.1"
)
SKIPPED = {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"}
ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/workspace:/bin/bash\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n",
}
DIRECTORIES = {"tmp": 0o1777, "root": 0o700, "workspace": 0o777, "usr/local/bin": 0o755}


def write(stream: io.RawIOBase) -> None:
    """Write the tar; every file is under its own path, links are followed."""
    prefix = Path(os.path.realpath(sys.base_prefix))
    files = {Path(tool) for tool in tools()} | set(interpreter(prefix))
    binaries = [file for file in files if is_elf(file)]
    files |= {path for name in FOR_WHEELS.split() for path in Path("/usr/lib").glob(f"*/{name}")}
    files |= set(libraries(binaries))
    with tarfile.open(fileobj=stream, mode="w|") as tar:
        for name, mode in DIRECTORIES.items():
            add_directory(tar, name, mode)
        for link in ("bin", "sbin", "lib", "lib64"):
            if Path("/", link).is_symlink():
                add_directory(tar, f"usr/{link}", 0o755)
                add_link(tar, link, f"usr/{link}")
        for name, text in ETC.items():
            add_text(tar, f"etc/{name}", text)
        python = prefix / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        for name in ("python3", "python"):
            add_link(tar, f"usr/local/bin/{name}", str(python))
        for file in sorted({in_usr(file) for file in files}):
            tar.add(file, str(file).lstrip("/"), recursive=False)


def tools() -> Iterator[str]:
    """Paths of the tools that are here."""
    for name in TOOLS.split():
        found = next((p for p in ("/usr/bin", "/bin") if Path(p, name).exists()), None)
        if found:
            yield f"{found}/{name}"


def interpreter(prefix: Path) -> Iterator[Path]:
    """The interpreter, its standard library and pip, with their byte code."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    yield prefix / "bin" / version
    yield from (prefix / "lib").glob("libpython*")
    for folder, folders, names in os.walk(prefix / "lib" / version):
        folders[:] = [name for name in folders if name not in SKIPPED]
        if Path(folder).name in ("site-packages", "dist-packages"):
            folders[:], names = [name for name in folders if name == "pip"], []
        if "config-" in folder:
            continue
        yield from (Path(folder, name) for name in names if not name.endswith(".a"))


def is_elf(file: Path) -> bool:
    """True for a program or a library."""
    with file.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def libraries(binaries: list[Path]) -> Iterator[Path]:
    """What the dynamic loader needs for them."""
    done = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if found := re.match(r"\s+(?:\S+ => )?(/\S+) \(", line):
            yield Path(found[1])


def in_usr(file: Path) -> Path:
    """The path below /usr where the root's folders are links into it."""
    top = Path("/", file.parts[1])
    return Path("/usr", *file.parts[1:]) if top.is_symlink() else file


def add_directory(tar: tarfile.TarFile, name: str, mode: int) -> None:
    """An empty directory."""
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    tar.addfile(info)


def add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    """A symbolic link."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    tar.addfile(info)


def add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    """A small file."""
    info = tarfile.TarInfo(name)
    info.size = len(text)
    tar.addfile(info, io.BytesIO(text.encode()))


if __name__ == "__main__":
    tarfile.TarFile.dereference = True
    write(sys.stdout.buffer)
