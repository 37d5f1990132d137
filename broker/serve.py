"""`phi3-broker serve`: the process around a BrokerServer, with its log and its signals."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING

import uvloop

from broker.config import BrokerConfig
from broker.server import BrokerServer
from mesh.file_limit import raise_file_limit

if TYPE_CHECKING:
    from broker.metrics import BrokerMetrics

logger = logging.getLogger(__name__)


def serve(config: BrokerConfig) -> None:
    """Until SIGINT or SIGTERM. Raises ConfigError when the address cannot be bound."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname).1s %(message)s", datefmt="%H:%M:%S"
    )
    raise_file_limit()
    uvloop.run(_serve(config))


async def _serve(config: BrokerConfig) -> None:
    metrics = _metrics(config)
    server = BrokerServer(config)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _on_signal, number, stopped)
    await server.start()
    if metrics is not None:
        metrics.start(server.core)
        logger.info("metrics url=%s", metrics.url)
    logger.info(
        "serving address=%s name=%s mesh=%s policy=%s nodes_from=%r",
        server.address, config.name, config.mesh, config.policy, server.describe(),
    )  # fmt: skip
    try:
        await stopped.wait()
    finally:
        await server.stop()
        if metrics is not None:
            await metrics.stop()
    logger.info("stopped name=%s", config.name)


def _metrics(config: BrokerConfig) -> BrokerMetrics | None:
    """With its port bound: whoever named one that is taken should hear it before anything else has begun."""
    if not config.metrics_port:
        return None
    from broker.metrics import BrokerMetrics  # costs time that only those pay who want it

    return BrokerMetrics(config)


def _on_signal(number: signal.Signals, stopped: asyncio.Event) -> None:
    if stopped.is_set():
        logger.warning("stopping_hard signal=%s", number.name)
        os._exit(128 + number)  # whoever asks twice does not want to wait for anything
    logger.info("stopping signal=%s", number.name)
    stopped.set()
