"""The bodies of /infer: what is asked, and the answer in JSON or with bytes behind it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.gateway.kserve_api.describe import TEXT_INPUT, TEXT_OUTPUT, VERSION
from broker.gateway.kserve_api.params import GenerateParameters, parameters_of
from broker.gateway.kserve_api.tensors import pack_texts, tensors_of
from broker.gateway.problems import Problem, invalid
from broker.gateway.wire import object_of, to_json

_KNOWN = ("id", "inputs", "outputs", "parameters")


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A text for each element of `text_input`; the answer has the same shape."""

    id: str
    texts: tuple[str, ...]
    shape: tuple[int, ...]
    parameters: GenerateParameters
    is_binary: bool  # how the answer is wanted


def infer_request(body: bytes, header_length: str | None) -> InferRequest:
    """`header_length` says where the JSON ends and bytes begin. Raises Problem 400."""
    size = _size(header_length, len(body))
    told = object_of(body[:size])
    for name in told:
        if name not in _KNOWN:
            raise invalid(name[:64], "unknown field")
    request_id = told.get("id") or ""
    parameters = told.get("parameters") or {}
    if not isinstance(request_id, str) or not isinstance(parameters, dict):
        raise Problem(400, "id must be text and parameters an object", code="invalid_value")
    text = None
    given = dict(parameters)
    for tensor in tensors_of(told.get("inputs"), body[size:]):
        if tensor.name == TEXT_INPUT:
            text = tensor
        elif len(tensor.values) == 1:  # a parameter, as Triton's language model backends take them
            given[tensor.name] = tensor.values[0]
        else:
            raise invalid(f"inputs: {tensor.name[:64]}", "must have exactly one element")
    if text is None or not text.values or not all(isinstance(value, str) for value in text.values):
        raise invalid("inputs", f"must have {TEXT_INPUT}, of type BYTES, with at least one element")
    wanted = _wants_binary(told.get("outputs"), is_default=parameters.get("binary_data_output") is True)
    return InferRequest(request_id, text.values, text.shape, parameters_of(given), wanted)


def infer_answer(request: InferRequest, model: str, texts: list[str]) -> tuple[bytes, int | None]:
    """The body, and the length of its JSON if bytes follow."""
    output: dict[str, Any] = {"name": TEXT_OUTPUT, "datatype": "BYTES", "shape": list(request.shape)}
    told = {"id": request.id} if request.id else {}
    head = {**told, "model_name": model, "model_version": VERSION, "outputs": [output]}
    if not request.is_binary:
        output["data"] = texts
        return to_json(head), None
    blob = pack_texts(texts)
    output["parameters"] = {"binary_data_size": len(blob)}
    encoded = to_json(head)
    return encoded + blob, len(encoded)


def _size(header_length: str | None, body_length: int) -> int:
    if header_length is None:
        return body_length
    if not (header_length.isascii() and header_length.isdecimal() and len(header_length) < 16):
        raise invalid("Inference-Header-Content-Length", "must be a whole number")
    if int(header_length) > body_length:
        raise invalid("Inference-Header-Content-Length", "is more than the request has")
    return int(header_length)


def _wants_binary(outputs: Any, *, is_default: bool) -> bool:
    if outputs in (None, []):
        return is_default
    if not isinstance(outputs, list) or not all(isinstance(output, Mapping) for output in outputs):
        raise invalid("outputs", "must be a list of objects")
    for number, output in enumerate(outputs):
        if output.get("name") != TEXT_OUTPUT:
            raise invalid(f"outputs[{number}].name", f"there is only {TEXT_OUTPUT}")
    parameters = outputs[0].get("parameters")
    if not isinstance(parameters, Mapping) or "binary_data" not in parameters:
        return is_default
    return parameters["binary_data"] is True
