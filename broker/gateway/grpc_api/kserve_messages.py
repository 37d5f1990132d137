"""The messages of `inference` ↔ what broker.gateway.kserve_api makes of an infer request. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.gateway.grpc_api.kserve_v2_pb2 import InferParameter, InferTensorContents, ModelInferRequest
from broker.gateway.grpc_api.kserve_v2_pb2 import ModelInferResponse as Response
from broker.gateway.kserve_api.describe import TEXT_OUTPUT, VERSION
from broker.gateway.kserve_api.infer import InferRequest, infer_request
from broker.gateway.kserve_api.tensors import pack_texts
from broker.gateway.problems import invalid
from broker.gateway.wire import to_json

FINAL = "triton_final_response"  # in a stream: no more comes for this request
_WANTS_FINAL = "triton_enable_empty_final_response"


def asked_of(message: ModelInferRequest) -> InferRequest:
    """Read as the same request over HTTP would be: JSON, and raw tensors behind it. Raises Problem 400."""
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise invalid("raw_input_contents", f"has {len(raw)} tensors, inputs has {len(message.inputs)}")
    parameters = _parameters(message.parameters)
    parameters.pop(_WANTS_FINAL, None)
    head = to_json(
        {
            "id": message.id,
            "parameters": parameters,
            "inputs": [_input(message, number) for number in range(len(message.inputs))],
            "outputs": [{"name": output.name} for output in message.outputs],
        }
    )
    return infer_request(head + b"".join(raw), str(len(head)))


def response_of(asked: InferRequest, model: str, texts: Sequence[str]) -> Response:
    """A text for each text, in the request's shape."""
    output = Response.InferOutputTensor(name=TEXT_OUTPUT, datatype="BYTES", shape=asked.shape)
    return Response(
        model_name=model,
        model_version=VERSION,
        id=asked.id,
        outputs=[output],
        raw_output_contents=[pack_texts(list(texts))],
    )


def wants_final(message: ModelInferRequest) -> bool:
    """Whether a response without outputs is to mark the end of a streamed answer."""
    return message.parameters[_WANTS_FINAL].bool_param if _WANTS_FINAL in message.parameters else False


def final_response(request_id: str, model: str) -> Response:
    return Response(
        model_name=model, model_version=VERSION, id=request_id, parameters={FINAL: InferParameter(bool_param=True)}
    )


def _input(message: ModelInferRequest, number: int) -> dict[str, Any]:
    tensor = message.inputs[number]
    told: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    if message.raw_input_contents:
        told["parameters"] = {"binary_data_size": len(message.raw_input_contents[number])}
    else:
        told["data"] = _values(tensor.contents, f"inputs[{number}].contents")
    return told


def _values(contents: InferTensorContents, where: str) -> list[Any]:
    fields = contents.ListFields()
    if len(fields) > 1:
        raise invalid(where, "has elements of more than one type")
    if not fields:
        return []
    descriptor, values = fields[0]
    if descriptor.name != "bytes_contents":
        return list(values)
    try:
        return [value.decode() for value in values]
    except UnicodeDecodeError:
        raise invalid(where, "has an element that is not UTF-8 text") from None


def _parameters(parameters: Mapping[str, InferParameter]) -> dict[str, Any]:
    """One that holds nothing is as good as none."""
    chosen = {name: (value, value.WhichOneof("parameter_choice")) for name, value in parameters.items()}
    return {name: getattr(value, choice) for name, (value, choice) in chosen.items() if choice}
