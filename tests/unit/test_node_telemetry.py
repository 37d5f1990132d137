"""What status says of GPUs: the right ones, never a stale value, and never a wait for the driver."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from mesh.messages import DeviceFacts
from node.config import NodeConfig
from node.telemetry import AGAIN_AFTER_S, INTERVAL_S, STALE_AFTER_S, DriverFailed, NoDriver, Telemetry
from node.telemetry_nvml import NvmlReader, gpu_telemetry, visible_entries, wanted_indices
from tests.support.eventually import eventually

GIB = 1 << 30


@dataclass(eq=False)
class FakeGpu:
    name: str
    uuid: str
    busy: int | None = 50  # percent; None: this device does not say
    used: int = 10 * GIB
    total: int = 80 * GIB
    celsius: int | None = 60
    milliwatts: int | None = 250_000
    slices: list[FakeGpu] = field(default_factory=list)
    card: FakeGpu | None = None  # of a slice
    error: int = 0  # what every question is answered with


class FakeNvml:
    """The library as it is where there is a driver, with its own constants and errors: all that cannot be real here."""

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.num_inits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        self.num_inits += 1

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self._answer(self.gpus[index], self.gpus[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        every = [*self.gpus, *(part for gpu in self.gpus for part in gpu.slices)]
        return next(gpu for gpu in every if gpu.uuid == uuid)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, part: FakeGpu) -> FakeGpu | None:
        return part.card

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        return self._answer(gpu, [int(bool(gpu.slices)), 0])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        return gpu.slices[index]

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return self._answer(gpu, gpu.name)

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return self._answer(gpu, gpu.uuid)

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> Any:
        return self._answer(gpu, SimpleNamespace(used=gpu.used, total=gpu.total))

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(gpu=self._answer(gpu, gpu.busy), memory=0)

    def nvmlDeviceGetTemperatureV(self, gpu: FakeGpu, sensor: int) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)  # a driver before release 560

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        return self._answer(gpu, gpu.celsius)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return self._answer(gpu, gpu.milliwatts)

    @staticmethod
    def _answer(gpu: FakeGpu, value: Any) -> Any:
        if gpu.error:
            raise pynvml.NVMLError(gpu.error)
        if value is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value


def two() -> FakeNvml:
    return FakeNvml(FakeGpu("A100", "GPU-aaaa-1"), FakeGpu("H200", "GPU-bbbb-2", busy=100, celsius=71))


def reader(nvml: FakeNvml, device: str = "auto", visible: str | None = None) -> NvmlReader:
    opened = NvmlReader(device, visible, lambda: nvml)
    opened.open()
    return opened


# --- which devices ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, ["0", "1", "2", "3"]),
        ("2,0", ["2", "0"]),
        (" 1 , GPU-aaaa ", ["1", "GPU-aaaa"]),
        ("MIG-1111", ["MIG-1111"]),
        ("0,-1,1", ["0"]),  # CUDA stops at the first that is not valid
        ("1,9,2", ["1"]),
        ("", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_does(variable: str | None, expected: list[str]) -> None:
    assert visible_entries(variable, 4) == expected


@pytest.mark.parametrize(
    ("device", "expected"),
    [("auto", [0, 1, 2]), ("cuda", [0]), ("cuda:2", [2]), ("cuda:0, cuda:2", [0, 2]), ("cpu", []), ("cpu,cuda:1", [1])],
)
def test_the_device_option_counts_among_the_visible_ones(device: str, expected: list[int]) -> None:
    assert wanted_indices(device, 3) == expected


@pytest.mark.parametrize(
    ("device", "visible", "names"),
    [
        ("auto", None, ["A100", "H200"]),
        ("cuda:1", None, ["H200"]),
        ("cuda:0", "1", ["H200"]),
        ("cuda:0", "GPU-bb", ["H200"]),
        ("cuda:5", None, []),
    ],
)
def test_only_the_devices_of_this_node_are_read(device: str, visible: str | None, names: list[str]) -> None:
    try:
        found = [facts.name for facts in reader(two(), device, visible).read()]
    except NoDriver:
        found = []
    assert found == names


def test_a_node_without_gpus_starts_no_thread() -> None:
    assert gpu_telemetry(NodeConfig(device="cpu")) is None
    assert gpu_telemetry(NodeConfig(engine="synthetic")) is None
    assert gpu_telemetry(NodeConfig()) is not None


# --- what is read -----------------------------------------------------------------------------------------------------


def test_a_gpu_is_described_in_the_units_of_status() -> None:
    facts = reader(two(), "cuda:0").read()
    assert facts == (DeviceFacts("A100", 0.5, 10 * GIB, 80 * GIB, 60.0, 250.0),)


def test_utilisation_is_the_mean_of_the_last_seconds() -> None:
    nvml = two()
    opened = reader(nvml, "cuda:0")
    for percent in (100, 0, 0, 100):
        nvml.gpus[0].busy = percent
        (facts,) = opened.read()
    assert facts.utilisation == 0.5


def test_what_a_device_does_not_say_is_unknown_and_nothing_worse() -> None:
    nvml = FakeNvml(FakeGpu("Jetson", "GPU-1", busy=None, celsius=None, milliwatts=None))
    assert reader(nvml).read() == (DeviceFacts("Jetson", 0.0, 10 * GIB, 80 * GIB),)


@pytest.mark.parametrize("visible", ["0", "MIG-77"])
def test_of_a_slice_the_memory_is_its_own_and_the_temperature_that_of_its_card(visible: str) -> None:
    card = FakeGpu("A100", "GPU-1", celsius=55)
    card.slices.append(FakeGpu("A100 MIG 1g.10gb", "MIG-77", busy=None, used=GIB, total=10 * GIB, card=card))

    (facts,) = reader(FakeNvml(card), "auto", visible).read()

    assert (facts.name, facts.memory_total_bytes, facts.temperature_c) == ("A100 MIG 1g.10gb", 10 * GIB, 55.0)


def test_a_gpu_that_is_lost_is_named_the_others_go_on_and_it_may_come_back() -> None:
    nvml = two()
    opened = reader(nvml)
    nvml.gpus[0].error = pynvml.NVML_ERROR_GPU_IS_LOST

    names = [facts.name for facts in opened.read()]
    assert names == ["A100 (lost)", "H200"]
    assert not opened.is_whole
    opened.open()
    assert [facts.name for facts in opened.read()] == names

    nvml.gpus[0].error = 0
    opened.open()
    assert [facts.name for facts in opened.read()] == ["A100", "H200"]
    assert opened.is_whole


# --- the thread -------------------------------------------------------------------------------------------------------


class ScriptedReader:
    """Does what the test says next."""

    def __init__(self) -> None:
        self.is_whole = True
        self.num_opened = 0
        self.error: Exception | None = None
        self.devices = (DeviceFacts("A100", 0.5),)

    def open(self) -> None:
        self.num_opened += 1
        if self.error is not None:
            raise self.error

    def read(self) -> tuple[DeviceFacts, ...]:
        return self.devices


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_stale_reading_is_no_reading() -> None:
    clock, source = Clock(), ScriptedReader()
    telemetry = Telemetry(source, clock=clock)
    assert telemetry.latest() == ()
    assert telemetry.sample() == INTERVAL_S
    assert telemetry.latest() == source.devices
    clock.now += STALE_AFTER_S
    assert telemetry.latest() == ()


def test_without_a_driver_the_thread_ends() -> None:
    source = ScriptedReader()
    source.error = NoDriver("NVML Shared Library Not Found")
    assert Telemetry(source).sample() is None


def test_a_driver_that_fails_is_asked_again_later_and_the_last_values_are_dropped() -> None:
    clock, source = Clock(), ScriptedReader()
    telemetry = Telemetry(source, clock=clock)
    telemetry.sample()
    source.is_whole, source.error = False, DriverFailed("Driver/library version mismatch")
    clock.now += AGAIN_AFTER_S
    assert telemetry.sample() == AGAIN_AFTER_S
    assert telemetry.latest() == ()

    source.is_whole, source.error = True, None
    assert telemetry.sample() == INTERVAL_S
    assert telemetry.latest() == source.devices


def test_a_lost_gpu_is_looked_for_now_and_then_and_not_every_second() -> None:
    clock, source = Clock(), ScriptedReader()
    telemetry = Telemetry(source, clock=clock)
    source.is_whole = False
    for _ in range(60):
        telemetry.sample()
        clock.now += 1.0
    assert source.num_opened == 2


def test_a_driver_that_hangs_stops_nobody() -> None:
    class Hanging(ScriptedReader):
        def __init__(self) -> None:
            super().__init__()
            self.has_hung = threading.Event()
            self.comes_back = threading.Event()

        def read(self) -> tuple[DeviceFacts, ...]:
            if self.num_opened and self.devices:
                devices, self.devices = self.devices, ()
                return devices
            self.has_hung.set()
            self.comes_back.wait(10)
            return ()

    clock, source = Clock(), Hanging()
    telemetry = Telemetry(source, interval_s=0.0, clock=clock)
    telemetry.start()
    assert source.has_hung.wait(10)
    assert [facts.name for facts in telemetry.latest()] == ["A100"]
    clock.now += STALE_AFTER_S
    assert telemetry.latest() == ()
    telemetry.stop()  # returns, though the thread hangs
    source.comes_back.set()


def test_the_real_library_without_a_driver_means_no_gpu() -> None:
    opened = NvmlReader("auto", None)
    try:
        opened.open()
    except NoDriver:
        pass
    else:
        pytest.skip("there is a GPU here")
    telemetry = Telemetry(NvmlReader("auto", None))
    telemetry.start()
    eventually(lambda: "telemetry" not in [thread.name for thread in threading.enumerate()])
    assert telemetry.latest() == ()
