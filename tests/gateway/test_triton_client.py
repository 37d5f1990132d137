"""Programs written for Triton: through `tritonclient`, and its generate extension through plain HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
triton = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")
httpx = pytest.importorskip("httpx", reason="needs httpx")
np = pytest.importorskip("numpy", reason="needs numpy")

from node.engine.synthetic_vocab import encode, expected_text  # noqa: E402
from tests.gateway.conftest import MODEL  # noqa: E402


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        yield client
    # Collected, it would close itself once more, on whatever thread that happens, which gevent forbids.
    client.close = lambda: None


def text_input(*texts: str, binary: bool = True) -> triton.InferInput:
    tensor = triton.InferInput("text_input", [len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=object), binary_data=binary)
    return tensor


def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("nobody/has-this")
    assert client.get_server_metadata()["name"] == "phi3-mesh"
    assert client.get_model_metadata(MODEL, "1")["inputs"][0]["name"] == "text_input"
    assert client.get_model_config(MODEL)["name"] == MODEL
    assert [entry["name"] for entry in client.get_model_repository_index()] == [MODEL]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_infer_answers_each_text(client: triton.InferenceServerClient, binary_in: bool, binary_out: bool) -> None:
    texts = ("first", "zweiter Süßwarenladen", "第三")
    outputs = [triton.InferRequestedOutput("text_output", binary_data=binary_out)]
    answer = client.infer(
        MODEL, [text_input(*texts, binary=binary_in)], outputs=outputs, parameters={"max_tokens": 15}, request_id="7"
    )
    told = [value.decode() if isinstance(value, bytes) else value for value in answer.as_numpy("text_output")]
    assert told == [expected_text(encode(text), 15) for text in texts]
    assert answer.get_response()["id"] == "7"


def test_parameters_may_be_tensors(client: triton.InferenceServerClient) -> None:
    limit = triton.InferInput("max_tokens", [1], "INT32")
    limit.set_data_from_numpy(np.array([4], dtype=np.int32))
    answer = client.infer(MODEL, [text_input("short"), limit], model_version="1")
    assert answer.as_numpy("text_output")[0].decode() == expected_text(encode("short"), 4)


def test_what_is_wrong_is_said(client: triton.InferenceServerClient) -> None:
    with pytest.raises(triton.InferenceServerException, match="served"):
        client.infer("nobody/has-this", [text_input("x")])
    with pytest.raises(triton.InferenceServerException, match="version"):
        client.infer(MODEL, [text_input("x")], model_version="2")
    with pytest.raises(triton.InferenceServerException, match="temprature"):
        client.infer(MODEL, [text_input("x")], parameters={"temprature": 1})


def test_generate_whole_and_streamed(url: str) -> None:
    ask = {"text_input": "say", "parameters": {"max_tokens": 60}}
    expected = expected_text(encode("say"), 60)
    whole = httpx.post(f"{url}/v2/models/{MODEL}/generate", json=ask)
    assert whole.json()["text_output"] == expected
    streamed = httpx.post(f"{url}/v2/models/{MODEL}/versions/1/generate_stream", json=ask)
    events = [json.loads(line.removeprefix("data: ")) for line in streamed.text.splitlines() if line]
    assert "".join(event["text_output"] for event in events) == expected
    assert len(events) >= 3
