"""`NvidiaCard` on a made-up driver: what it asks for, in which order, and what it makes of refusals."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from phobos.kernels.cuda import card as cards
from phobos.kernels.cuda.card import CardError, GridLaunch, NvidiaCard
from phobos.kernels.cuda.compiler import CompiledKernel


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class Attributes(IntEnum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 1
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 2
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 3
    CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 4
    CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 5


class MadeUpDriver:
    """Answers like the driver's bindings: a code, then values. `calls` are names and arguments; `fails` maps a name to
    the code it is refused with. Memory is this machine's."""

    CUresult, CUdevice_attribute = Result, Attributes
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def __init__(self, capability: tuple[int, int] = (9, 0)) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.fails: dict[str, Result] = {}
        self.attributes = dict(zip(Attributes, (*capability, 132, 3_201_000, 6144), strict=True))
        self._blocks: dict[int, Any] = {}

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            code = self.fails.get(name, Result.CUDA_SUCCESS)
            return (code, *self._answer(name, arguments))

        return call

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        match name:
            case "cuDeviceGetAttribute":
                return (self.attributes[arguments[0]],)
            case "cuDeviceGetName":
                return (b"A Card\0\0\0",)
            case "cuDeviceGetPCIBusId":
                return (b"0000:41:00.0\0\0",)
            case "cuMemGetInfo":
                return (5 << 30, 8 << 30)
            case "cuMemAlloc" | "cuMemAllocHost":
                block = ctypes.create_string_buffer(arguments[0])
                self._blocks[ctypes.addressof(block)] = block
                return (ctypes.addressof(block),)
            case "cuMemcpyHtoDAsync" | "cuMemcpyDtoHAsync" | "cuMemcpyDtoDAsync":
                ctypes.memmove(*arguments[:3])
                return ()
            case "cuDeviceGetCount":
                return (1,)
            case _:
                return (f"<{name}>",) if name in RETURNING else ()


RETURNING = {
    "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuModuleLoadData", "cuModuleGetFunction",
    "cuStreamEndCapture", "cuGraphInstantiate",
}  # fmt: skip


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> MadeUpDriver:
    made = MadeUpDriver()
    monkeypatch.setattr(cards, "_driver", lambda: made)
    return made


def test_what_a_card_says(driver: MadeUpDriver) -> None:
    card = NvidiaCard(0)
    assert (card.name, card.target, card.n_processors, card.bus_id) == ("A Card", (9, 0), 132, "0000:41:00.0")
    assert card.bandwidth_gbs == pytest.approx(4916.7, abs=0.1)
    assert card.memory_info() == (5 << 30, 8 << 30)
    assert cards.list_cards() == ["A Card"]


def test_bytes_go_and_come_back(driver: MadeUpDriver) -> None:
    card = NvidiaCard(0)
    first, second = card.allocate(64), card.allocate(64)
    values, back = np.arange(16, dtype=np.float32), card.host_memory(64).view(np.float32)
    card.upload(first, values)
    card.copy(second, first, 64)
    card.download(second, back)
    assert np.array_equal(back, values)
    assert driver.names()[-1] == "cuStreamSynchronize", "what was downloaded is there"


def test_a_pass_is_recorded_once_and_replayed(driver: MadeUpDriver) -> None:
    card = NvidiaCard(0)
    card.load({"norm:quantize": CompiledKernel("norm:quantize", b"\x7fELF", "", "", 0.0)})
    launches = [GridLaunch("norm:quantize", (7, -1, 2.5), (3, 2, 1), 128)] * 2
    recording = card.record(launches)
    n_before = len(driver.calls)
    card.replay(recording)
    card.replay(recording)
    assert [name for name in driver.names()[n_before:] if name != "cuCtxSetCurrent"] == ["cuGraphLaunch"] * 2
    recorded = [name for name in driver.names() if name.startswith(("cuStreamBegin", "cuLaunch", "cuStreamEnd"))]
    assert recorded == ["cuStreamBeginCapture", "cuLaunchKernel", "cuLaunchKernel", "cuStreamEndCapture"]
    arguments = next(arguments for name, arguments in driver.calls if name == "cuLaunchKernel")
    assert arguments[:8] == ("<cuModuleGetFunction>", 3, 2, 1, 128, 1, 1, 0)
    assert arguments[9] == ((7, -1, 2.5), (ctypes.c_int64, ctypes.c_int64, ctypes.c_float))
    found = next(arguments for name, arguments in driver.calls if name == "cuModuleGetFunction")
    assert found[1] == b"norm_quantize", "the entry's name in the code"


def test_everything_is_given_back_once(driver: MadeUpDriver) -> None:
    card = NvidiaCard(0)
    places = [card.allocate(32), card.allocate(32)]
    card.host_memory(16)
    card.record([])
    n_before = len(driver.calls)
    card.close()
    card.close()
    released = driver.calls[n_before:]
    assert [arguments[0] for name, arguments in released if name == "cuMemFree"] == places
    for name in ("cuMemFreeHost", "cuGraphExecDestroy", "cuStreamDestroy", "cuDevicePrimaryCtxRelease"):
        assert [n for n, _ in released].count(name) == 1, name


def test_refusals(driver: MadeUpDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    card = NvidiaCard(0)
    driver.fails["cuMemAlloc"] = Result.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(MemoryError, match="the card has no memory left for 99 bytes"):
        card.allocate(99)
    driver.fails["cuStreamSynchronize"] = Result.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(
        CardError, match=r"failed \(CUDA_ERROR_ILLEGAL_ADDRESS, computing\): try again, or use --device"
    ):
        card.synchronize()
    old = MadeUpDriver((7, 5))
    monkeypatch.setattr(cards, "_driver", lambda: old)
    with pytest.raises(CardError, match=r"A Card has compute capability 7.5 and Phobos needs 8.0: use --device cpu"):
        NvidiaCard(0)
    assert "cuDevicePrimaryCtxRetain" not in old.names(), "nothing was taken that would have to be given back"


def test_the_bindings_take_what_is_asked(driver: MadeUpDriver) -> None:
    """As many arguments as the real functions have, and numbers where they want numbers."""
    bindings = pytest.importorskip("cuda.bindings.driver", reason="the cuda extra is not installed")
    card = NvidiaCard(0)
    place, values = card.allocate(64), np.zeros(16, np.float32)
    card.host_memory(64)
    card.upload(place, values)
    card.copy(place, place, 64)
    card.download(place, values)
    card.load({"norm:quantize": CompiledKernel("norm:quantize", b"\x7fELF", "", "", 0.0)})
    card.replay(card.record([GridLaunch("norm:quantize", (7, 2.5), (1, 1, 1), 128)]))
    card.memory_info()
    cards.list_cards()
    card.close()
    assert len(set(driver.names())) > 25
    for name, arguments in driver.calls:
        signature = getattr(bindings, name).__doc__.splitlines()[0]
        wanted = signature.partition("(")[2].rpartition(")")[0]
        kinds = wanted.split(", ") if wanted else []
        assert len(kinds) == len(arguments), (signature, arguments)
        for kind, argument in zip(kinds, arguments, strict=True):
            if kind.startswith(("int ", "unsigned ", "size_t ")):
                assert isinstance(argument, int), (signature, argument)
            elif kind.startswith("char *"):
                assert isinstance(argument, bytes), (signature, argument)
