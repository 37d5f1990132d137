"""nginx, vllm-router and sglang-router in front of the same backends, each set up in its own favour: one worker, no
access log, connections to the backends kept, and the policy that comes closest to least connections."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from scripts.benchmarks.peers.install import NotToBeHad, installed, version
from scripts.benchmarks.processes import Member, Stage

_NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/nginx-body;
    proxy_temp_path {folder}/nginx-proxy;
    fastcgi_temp_path {folder}/nginx-fastcgi;
    uwsgi_temp_path {folder}/nginx-uwsgi;
    scgi_temp_path {folder}/nginx-scgi;
    keepalive_requests 1000000000;
    upstream backends {{ least_conn; {servers} keepalive 2048; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=2048;
        location / {{
            proxy_pass http://backends;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Peer:
    """One that runs. `address` is host:port."""

    name: str
    address: str
    member: Member

    @property
    def pids(self) -> list[int]:
        """Of all its processes."""
        process = psutil.Process(self.member.pid)
        return [process.pid, *[child.pid for child in process.children(recursive=True)]]


def start_nginx(opened: Stage, backends: Sequence[Member]) -> Peer:
    """Raises NotToBeHad."""
    program = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if program is None:
        raise NotToBeHad("nginx is not installed (Debian: apt-get install nginx-light)")
    told = subprocess.run([program, "-v"], capture_output=True, text=True).stderr.strip()
    port = free_port()
    servers = " ".join(f"server {backend.address};" for backend in backends)
    config = opened.folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=opened.folder, servers=servers, port=port))
    opened.folder.chmod(0o755)  # its worker is another user when it is started by root
    return _started(opened, f"nginx {told.rpartition('/')[2]} least_conn", port, [program, "-c", str(config)])


def start_vllm_router(opened: Stage, backends: Sequence[Member]) -> Peer:
    """Raises NotToBeHad."""
    return _start_router(opened, backends, "vllm-router", "vllm-router", "--log-level", "error")


def start_sglang_router(opened: Stage, backends: Sequence[Member]) -> Peer:
    """Raises NotToBeHad."""
    return _start_router(opened, backends, "sglang-router", "sglang-router", "launch", "--log-level", "warn")


STARTS: dict[str, Callable[[Stage, Sequence[Member]], Peer]] = {
    "nginx": start_nginx,
    "vllm-router": start_vllm_router,
    "sglang-router": start_sglang_router,
}


def start_peers(opened: Stage, backends: Sequence[Member], names: Sequence[str] = tuple(STARTS)) -> list[Peer]:
    """Those that can be had; says of each other one why not."""
    peers = []
    for name in names:
        try:
            peers.append(STARTS[name](opened, backends))
        except (NotToBeHad, RuntimeError) as error:
            print(f"without {name}: {error}", file=sys.stderr)
    return peers


def _start_router(opened: Stage, backends: Sequence[Member], package: str, program: str, *options: str) -> Peer:
    path = installed(package, program)
    port = free_port()
    command = [
        str(path), *options, "--host", "127.0.0.1", "--port", f"{port}", "--policy", "power_of_two",
        "--prometheus-port", f"{free_port()}",
        "--worker-urls", *[f"http://{backend.address}" for backend in backends],
    ]  # fmt: skip
    return _started(opened, f"{package} {version(package)}", port, command)


def _started(opened: Stage, name: str, port: int, command: Sequence[str]) -> Peer:
    address = f"127.0.0.1:{port}"
    member = opened.start(name.split()[0], command, is_measured=True, is_ready=lambda _: _serves(address))
    return Peer(name, address, member)


def _serves(address: str) -> bool:
    """Whether it passes requests on already."""
    try:
        with urllib.request.urlopen(f"http://{address}/v1/models", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
