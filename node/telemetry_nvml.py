"""Reads GPUs through NVML (nvidia-ml-py, module `pynvml`): the library of nvidia-smi. Called in a thread of its own.

CUDA sees the devices of CUDA_VISIBLE_DEVICES, in that order, each an index or the beginning of a UUID, up to the first
that is not valid; NVML sees all of the host, in the order of the bus, and so does `node.devices`, which counts with
nvidia-smi. Where cards of different kinds are mixed, indices in CUDA_VISIBLE_DEVICES mean the same to both with
CUDA_DEVICE_ORDER=PCI_BUS_ID only. Source: CUDA Programming Guide, "Environment Variables"; NVML API Reference.
"""

from __future__ import annotations

import importlib
import os
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mesh.messages import DeviceFacts
from node.config import NodeConfig
from node.telemetry import DriverFailed, NoDriver, Telemetry

_NUM_SAMPLES = 5  # NVML looks at a second or less; status shows the last few


def gpu_telemetry(config: NodeConfig) -> Telemetry | None:
    """Of the GPUs that this node may use; None where its options rule every GPU out."""
    if config.engine == "synthetic" or not (config.device == "auto" or "cuda" in config.device):
        return None
    is_shared = config.tensor_parallel > 1 or config.parallel == "auto"
    device = "auto" if config.device == "cuda" and is_shared else config.device  # as node.devices has it
    return Telemetry(NvmlReader(device, os.environ.get("CUDA_VISIBLE_DEVICES")))


def wanted_indices(device: str, num_visible: int) -> list[int]:
    """Which of the devices that CUDA sees `--device` means."""
    if device == "auto":
        return list(range(num_visible))
    named = [re.fullmatch(r"cuda(?::(\d+))?", word.strip()) for word in device.split(",")]
    return [int(match[1] or 0) for match in named if match is not None]


def visible_entries(variable: str | None, count: int) -> list[str]:
    """What CUDA_VISIBLE_DEVICES lists, or every index when it is not set."""
    if variable is None:
        return [str(index) for index in range(count)]
    entries: list[str] = []
    for entry in (word.strip() for word in variable.split(",")):
        if not (entry.isdecimal() and int(entry) < count) and not entry.startswith(("GPU-", "MIG-")):
            break
        entries.append(entry)
    return entries


@dataclass(slots=True)
class _Gpu:
    """`handle` is of the device or of a slice of it (MIG); None once it is lost."""

    name: str
    handle: Any
    card: Any  # the whole GPU: a slice has no temperature
    utilisation: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))


class NvmlReader:
    """The GPUs that `device` (the option of the node) and CUDA_VISIBLE_DEVICES mean. One that does not answer any more
    stays, as "… (lost)"; the others go on."""

    def __init__(self, device: str, visible: str | None, load: Callable[[], Any] | None = None) -> None:
        self._device = device
        self._visible = visible
        self._load = load or (lambda: importlib.import_module("pynvml"))
        self._gpus: dict[str, _Gpu] = {}
        self._nvml: Any = None
        self._is_open = False

    @property
    def is_whole(self) -> bool:
        return all(gpu.handle is not None for gpu in self._gpus.values())

    def open(self) -> None:
        nvml = self._nvml = self._nvml or self._library()
        try:
            if self._is_open:  # a handle is good for one session, and a GPU that has come back is found in a new one
                self._is_open = False
                nvml.nvmlShutdown()
            nvml.nvmlInit()
            self._is_open = True
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError_LibraryNotFound as error:
            raise NoDriver(str(error)) from None
        except nvml.NVMLError as error:
            raise DriverFailed(str(error)) from None
        for gpu in self._gpus.values():
            gpu.handle = None
        entries = visible_entries(self._visible, count)
        wanted = [entries[index] for index in wanted_indices(self._device, len(entries)) if index < len(entries)]
        for entry in wanted:
            self._find(entry)
        if not wanted and not self._gpus:
            raise NoDriver("no GPU is visible")
        if not self._gpus:
            raise DriverFailed(f"no GPU answers of {', '.join(wanted)}")

    def read(self) -> tuple[DeviceFacts, ...]:
        return tuple(self._read(gpu) for gpu in self._gpus.values())

    def _library(self) -> Any:
        try:
            return self._load()
        except ImportError as error:
            raise NoDriver(str(error)) from None

    def _find(self, entry: str) -> None:
        try:
            handle, card = self._handles(entry)
            name = self._nvml.nvmlDeviceGetName(handle)
        except self._nvml.NVMLError:
            return
        self._gpus[entry] = _Gpu(name, handle, card)

    def _handles(self, entry: str) -> tuple[Any, Any]:
        """Of the device as CUDA sees it, and of the card it is on."""
        nvml = self._nvml
        if entry.startswith("MIG-"):
            handle = nvml.nvmlDeviceGetHandleByUUID(entry)
            return handle, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        card = self._by_uuid(entry) if entry.startswith("GPU-") else nvml.nvmlDeviceGetHandleByIndex(int(entry))
        try:
            is_sliced = nvml.nvmlDeviceGetMigMode(card)[0] == nvml.NVML_DEVICE_MIG_ENABLE
            return (nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0) if is_sliced else card), card  # CUDA: the first
        except nvml.NVMLError:
            return card, card  # cannot be sliced, or has no slice yet

    def _by_uuid(self, beginning: str) -> Any:
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if nvml.nvmlDeviceGetUUID(handle).startswith(beginning):
                return handle
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)

    def _read(self, gpu: _Gpu) -> DeviceFacts:
        if gpu.handle is None:
            return DeviceFacts(f"{gpu.name} (lost)")
        nvml = self._nvml
        try:
            memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, gpu.handle)
            rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, gpu.handle)
            temperature_c = self._temperature_c(gpu.card)
            power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage, gpu.card)
        except nvml.NVMLError:
            gpu.handle = None
            return DeviceFacts(f"{gpu.name} (lost)")
        gpu.utilisation.append(rates.gpu / 100 if rates is not None else 0.0)
        return DeviceFacts(
            name=gpu.name,
            utilisation=sum(gpu.utilisation) / len(gpu.utilisation),
            memory_used_bytes=memory.used if memory is not None else 0,
            memory_total_bytes=memory.total if memory is not None else 0,
            temperature_c=temperature_c,
            power_w=(power_mw or 0) / 1000,
        )

    def _temperature_c(self, card: Any) -> float:
        nvml = self._nvml  # the second is deprecated, and drivers before release 560 have only that
        for question in (nvml.nvmlDeviceGetTemperatureV, nvml.nvmlDeviceGetTemperature):
            if (answer := self._ask(question, card, nvml.NVML_TEMPERATURE_GPU)) is not None:
                return float(answer)
        return 0.0

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """None where this device, or this driver, has no answer. Raises NVMLError when the device is gone."""
        nvml = self._nvml
        try:
            return question(*arguments)
        except nvml.NVMLError as error:
            gone = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED, nvml.NVML_ERROR_UNINITIALIZED)
            if error.value in gone:
                raise
            return None
