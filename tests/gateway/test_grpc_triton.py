"""Programs written for Triton's gRPC API, through `tritonclient`; with TLS and a key, which it knows how to send."""

from __future__ import annotations

import queue
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
pytest.importorskip("grpc_health", reason="needs grpcio-health-checking")
pytest.importorskip("grpc_reflection", reason="needs grpcio-reflection")
triton = pytest.importorskip("tritonclient.grpc", reason="needs tritonclient[grpc]")
np = pytest.importorskip("numpy", reason="needs numpy")

from mesh import Client  # noqa: E402
from node.engine.synthetic_vocab import encode, expected_text  # noqa: E402
from tests.gateway.conftest import MODEL  # noqa: E402
from tests.gateway.support import gateway_for  # noqa: E402
from tests.gateway.support_grpc import GRPC, grpc_address  # noqa: E402
from tests.support.eventually import eventually  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")

KEY = "sk-triton-0123456789"
HEADERS = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def client(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[triton.InferenceServerClient]:
    folder = tmp_path_factory.mktemp("triton")
    cert, key, keys = folder / "cert.pem", folder / "key.pem", folder / "keys"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    keys.write_text(f"alice {KEY}\n")
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--api-key-file", str(keys))
    with (
        gateway_for(folder, broker, *GRPC, *options) as gateway,
        triton.InferenceServerClient(grpc_address(gateway), ssl=True, root_certificates=str(cert)) as client,
    ):
        eventually(client.is_server_ready, within_s=30)  # probes need no key
        yield client


def text_input(*texts: str) -> triton.InferInput:
    tensor = triton.InferInput("text_input", [len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=object))
    return tensor


def texts_of(answer: triton.InferResult) -> list[str]:
    return [value.decode() for value in answer.as_numpy("text_output")]


def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_model_ready(MODEL, headers=HEADERS)
    assert client.is_model_ready(MODEL, "1", headers=HEADERS)
    assert not client.is_model_ready("nobody/has-this", headers=HEADERS)
    assert client.get_server_metadata(HEADERS).name == "phi3-mesh"
    assert client.get_model_metadata(MODEL, "1", HEADERS).inputs[0].name == "text_input"
    config = client.get_model_config(MODEL, headers=HEADERS, as_json=True)["config"]
    assert (config["name"], config["input"][0]["data_type"]) == (MODEL, "TYPE_STRING")
    assert [entry.name for entry in client.get_model_repository_index(HEADERS).models] == [MODEL]


def test_a_key_is_required(client: triton.InferenceServerClient) -> None:
    with pytest.raises(triton.InferenceServerException, match="API key") as caught:
        client.infer(MODEL, [text_input("x")])
    assert caught.value.status() == "StatusCode.UNAUTHENTICATED"


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_infer_answers_each_text(client: triton.InferenceServerClient, compression: str | None) -> None:
    texts = ("first", "zweiter Süßwarenladen", "第三")
    limit = triton.InferInput("max_tokens", [1], "INT32")
    limit.set_data_from_numpy(np.array([15], dtype=np.int32))
    answer = client.infer(
        MODEL,
        [text_input(*texts), limit],
        outputs=[triton.InferRequestedOutput("text_output")],
        request_id="7",
        headers=HEADERS,
        compression_algorithm=compression,
    )
    assert texts_of(answer) == [expected_text(encode(text), 15) for text in texts]
    assert answer.get_response().id == "7"


def test_what_is_wrong_is_said(client: triton.InferenceServerClient) -> None:
    def told(**asked: Any) -> tuple[str, str]:
        with pytest.raises(triton.InferenceServerException) as caught:
            client.infer(**{"model_name": MODEL, "inputs": [text_input("x")], "headers": HEADERS, **asked})
        return caught.value.status().removeprefix("StatusCode."), caught.value.message()

    code, words = told(model_name="nobody/has-this")
    assert (code, MODEL in words) == ("NOT_FOUND", True)
    assert told(model_version="2")[0] == "NOT_FOUND"
    code, words = told(parameters={"temprature": 1})
    assert (code, "temprature" in words) == ("INVALID_ARGUMENT", True)
    code, words = told(parameters={"stream": True})
    assert (code, "ModelStreamInfer" in words) == ("INVALID_ARGUMENT", True)


def test_streams_are_answered_side_by_side(client: triton.InferenceServerClient) -> None:
    """A streamed answer, a whole one and an error share one stream, told apart by their ids."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), headers=HEADERS)
    ask: dict[str, Any] = {"enable_empty_final_response": True}
    client.async_stream_infer(
        MODEL, [text_input("flow")], request_id="a", parameters={"stream": True, "max_tokens": 60}, **ask
    )
    client.async_stream_infer(MODEL, [text_input("b1", "b2")], request_id="b", parameters={"max_tokens": 5}, **ask)
    client.async_stream_infer(MODEL, [text_input("x")], request_id="c", parameters={"temprature": 1})
    client.stop_stream()  # once all has been answered

    pieces: dict[str, list[list[str]]] = {"a": [], "b": []}
    finals, errors = [], []
    while not answers.empty():
        result, error = answers.get()
        if error is not None:
            errors.append(error.message())
        elif result.get_response().parameters["triton_final_response"].bool_param:
            finals.append(result.get_response().id)
        else:
            pieces[result.get_response().id].append(texts_of(result))
    assert "".join(text for (text,) in pieces["a"]) == expected_text(encode("flow"), 60)
    assert len(pieces["a"]) >= 3
    assert pieces["b"] == [[expected_text(encode(text), 5) for text in ("b1", "b2")]]
    assert sorted(finals) == ["a", "b"]
    assert len(errors) == 1
    assert "temprature" in errors[0]


def test_a_stream_that_is_cancelled_frees_its_slots(client: triton.InferenceServerClient, broker: str) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(result), headers=HEADERS)
    parameters = {"stream": True, "max_tokens": 5000, "ignore_eos": True}
    for _ in range(3):
        client.async_stream_infer(MODEL, [text_input("endless")], parameters=parameters)
    assert answers.get(timeout=10) is not None
    with Client(broker) as mesh_client:
        assert mesh_client.status().num_in_flight > 0
        client.stop_stream(cancel_requests=True)
        eventually(lambda: mesh_client.status().num_in_flight == 0, within_s=3)
