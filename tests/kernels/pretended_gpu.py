"""A driver of a GPU that there is not: memory of the host, streams that do their work as late as they may.

Numba's own arrays, copies, streams and events run unchanged on it; only the functions of the driver are replaced, and
what loads and starts a kernel, which runs on the emulator. A stream is a queue that is worked off when somebody waits
for it, and knows nothing of the others, like those of torch: what is not ordered by an event, or not waited for, gives
wrong numbers. New memory and freed memory hold junk.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

CAPABILITY = (9, 0)
JUNK = 0xB7


class Driver:
    """The functions of the driver that numba calls."""

    def __init__(self, binding: Any, not_ready: Exception) -> None:
        self.binding, self.not_ready = binding, not_ready
        self.memory: dict[int, Any] = {}
        self.queues: dict[int, list[Callable[[], None]]] = defaultdict(list)
        self.events: dict[int, list[tuple[int, int]]] = {}
        self.done: dict[int, int] = defaultdict(int)
        self.put: dict[int, int] = defaultdict(int)
        self.attributes: list[tuple[int, int]] = []
        self.waits = 0

    def enqueue(self, stream: Any, work: Callable[[], None]) -> None:
        queue = int(stream)
        self.queues[queue].append(work)
        self.put[queue] += 1

    def wait(self, stream: int, until: int | None = None) -> None:
        """Let the host wait for a queue."""
        self.waits += self.done[stream] < (self.put[stream] if until is None else until)
        self.run(stream, until)

    def run(self, stream: int, until: int | None = None) -> None:
        """Work off a queue, up to an event."""
        until = self.put[stream] if until is None else until
        while self.done[stream] < until:
            work = self.queues[stream].pop(0)
            self.done[stream] += 1
            work()

    def synchronize(self) -> None:
        for stream in list(self.queues):
            self.wait(stream)

    def array(self, address: int, size: int) -> np.ndarray[Any, Any]:
        return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)

    def copy(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    # What numba asks for.
    def cuDeviceGetCount(self) -> int:
        return 1

    def cuCtxGetCurrent(self) -> int:
        return 1

    def cuCtxGetDevice(self) -> int:
        return 0

    def cuCtxPushCurrent(self, handle: Any) -> None:
        pass

    def cuCtxSynchronize(self) -> None:
        self.synchronize()

    def cuMemGetInfo(self) -> Any:
        return 1 << 30, 1 << 30

    def cuMemAlloc(self, size: int) -> Any:
        held = np.full(size + 256, JUNK, np.uint8)
        address = -(-held.ctypes.data // 256) * 256
        self.memory[address] = held
        return self.binding.CUdeviceptr(address)

    def cuMemFree(self, pointer: Any) -> None:
        self.synchronize()  # as the driver does
        self.memory.pop(int(pointer)).fill(JUNK)

    def cuMemHostAlloc(self, size: int, flags: int) -> int:
        held = np.zeros(size, np.uint8)
        self.memory[held.ctypes.data] = held
        return int(held.ctypes.data)

    def cuMemFreeHost(self, pointer: Any) -> None:
        self.synchronize()
        self.memory.pop(int(pointer))

    def cuMemcpyHtoD(self, target: int, source: int, size: int) -> None:
        self.wait(0)
        self.cuMemcpyHtoDAsync(target, source, size, 0)

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: Any) -> None:
        if source in self.memory:  # pinned: read when its turn comes
            self.enqueue(stream, lambda: self.copy(target, source, size))
            return
        staged = self.array(source, size).copy()
        self.enqueue(stream, lambda: self.copy(target, staged.ctypes.data, size))

    def cuMemcpyDtoH(self, target: int, source: int, size: int) -> None:
        self.wait(0)
        self.copy(target, source, size)

    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: Any) -> None:
        self.enqueue(stream, lambda: self.copy(target, source, size))

    def cuMemcpyDtoD(self, target: int, source: int, size: int) -> None:
        self.enqueue(0, lambda: self.copy(target, source, size))

    def cuMemcpyDtoDAsync(self, target: int, source: int, size: int, stream: Any) -> None:
        self.enqueue(stream, lambda: self.copy(target, source, size))

    def cuStreamSynchronize(self, stream: Any) -> None:
        self.wait(int(stream))

    def cuStreamWaitEvent(self, stream: Any, event: int, flags: int) -> None:
        recorded = self.events[event][-1]
        self.enqueue(stream, lambda: self.run(*recorded))

    def cuEventCreate(self, flags: int) -> int:
        handle = 1000 + len(self.events)
        self.events[handle] = []
        return handle

    def cuEventDestroy(self, event: int) -> None:
        pass

    def cuEventRecord(self, event: int, stream: Any) -> None:
        self.events[event].append((int(stream), self.put[int(stream)]))

    def cuEventQuery(self, event: int) -> None:
        stream, until = self.events[event][-1]
        if self.done[stream] < until:
            raise self.not_ready

    def cuEventSynchronize(self, event: int) -> None:
        self.wait(*self.events[event][-1])

    def cuEventElapsedTime(self, first: int, last: int) -> float:
        return 1.0

    def cuDeviceGetAttribute(self, attribute: Any, device: int) -> int:
        return 4

    def cuKernelSetAttribute(self, attribute: Any, value: int, handle: Any, device: int) -> None:
        self.attributes.append((handle, value))


def install() -> Driver:
    """Let numba believe that there is a GPU; before pagedref_cuda is imported. Returns the driver."""
    os.environ["PAGEDREF_CUDA"] = "gpu"
    from numba import cuda
    from numba.cuda.cudadrv import driver as numba_driver

    binding = numba_driver.binding
    code = binding.CUresult.CUDA_ERROR_NOT_READY
    fake = Driver(binding, numba_driver.CudaAPIError(code, "not ready"))
    real = numba_driver.driver
    real.is_initialized, real.initialization_error = True, None
    for name in dir(fake):
        if name.startswith("cu"):
            setattr(real, name, getattr(fake, name))

    class Device:
        id, compute_capability, name, context = 0, CAPABILITY, "pretended", None

        def get_primary_context(self) -> Any:
            if self.context is None:
                Device.context = numba_driver.Context(weakref.proxy(self), 1)
            return self.context

    numba_driver._ensure_memory_manager()
    numba_driver._logger = numba_driver.make_logger()
    real.devices[0] = Device()
    cuda.is_available = lambda: True  # type: ignore[assignment]

    from pagedref_cuda._runtime import emulation, gpu

    def load(cubin: bytes, name: str) -> Any:
        assert cubin[:4] == b"\x7fELF" and name.encode() in cubin
        return gpu.Loaded(SimpleNamespace(handle=name, device=SimpleNamespace(id=0), kernel=name))

    modules: dict[str, Any] = {}

    def compiled(*arguments: Any) -> Any:
        texts = real_compiled(*arguments)
        modules[gpu.entry_of(texts[0])] = emulation.Module(texts)
        return texts

    real_compiled = gpu.compiled
    gpu.compiled, gpu.load = compiled, load

    def start(loaded: Any, grid: Any, block: Any, shared_bytes: int, stream: Any, flat: list[Any]) -> None:
        assert all(type(size) is int for size in (*grid, *block, shared_bytes))  # others are refused by cuda.core
        if shared_bytes > loaded.shared_bytes:
            loaded.shared_bytes = shared_bytes
        values = [on_host(item) if hasattr(item, "__cuda_ndarray__") else item for item in flat]
        module = modules[loaded.function.kernel]

        def work() -> None:
            module.launch(None, grid, block, values, shared_bytes, strict=False, cooperative=True, batch_threads=16384)

        fake.enqueue(numba_driver._stream_handle(stream), work)

    def on_host(array: Any) -> Any:
        interface = array.__cuda_array_interface__
        interface = {**interface, "strides": interface["strides"], "data": (interface["data"][0] or 256, False)}
        interface.pop("stream")
        return np.asarray(SimpleNamespace(__array_interface__=interface))

    gpu.start = start
    return fake
