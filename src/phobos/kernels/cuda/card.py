"""A graphics card, through NVIDIA's driver: memory, code, recorded passes. Owned by the backend, used by one thread.

`Card` is what the backend needs of a card; `NvidiaCard` is one. Errors of the driver are `CardError`, a sentence that
says what to do. Everything runs in one stream, in order.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from phobos.errors import PhobosError
from phobos.kernels.cuda.compiler import CompiledKernel
from phobos.kernels.cuda.ptx import CompileTarget, entry_name

Bytes = npt.NDArray[np.uint8]
LEAST_CAPABILITY: CompileTarget = (8, 0)  # the oldest that kernels are checked for
INSTALL = "pip install 'phobos[cuda]'"


class CardError(PhobosError):
    """The driver or the card refused something."""


@dataclass(frozen=True)
class GridLaunch:
    """One kernel of a pass over a grid of blocks of threads; arguments in the order of its parameters."""

    kernel: str
    arguments: tuple[int | float, ...]
    grid: tuple[int, int, int]
    n_threads: int


class Card(Protocol):
    """What a backend needs. Addresses are integers. Everything is done in the order it was asked for; what is uploaded
    must live until `synchronize` or `download` has returned."""

    name: str
    target: CompileTarget
    bandwidth_gbs: float | None  # of its memory, as its clock and width say
    bus_id: str | None  # as the system counts it

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes."""

    def allocate(self, n_bytes: int) -> int:
        """Fresh memory, zeroed, at a multiple of 256; `MemoryError` where there is none."""

    def host_memory(self, n_bytes: int) -> Bytes:
        """Memory of this machine that copies to and from the card are fastest with."""

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        """Bytes of a contiguous array to the card."""

    def download(self, address: int, data: npt.NDArray[Any]) -> None:
        """Bytes of the card into a contiguous array, once all before is done."""

    def copy(self, target: int, source: int, n_bytes: int) -> None:
        """Bytes from one place of the card to another."""

    def load(self, kernels: Mapping[str, CompiledKernel]) -> None:
        """Make kernels ready to launch."""

    def record(self, launches: Sequence[GridLaunch]) -> Any:
        """A pass, to be replayed as often as wanted."""

    def replay(self, recording: Any) -> None:
        """Start a recorded pass."""

    def synchronize(self) -> None:
        """Wait until all is done."""

    def close(self) -> None:
        """Give everything back; twice is fine."""


def missing_part() -> str | None:
    """Why no card can be used here, as the end of a sentence; None where one can."""
    if not is_installed():
        return f"the CUDA part of Phobos is not installed: {INSTALL}"
    try:
        n_cards = len(list_cards())
    except Exception:
        return "no NVIDIA driver was found: install it, then try again"
    return None if n_cards else "the NVIDIA driver knows no card"


def is_installed() -> bool:
    """Whether the packages of the CUDA part are there, found without importing them."""
    return importlib.util.find_spec("numba_cuda") is not None and importlib.util.find_spec("cuda") is not None


def has_driver() -> bool:
    """Whether an NVIDIA driver seems to be there, found without loading it."""
    places = ("/proc/driver/nvidia/version", "/usr/lib/wsl/lib/libcuda.so.1", "C:/Windows/System32/nvcuda.dll")
    return any(Path(place).exists() for place in places)


def _driver() -> Any:
    from cuda.bindings import driver

    return driver


def _check(result: tuple[Any, ...], what: str) -> Any:
    """The value of a driver call; `CardError` (or `MemoryError`) where it failed."""
    code, *values = result
    if int(code) != 0:
        if code == _driver().CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError(f"the card has no memory left for {what}")
        raise CardError(f"the graphics card failed ({code.name}, {what}): try again, or use --device cpu")
    return values[0] if len(values) == 1 else tuple(values)


def list_cards() -> list[str]:
    """Names of the cards, by number."""
    driver = _driver()
    _check(driver.cuInit(0), "starting the driver")
    handles = [_check(driver.cuDeviceGet(i), "a card") for i in range(_check(driver.cuDeviceGetCount(), "counting"))]
    return [_check(driver.cuDeviceGetName(256, h), "a name").split(b"\0")[0].decode() for h in handles]


