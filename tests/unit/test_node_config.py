"""The options of `phi3-node`, as a person writes them."""

from __future__ import annotations

import pytest

from mesh.errors import ConfigError
from node.config import NodeConfig


def test_the_name_of_a_gpu_is_all_that_a_synthetic_node_needs() -> None:
    config = NodeConfig(synthetic=("a100", "a10g", "slots=8"))

    assert [(name, options.engine, options.device) for name, options in config.worker_options()] == [
        ("w0", "synthetic", "a100"),
        ("w1", "synthetic", "a10g"),
    ]
    assert config.worker_options()[0][1].synthetic == {"slots": 8.0}


@pytest.mark.parametrize("item", ["a1000", "", "slots=", "slots=many", "slots=1e"])
def test_what_is_neither_a_gpu_nor_a_number_is_refused_by_name(item: str) -> None:
    with pytest.raises(ConfigError, match="--synthetic"):
        NodeConfig(synthetic=(item,))


def test_numbers_alone_leave_the_engine_that_was_chosen() -> None:
    assert NodeConfig(synthetic=("slots=8",)).engine == "transformers"
    assert NodeConfig(engine="synthetic", device="h200", synthetic=("slots=8",)).device == "h200"
