"""The compiled twins under the address and undefined-behaviour sanitizers.

All of them are built a second time into build/ and fed by ``tests.support.fuzz_twins``, in a
process of its own whose memory is malloc's: a byte read or written outside a buffer ends it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.formats import native

ROOT = Path(__file__).resolve().parents[2]
SPEEDUPS = Path("tidemark/formats/speedups")
FLAGS = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined"

# One after the other, in one worker: they share a build.
pytestmark = [pytest.mark.xdist_group("address-sanitizer"), pytest.mark.timeout(900)]


def build(directory: Path, into: Path) -> Path:
    """Build the compiled twins of the tree at directory; return where they are."""
    subprocess.run(
        [
            *(sys.executable, "setup.py", "--quiet", "build_ext", "--parallel", "2"),
            *("--build-lib", str(into / "lib"), "--build-temp", str(into / "temp")),
        ],
        cwd=directory,
        env={**os.environ, "TIDEMARK_CFLAGS": FLAGS, "CC": "gcc"},
        check=True,
        capture_output=True,
    )
    return into / "lib" / SPEEDUPS


def fuzz(
    speedups: Path, *arguments: str, program: str = "tests.support.fuzz_twins"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", program, "--speedups", str(speedups), *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "LD_PRELOAD": str(library()),
            "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )


def library() -> Path | None:
    """gcc's own address sanitizer, which has to be there before Python is."""
    if shutil.which("gcc") is None:
        return None
    asked = ["gcc", "-print-file-name=libasan.so"]
    found = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    return found if found.is_absolute() else None  # the bare name: gcc knows none


@pytest.fixture(scope="module")
def sanitized() -> Path:
    """Where the twins built under the sanitizers are."""
    if library() is None:
        reason = "gcc and its libasan are missing: apt-get install gcc libc6-dev"
        if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    found = build(ROOT, ROOT / "build" / "asan")
    built = {path.name.split(".")[0] for path in found.glob("*.so")}
    assert built >= set(native.MODULES), "one did not build"
    return found


def test_hostile_input_touches_no_byte_outside_and_has_the_originals_results(
    sanitized: Path,
) -> None:
    done = fuzz(sanitized, "--seed", os.environ.get("TIDEMARK_FUZZ_SEED", "1"), "--rounds", "6")
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    assert "AddressSanitizer" not in done.stderr


def test_bytes_that_change_meanwhile_lead_nowhere_else(sanitized: Path) -> None:
    done = fuzz(sanitized, "--seconds", "0.5", program="tests.support.fuzz_changing")
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]


def test_the_page_behind_changing_bytes_cannot_be_read() -> None:
    look = (
        "import ctypes, random; from tests.support.fuzz_changing import changing\n"
        "with changing(random.Random(1), bytes(100)) as view:\n"
        "    end = ctypes.addressof(ctypes.c_char.from_buffer(view, 99)) + 1\n"
        "    assert ctypes.string_at(end - 1, 1) is not None\n"
        "    print('inside', flush=True)\n"
        "    ctypes.string_at(end, 1)\n"
        "    print('behind', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "inside\n"), done.stderr


def test_a_planted_read_behind_the_end_is_detected(sanitized: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "setup.py", tmp_path)
    (tmp_path / SPEEDUPS).mkdir(parents=True)
    for source in (ROOT / SPEEDUPS).iterdir():
        if source.suffix == ".h" or source.name == "encode.pyx":
            shutil.copy(source, tmp_path / SPEEDUPS)
    # It changes no result: only the sanitizer can detect it. A zero byte follows the buffer.
    header = tmp_path / SPEEDUPS / "entry.h"
    check = "if (room < TIDEMARK_ENTRY_OVERHEAD) return 0;"
    planted = "(void)*(volatile const uint8_t *)(at + room + 1);"
    text = header.read_text()
    assert check in text
    header.write_text(text.replace(check, planted + check))
    (made,) = build(tmp_path, tmp_path / "build").glob("encode*.so")
    others = tmp_path / "others"
    shutil.copytree(sanitized, others)
    shutil.copy(made, others)
    done = fuzz(others, "--only", "runs_size")
    assert done.returncode != 0, done.stdout
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
    assert "entry.h" in done.stderr