class NvidiaCard:
    """See `Card`. `index` is the driver's number of the card."""

    def __init__(self, index: int) -> None:
        self._driver = driver = _driver()
        _check(driver.cuInit(0), "starting the driver")
        self._device = _check(driver.cuDeviceGet(index), "the card")
        self.name = _check(driver.cuDeviceGetName(256, self._device), "its name").split(b"\0")[0].decode()
        bus_id = _check(driver.cuDeviceGetPCIBusId(32, self._device), "its place")
        self.bus_id: str | None = bus_id.split(b"\0")[0].decode()
        attribute = driver.CUdevice_attribute
        self.target = (
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self.n_processors = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        clock_khz = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)
        width_bits = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)
        self.bandwidth_gbs: float | None = 2e3 * clock_khz * width_bits / 8 / 1e9 or None  # twice a clock
        if self.target < LEAST_CAPABILITY:
            raise CardError(
                f"{self.name} has compute capability {self.target[0]}.{self.target[1]} and Phobos needs "
                f"{LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]}: use --device cpu"
            )
        self._context = _check(driver.cuDevicePrimaryCtxRetain(self._device), "a context")
        self._thread_context()
        self._stream = _check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING), "a stream")
        self._allocations: list[Any] = []
        self._host: list[Any] = []
        self._modules: list[Any] = []
        self._functions: dict[str, Any] = {}
        self._graphs: list[Any] = []
        self._is_open = True

    def _attribute(self, which: Any) -> int:
        return int(_check(self._driver.cuDeviceGetAttribute(which, self._device), "an attribute"))

    def _thread_context(self) -> None:
        """The loader's thread makes the card, the engine's uses it: each call is for the thread it is made in."""
        _check(self._driver.cuCtxSetCurrent(self._context), "its context")

    def memory_info(self) -> tuple[int, int]:
        """See `Card.memory_info`."""
        self._thread_context()
        free, total = _check(self._driver.cuMemGetInfo(), "its memory")
        return int(free), int(total)

    def allocate(self, n_bytes: int) -> int:
        """See `Card.allocate`."""
        self._thread_context()
        pointer = _check(self._driver.cuMemAlloc(max(n_bytes, 1)), f"{n_bytes} bytes")
        self._allocations.append(pointer)
        _check(self._driver.cuMemsetD8Async(pointer, 0, max(n_bytes, 1), self._stream), "clearing memory")
        return int(pointer)

    def host_memory(self, n_bytes: int) -> Bytes:
        """See `Card.host_memory`."""
        self._thread_context()
        address = int(_check(self._driver.cuMemAllocHost(n_bytes), f"{n_bytes} bytes of this machine"))
        self._host.append(address)
        return np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(address))

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        """See `Card.upload`."""
        self._thread_context()
        assert data.flags.c_contiguous
        _check(self._driver.cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, self._stream), "an upload")

    def download(self, address: int, data: npt.NDArray[Any]) -> None:
        """See `Card.download`."""
        self._thread_context()
        assert data.flags.c_contiguous
        _check(self._driver.cuMemcpyDtoHAsync(data.ctypes.data, address, data.nbytes, self._stream), "a download")
        self.synchronize()

    def copy(self, target: int, source: int, n_bytes: int) -> None:
        """See `Card.copy`."""
        self._thread_context()
        _check(self._driver.cuMemcpyDtoDAsync(target, source, n_bytes, self._stream), "a copy")

    def load(self, kernels: Mapping[str, CompiledKernel]) -> None:
        """See `Card.load`."""
        self._thread_context()
        for name, kernel in kernels.items():
            if name not in self._functions:
                module = _check(self._driver.cuModuleLoadData(kernel.code), f"loading {name}")
                self._modules.append(module)
                self._functions[name] = _check(
                    self._driver.cuModuleGetFunction(module, entry_name(name).encode()), f"finding {name}"
                )

    def record(self, launches: Sequence[GridLaunch]) -> Any:
        """See `Card.record`."""
        self._thread_context()
        driver = self._driver
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _check(driver.cuStreamBeginCapture(self._stream, mode), "recording")
        for launch in launches:
            values, kinds = zip(*map(_parameter, launch.arguments), strict=True)
            _check(
                driver.cuLaunchKernel(
                    self._functions[launch.kernel], *launch.grid, launch.n_threads, 1, 1, 0, self._stream,
                    (values, kinds), 0,
                ),
                launch.kernel,
            )  # fmt: skip
        graph = _check(driver.cuStreamEndCapture(self._stream), "recording")
        recording = _check(driver.cuGraphInstantiate(graph, 0), "recording")
        _check(driver.cuGraphDestroy(graph), "recording")
        self._graphs.append(recording)
        return recording

    def replay(self, recording: Any) -> None:
        """See `Card.replay`."""
        self._thread_context()
        _check(self._driver.cuGraphLaunch(recording, self._stream), "starting a pass")

    def synchronize(self) -> None:
        """See `Card.synchronize`."""
        self._thread_context()
        _check(self._driver.cuStreamSynchronize(self._stream), "computing")

    def close(self) -> None:
        """See `Card.close`."""
        if not self._is_open:
            return
        self._is_open = False
        self._thread_context()
        driver = self._driver
        driver.cuStreamSynchronize(self._stream)
        for release, handles in (
            (driver.cuGraphExecDestroy, self._graphs),
            (driver.cuModuleUnload, self._modules),
            (driver.cuMemFree, self._allocations),
            (driver.cuMemFreeHost, self._host),
        ):
            _release(release, handles)
        driver.cuStreamDestroy(self._stream)
        driver.cuDevicePrimaryCtxRelease(self._device)


def _release(release: Any, handles: Iterable[Any]) -> None:
    for handle in handles:
        release(handle)


def _parameter(value: int | float) -> tuple[int | float, Any]:
    """A launch's argument and its C type."""
    return value, ctypes.c_float if isinstance(value, float) else ctypes.c_int64
