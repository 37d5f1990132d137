"""What a model looks like to Triton's clients: text in, text out."""

from __future__ import annotations

from typing import Any

from mesh.report import ModelReport
from mesh.version import __version__

VERSION = "1"  # a mesh serves one version of a model under a name
TEXT_INPUT = "text_input"
TEXT_OUTPUT = "text_output"
_PLATFORM = "phi3-mesh"


def server_metadata() -> dict[str, Any]:
    return {"name": _PLATFORM, "version": __version__, "extensions": ["binary_tensor_data", "generate", "parameters"]}


def model_metadata(model: ModelReport) -> dict[str, Any]:
    return {
        "name": model.name,
        "versions": [VERSION],
        "platform": _PLATFORM,
        "inputs": [{"name": TEXT_INPUT, "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": TEXT_OUTPUT, "datatype": "BYTES", "shape": [-1]}],
    }


def model_config(model: ModelReport) -> dict[str, Any]:
    return {
        "name": model.name,
        "platform": _PLATFORM,
        "backend": _PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": [{"name": TEXT_INPUT, "data_type": "TYPE_STRING", "dims": [-1]}],
        "output": [{"name": TEXT_OUTPUT, "data_type": "TYPE_STRING", "dims": [-1]}],
        "instance_group": [{"name": model.name, "kind": "KIND_AUTO", "count": max(model.slots_total, 1)}],
        "model_transaction_policy": {"decoupled": False},
        "parameters": {"max_model_len": {"string_value": str(model.max_model_len)}},
    }


def index_entry(model: ModelReport) -> dict[str, str]:
    return {"name": model.name, "version": VERSION, "state": "READY", "reason": ""}
