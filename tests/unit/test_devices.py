"""Which GPUs there are, and who gets which."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import zmq

from mesh.errors import ConfigError
from mesh.options import load_options
from node.config import NodeConfig
from node.devices import WorkerDevices, find_gpus, share_out
from node.engine import ipc
from node.engine.base import EngineInfo, EngineOptions
from node.engine.claim import Devices
from node.supervisor import WorkerProcess

FOUR = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
LISTING = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5a1b2c3d-0000-1111-2222-333344445555)
  MIG 1g.10gb     Device  0: (UUID: MIG-00000000-0000-1111-2222-333344445555)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-6a1b2c3d-0000-1111-2222-333344445555)
"""


@pytest.mark.parametrize(
    ("wanted", "gpus", "options", "shared"),
    [
        ("auto", [], {}, [("auto", "")]),
        ("auto", ["GPU-a"], {}, [("auto", "")]),
        ("auto", FOUR[:2], {}, [("cuda:0", "GPU-a"), ("cuda:1", "GPU-b")]),
        ("cuda:3,cuda:1", FOUR, {}, [("cuda:3", "GPU-d"), ("cuda:1", "GPU-b")]),
        ("cuda:1", [], {}, [("cuda:1", "1")]),  # no nvidia-smi: by number
        ("cuda", FOUR, {}, [("cuda", "")]),
        ("cpu", FOUR, {}, [("cpu", "")]),
        ("auto", FOUR, {"tensor_parallel": 2}, [("cuda:0,cuda:1", "GPU-a,GPU-b"), ("cuda:2,cuda:3", "GPU-c,GPU-d")]),
        ("cuda", FOUR, {"tensor_parallel": 4}, [("cuda:0,cuda:1,cuda:2,cuda:3", ",".join(FOUR))]),
        ("cuda:1,cuda:3", FOUR, {"tensor_parallel": 2}, [("cuda:1,cuda:3", "GPU-b,GPU-d")]),
        ("auto", [], {"tensor_parallel": 2}, [("cpu", "")]),
        ("cpu", FOUR, {"tensor_parallel": 3}, [("cpu", "")]),
        ("auto", FOUR[:2], {"parallel": "auto"}, [("cuda:0,cuda:1", "GPU-a,GPU-b")]),
        ("cuda:2,cuda:3", FOUR, {"parallel": "auto"}, [("cuda:2,cuda:3", "GPU-c,GPU-d")]),
        ("auto", ["GPU-a"], {"parallel": "auto"}, [("cuda:0", "GPU-a")]),
        ("auto", [], {"parallel": "auto"}, [("auto", "")]),
    ],
)
def test_each_worker_gets_its_devices(
    wanted: str, gpus: list[str], options: dict[str, object], shared: list[tuple[str, str]]
) -> None:
    assert share_out(wanted, gpus, **options) == [WorkerDevices(*one) for one in shared]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "num_gpus", "tensor_parallel", "words"),
    [
        ("auto", 2, 4, r"--tensor-parallel 4: there are only 2 GPU\(s\): cuda:0, cuda:1"),
        ("auto", 1, 2, r"--tensor-parallel 2: there are only 1 GPU\(s\): cuda:0"),
        ("auto", 3, 2, r"--tensor-parallel 2: 3 GPUs do not make groups of 2: .*--device cuda:0,cuda:1$"),
        ("cuda:0,cuda:0", 4, 2, r"each once, not cuda:0, cuda:0"),
        ("cuda:0,cpu", 4, 2, r"must name GPUs, each once, not cuda:0, cpu"),
        ("cuda:4", 4, 1, r"--device cuda:4: this host has 4 GPU\(s\): cuda:0, cuda:1, cuda:2, cuda:3"),
    ],
)
def test_what_cannot_be_shared_out_so_is_said(wanted: str, num_gpus: int, tensor_parallel: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        share_out(wanted, FOUR[:num_gpus], tensor_parallel=tensor_parallel)


def test_gpus_are_known_by_their_serial_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{LISTING}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [gpu[:6] for gpu in find_gpus()] == ["GPU-5a", "GPU-6a"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, GPU-6a")
    assert find_gpus() == ["1", "GPU-6a"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert find_gpus() == []


def test_a_worker_sees_its_own_gpus_and_speaks_of_them_as_the_host_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all of them")
    devices = Devices(EngineOptions(device="cuda:2,cuda:3", visible_devices="GPU-c,GPU-d"))
    assert devices.claim().device == "cuda:0,cuda:1"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-c,GPU-d"
    assert devices.as_on_host("out of memory on cuda:1, not cuda:0 (cuda:7?)") == (
        "out of memory on cuda:3, not cuda:2 (cuda:7?)"
    )


def test_one_that_was_given_no_gpu_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    options = EngineOptions(device="cuda:1")
    assert Devices(options).claim() == options
    assert Devices(options).as_on_host("cuda:0") == "cuda:0"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def parsed(*argv: str) -> NodeConfig:
    return load_options(NodeConfig, argv, "phi3-node", {})


def test_the_options_reach_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    workers = parsed("--tensor-parallel", "2", "--slots", "auto").worker_options()
    assert [name for name, _ in workers] == ["w0", "w1"]
    assert [(options.device, options.visible_devices) for _, options in workers] == [
        ("cuda:0,cuda:1", "0,1"),
        ("cuda:2,cuda:3", "2,3"),
    ]
    assert {(options.tensor_parallel, options.slots) for _, options in workers} == {(2, 0)}
    ((_, options),) = parsed("--parallel", "auto", "--quantize", "bnb-4bit").worker_options()
    assert (options.parallel, options.quantize) == ("auto", "bnb-4bit")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--tensor-parallel", "0"), "--tensor-parallel: must be at least 1, not 0"),
        (("--tensor-parallel", "2", "--parallel", "auto"), "choose one"),
        (("--tensor-parallel", "2", "--quantize", "bnb-4bit"), "--quantize: does not go with --tensor-parallel"),
        (("--quantize", "int3"), "'int3' is none of none, bnb-8bit"),
        (("--slots", "automatic"), "--slots: expected a whole number or auto, not 'automatic'"),
    ],
)
def test_a_wrong_option_is_named(argv: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parsed(*argv)


@pytest.mark.parametrize(("found", "asked_next"), [("cuda:0 NVIDIA A100", "cuda:0"), ("cpu", "auto")])
def test_a_worker_that_found_a_gpu_never_comes_back_on_the_cpu(tmp_path: Path, found: str, asked_next: str) -> None:
    """`auto` is decided once: the GPU may be lost when it is asked again."""
    info = EngineInfo("m", "", found, "float32", 10, 10, 10, 1, "", 0.0)

    async def story() -> EngineOptions:
        with zmq.Context() as context:
            worker = WorkerProcess(
                "w0",
                EngineOptions(),
                tmp_path,
                tmp_path,
                context,
                stall_s=1.0,
                on_ready=lambda worker: None,
                on_outputs=lambda worker, outputs: None,
                on_stats=lambda worker: None,
                on_lost=lambda worker, reason: None,
            )
            worker._on_frames([ipc.encode(ipc.Ready(info))])
            return worker._options

    assert asyncio.run(story()).device == asked_next
