"""The options of `phi3-node`, in one screen."""

from __future__ import annotations

import dataclasses
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

from mesh.bodies import MAX_BODY_BYTES
from mesh.codec import MAX_PARTS
from mesh.discovery.addresses import BadAddress, Endpoint, parse_endpoint
from mesh.errors import ConfigError
from mesh.home import home_folder
from mesh.metrics.address import check_metrics_address
from mesh.options import option
from node.devices import WorkerDevices, find_gpus, share_out
from node.engine.base import EngineOptions
from node.engine.factory import ENGINES
from node.engine.quantization import METHODS
from node.engine.synthetic import PRESETS

DEFAULT_PORT = 5560
DEFAULT_BIND = f"*:{DEFAULT_PORT}"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Everything a node can be told. Derived values are properties, so two numbers can never disagree."""

    model: str = option(
        "microsoft/Phi-3-mini-4k-instruct",
        help="what to serve: a Hugging Face name, a folder, a .gguf file, or 'demo'",
        metavar="NAME",
    )
    served_name: str = option("", help="the name that callers use; default: the model's", metavar="NAME")
    engine: str = option("transformers", help="what runs the model", choices=ENGINES)
    device: str = option(
        "auto", help="auto (every GPU, or the CPU), cpu, cuda, cuda:1, or several: cuda:0,cuda:1", metavar="DEVICE"
    )
    parallel: str = option(
        "data",
        help="with several GPUs: data, one worker for each; auto, one for all, for a model that is too big for one GPU",
        choices=("data", "auto"),
    )
    tensor_parallel: int = option(1, help="GPUs that share each layer of the model, in each worker", metavar="N")
    dtype: str = option("auto", help="auto, float32, bfloat16 or float16", metavar="TYPE")
    quantize: str = option("none", help="make the weights smaller while loading them", choices=METHODS)
    slots: int = option(
        0,
        help="sequences that run at the same time in each worker; auto: from the cache size",
        words={"auto": 0},
        metavar="N",
    )
    memory_fraction: float = option(
        0.9, help="share of the free device memory for the KV cache; on a CPU up to 0.25", metavar="X"
    )
    max_model_len: int = option(0, help="prompt + generated tokens of one request; 0: the model's own", metavar="N")
    max_batch_tokens: int = option(0, help="tokens in one engine step; 0: the engine's choice", metavar="N")
    page_size: int = option(0, help="tokens in one page of the KV cache; 0: the engine's choice", metavar="N")
    batch_delay_s: float = option(
        0.0, flag="--batch-delay", help="seconds that an idle engine waits for company to a first request", metavar="S"
    )
    target_itl_s: float = option(
        0.0,
        flag="--target-itl",
        help="seconds between two tokens of a request to hold, by running fewer requests at once; 0: run all slots",
        metavar="S",
    )
    trust_remote_code: bool = option(False, help="run Python code that comes with the model (dangerous)")
    synthetic: tuple[str, ...] = option(
        (),
        help="the pace of a GPU without one, a10g, a100 or h200; or one number of it as name=value",
        metavar="GPU|NAME=X",
    )
    bind: str = option(DEFAULT_BIND, help="where to listen; port 0: any free one", metavar="HOST:PORT")
    advertise: tuple[str, ...] = option(
        (), help="address to tell others, on a host with several", metavar="HOST[:PORT]"
    )
    mdns: bool = option(True, help="advertise this node on the local network")
    join: str = option(
        "",
        metavar="TOKEN",
        help="join another host's mesh for good: the line of `phi3-broker token --member`, - or @FILE",
    )
    direct: bool = option(False, help="let named clients in too, not only members: for use without a broker")
    insecure: bool = option(False, help="no encryption and no keys; on loopback addresses only")
    mesh: str = option("default", help="name of the mesh; members of another one are ignored", metavar="NAME")
    name: str = option("", help="name of this node in status; default: the host's", metavar="NAME")
    node_id: str = option("", help="who this node is for life; default: from the host and the port", metavar="ID")
    max_waiting: int = option(1024, help="requests that may wait here for a slot", metavar="N")
    max_waiting_bytes: int = option(256 << 20, help="memory for the requests that are held here", metavar="BYTES")
    max_batch: int = option(256, help="requests in one message", metavar="N")
    max_body_bytes: int = option(MAX_BODY_BYTES, help="one request, decompressed", metavar="BYTES")
    max_connections: int = option(4096, help="brokers and clients that may be connected", metavar="N")
    max_requests_per_client: int = option(
        768, help="unfinished requests of one client; a broker counts those of its clients itself", metavar="N"
    )
    max_bytes_per_client: int = option(128 << 20, help="memory for the requests of one client", metavar="BYTES")
    heartbeat_s: float = option(0.5, flag="--heartbeat", help="seconds between two heartbeats", metavar="S")
    liveness: int = option(3, help="heartbeats that may be missed", metavar="N")
    stall_s: float = option(60.0, flag="--stall", help="restart a worker that makes no step for so long", metavar="S")
    metrics_port: int = option(
        0, help="show metrics to Prometheus here, at /metrics, to whoever can reach it; 0: no", metavar="PORT"
    )
    metrics_host: str = option("", help="the interface for that; default: the one of --bind", metavar="HOST")
    home: Path | None = option(
        None, help="folder for models; default: PHI3_MESH_HOME or the user's cache", metavar="FOLDER"
    )
    log_level: str = option("info", help="how much to say", choices=("debug", "info", "warning", "error"))

    def __post_init__(self) -> None:
        if presets := [item for item in self.synthetic if "=" not in item]:  # short for --engine and --device
            object.__setattr__(self, "engine", "synthetic")
            object.__setattr__(self, "device", ",".join(presets))
        at_least = {"slots": 0, "max_model_len": 0, "max_batch_tokens": 0, "page_size": 0, "max_waiting": 1}
        at_least |= {"max_batch": 1, "max_body_bytes": 1024, "liveness": 1, "max_connections": 1}
        at_least |= {"tensor_parallel": 1}
        at_least |= {"max_waiting_bytes": 1024, "max_requests_per_client": 1, "max_bytes_per_client": 1024}
        for field, lowest in at_least.items():
            if getattr(self, field) < lowest:
                raise ConfigError(f"--{field.replace('_', '-')}: must be at least {lowest}, not {getattr(self, field)}")
        if self.max_batch > MAX_PARTS:
            raise ConfigError(f"--max-batch: must be at most {MAX_PARTS}, not {self.max_batch}")
        if self.parallel == "auto" and self.tensor_parallel > 1:
            raise ConfigError("--parallel auto: spreads the layers, --tensor-parallel splits each of them: choose one")
        if self.quantize != "none" and self.tensor_parallel > 1:
            raise ConfigError("--quantize: does not go with --tensor-parallel; --parallel auto does")
        if not 0 < self.memory_fraction <= 1:
            raise ConfigError(f"--memory-fraction: must be above 0 and at most 1, not {self.memory_fraction}")
        for flag, seconds in (("--heartbeat", self.heartbeat_s), ("--stall", self.stall_s)):
            if seconds <= 0:
                raise ConfigError(f"{flag}: must be above 0 s, not {seconds}")
        if not 0 <= self.batch_delay_s <= 1:
            raise ConfigError(f"--batch-delay: must be from 0 to 1 second, not {self.batch_delay_s}")
        if not 0 <= self.target_itl_s <= 10:
            raise ConfigError(f"--target-itl: must be from 0 to 10 seconds, not {self.target_itl_s}; 0.02 is 20 ms")
        try:
            parse_endpoint(self.bind, default_port=DEFAULT_PORT, bind=True)
        except BadAddress as error:
            raise ConfigError(f"--bind: {error}") from None
        check_metrics_address(self.metrics_host, self.metrics_port)
        self.synthetic_numbers()

    @property
    def model_name(self) -> str:
        return self.served_name or self.model

    @property
    def lease_s(self) -> float:
        """How long a requester may be silent."""
        return self.heartbeat_s * self.liveness

    @property
    def endpoint(self) -> Endpoint:
        return parse_endpoint(self.bind, default_port=DEFAULT_PORT, bind=True)

    @property
    def is_default_bind(self) -> bool:
        """Whether the next port will do when the usual one is taken."""
        return self.endpoint.port == DEFAULT_PORT

    def named(self, port: int, mesh: str) -> NodeConfig:
        """With the name and id that were left to the host, and the mesh as its key has it. The port tells two nodes on
        one host apart."""
        host = socket.gethostname()
        name = self.name or (host if port == DEFAULT_PORT else f"{host}-{port}")
        node_id = self.node_id or f"{uuid.getnode():012x}-{port}"
        home = self.home or home_folder()
        return dataclasses.replace(self, name=name, node_id=node_id, home=home, mesh=mesh, join="")

    def synthetic_numbers(self) -> dict[str, float]:
        """Raises ConfigError."""
        numbers = {}
        for item in self.synthetic:
            name, equals, number = item.partition("=")
            if not equals:
                if name not in PRESETS:
                    raise ConfigError(f"--synthetic: no GPU is called {item!r}: {', '.join(PRESETS)}, or NAME=NUMBER")
                continue
            try:
                numbers[name] = float(number)
            except ValueError:
                raise ConfigError(f"--synthetic: {item!r} is not NAME=NUMBER") from None
        return numbers

    def worker_options(self) -> list[tuple[str, EngineOptions]]:
        """Each worker's name and what it is told. Raises ConfigError when the devices cannot be shared out so."""
        common = EngineOptions(
            engine=self.engine,
            model=self.model,
            dtype=self.dtype,
            slots=self.slots,
            memory_fraction=self.memory_fraction,
            max_model_len=self.max_model_len,
            max_batch_tokens=self.max_batch_tokens,
            page_size=self.page_size,
            trust_remote_code=self.trust_remote_code,
            tensor_parallel=self.tensor_parallel,
            parallel=self.parallel,
            quantize=self.quantize,
            synthetic=self.synthetic_numbers(),
        )
        return [
            (f"w{i}", dataclasses.replace(common, device=one.device, visible_devices=one.visible))
            for i, one in enumerate(self._worker_devices())
        ]

    def _worker_devices(self) -> list[WorkerDevices]:
        if self.engine == "synthetic":  # its devices are speeds
            return [WorkerDevices(device.strip()) for device in self.device.split(",")]
        return share_out(self.device, find_gpus(), tensor_parallel=self.tensor_parallel, parallel=self.parallel)
