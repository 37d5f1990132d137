"""`phi3_inference.Phi3Inference` through its generated stubs, and what stands around it: health, reflection, keys."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
grpc = pytest.importorskip("grpc", reason="needs grpcio")
pytest.importorskip("grpc_health", reason="needs grpcio-health-checking")
pytest.importorskip("grpc_reflection", reason="needs grpcio-reflection")

from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: E402
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse  # noqa: E402
from grpc_health.v1.health_pb2_grpc import HealthStub  # noqa: E402
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (  # noqa: E402
    ProtoReflectionDescriptorDatabase,
)
from grpc_reflection.v1alpha.reflection_pb2 import (  # noqa: E402
    ServerReflectionRequest,
    ServerReflectionResponse,
)

from broker.gateway.config import GatewayConfig  # noqa: E402
from broker.gateway.grpc_api.phi3_inference_pb2 import BatchTextRequest, TextRequest, TextResponse  # noqa: E402
from broker.gateway.grpc_api.phi3_inference_pb2_grpc import Phi3InferenceStub  # noqa: E402
from mesh import Client  # noqa: E402
from mesh.errors import ConfigError  # noqa: E402
from node.engine.synthetic_vocab import encode, expected_text, natural_length, story_key  # noqa: E402
from tests.gateway.conftest import MODEL  # noqa: E402
from tests.gateway.support import gateway_for, wait_until_ready  # noqa: E402
from tests.gateway.support_grpc import GRPC, grpc_address  # noqa: E402
from tests.support.eventually import eventually  # noqa: E402
from tests.support.processes import Member, Mesh, mesh_in  # noqa: E402

Code = grpc.StatusCode
KEY = "sk-grpc-0123456789"


@pytest.fixture(scope="module")
def grpc_gateway(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with gateway_for(tmp_path_factory.mktemp("grpc"), broker, *GRPC, "--default-max-tokens", "12") as gateway:
        wait_until_ready(gateway.address)
        yield gateway


@pytest.fixture(scope="module")
def channel(grpc_gateway: Member) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(grpc_address(grpc_gateway)) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> Phi3InferenceStub:
    return Phi3InferenceStub(channel)


def code_and_words(call: object, *args: object, **options: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **options)  # type: ignore[operator]
    return caught.value.code(), caught.value.details()


def test_a_text_whole_and_streamed_is_the_same(stub: Phi3InferenceStub) -> None:
    request = TextRequest(prompt="Süßwaren 第三", max_length=60)
    whole = stub.GenerateText(request)
    assert whole.generated_text == expected_text(encode(request.prompt), 60)
    assert 0 < whole.process_time_ms < 60_000
    chunks = list(stub.GenerateTextStream(request))
    assert "".join(chunk.text_chunk for chunk in chunks) == whole.generated_text
    assert [chunk.is_finished for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert len(chunks) >= 3


def test_a_batch_is_answered_in_order(stub: Phi3InferenceStub) -> None:
    requests = [TextRequest(prompt=f"text {number}", max_length=number + 1) for number in range(5)]
    answer = stub.BatchGenerateText(BatchTextRequest(requests=requests))
    expected = [expected_text(encode(request.prompt), request.max_length) for request in requests]
    assert [response.generated_text for response in answer.responses] == expected
    assert not stub.BatchGenerateText(BatchTextRequest()).responses


def test_no_max_length_is_the_default_and_gzip_is_taken(stub: Phi3InferenceStub) -> None:
    request = TextRequest(prompt="short " * 500)
    answer = stub.GenerateText(request, compression=grpc.Compression.Gzip)
    assert answer.generated_text == expected_text(encode(request.prompt), 12)


def test_a_long_answer_comes_gzipped_a_short_one_and_a_stream_do_not(grpc_gateway: Member) -> None:
    prompts = (f"zip {number}" for number in range(100))
    prompt = next(prompt for prompt in prompts if natural_length(story_key(encode(prompt))) > 600)
    options = [("grpc.per_message_decompression", 0)]  # so that the bytes are those of the wire
    with grpc.insecure_channel(grpc_address(grpc_gateway), options=options) as channel:

        def ask(max_length: int) -> bytes:
            call = channel.unary_unary(
                "/phi3_inference.Phi3Inference/GenerateText", request_serializer=TextRequest.SerializeToString
            )
            return bytes(call(TextRequest(prompt=prompt, max_length=max_length)))

        long, short = ask(600), ask(20)
        first = next(iter(Phi3InferenceStub(channel).GenerateTextStream(TextRequest(prompt=prompt, max_length=20))))
    text = expected_text(encode(prompt), 600)
    assert TextResponse.FromString(gzip.decompress(long)).generated_text == text
    assert len(long) < len(text.encode()) * 0.7
    assert TextResponse.FromString(short).generated_text == expected_text(encode(prompt), 20)
    assert text.startswith(first.text_chunk)


def test_a_model_is_chosen_by_metadata(stub: Phi3InferenceStub) -> None:
    request = TextRequest(prompt="x", max_length=1)
    assert stub.GenerateText(request, metadata=(("model", MODEL),)).generated_text
    code, words = code_and_words(stub.GenerateText, request, metadata=(("model", "nobody/has-this"),))
    assert code is Code.NOT_FOUND
    assert MODEL in words


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_length", {"max_length": -1}),
        ("max_length", {"max_length": 2_000_000}),
        ("temperature", {"temperature": -0.5}),
        ("temperature", {"temperature": float("nan")}),
    ],
)
def test_a_wrong_field_is_named(stub: Phi3InferenceStub, field: str, values: dict[str, float]) -> None:
    request = TextRequest(prompt="x", **values)
    code, words = code_and_words(stub.GenerateText, request)
    assert (code, words.split(":")[0]) == (Code.INVALID_ARGUMENT, field)
    code, words = code_and_words(lambda: list(stub.GenerateTextStream(request)))
    assert (code, words.split(":")[0]) == (Code.INVALID_ARGUMENT, field)
    batch = BatchTextRequest(requests=[TextRequest(prompt="good", max_length=1), request])
    code, words = code_and_words(stub.BatchGenerateText, batch)
    assert (code, words.split(":")[0]) == (Code.INVALID_ARGUMENT, f"requests[1].{field}")


def test_what_is_too_large_is_refused(stub: Phi3InferenceStub) -> None:
    assert code_and_words(stub.GenerateText, TextRequest(prompt="x" * (9 << 20)))[0] is Code.RESOURCE_EXHAUSTED


def test_reflection_lists_the_services(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {"phi3_inference.Phi3Inference", "inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(
        database.get_services()
    )
    described = database.FindFileContainingSymbol("phi3_inference.Phi3Inference")
    assert [method.name for method in described.service[0].method] == [
        "GenerateText",
        "GenerateTextStream",
        "BatchGenerateText",
    ]


def test_reflection_has_its_newer_name_too(channel: grpc.Channel) -> None:
    """`grpcurl` and others ask for v1 first, some for nothing else; the messages are those of v1alpha."""
    ask = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=ServerReflectionRequest.SerializeToString,
        response_deserializer=ServerReflectionResponse.FromString,
    )
    asked = [
        ServerReflectionRequest(list_services=""),
        ServerReflectionRequest(file_containing_symbol="phi3_inference.Phi3Inference"),
    ]
    listed, described = ask(iter(asked))
    names = [service.name for service in listed.list_services_response.service]
    assert {"phi3_inference.Phi3Inference", "inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(names)
    file = FileDescriptorProto.FromString(described.file_descriptor_response.file_descriptor_proto[0])
    assert file.package == "phi3_inference"


def test_an_address_that_is_taken_is_said(grpc_gateway: Member, broker: str) -> None:
    options = ["--bind", "127.0.0.1:0", "--broker", broker, "--grpc-bind", grpc_address(grpc_gateway)]
    command = [sys.executable, "-m", "broker.gateway.cli", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert "--grpc-bind: cannot listen on" in ended.stderr


def test_an_address_beyond_loopback_needs_keys() -> None:
    with pytest.raises(ConfigError, match=r"--grpc-bind: .* --api-key-file"):
        GatewayConfig(grpc_bind="*:8001")


def test_a_running_answer_may_end_after_sigterm(broker: str, tmp_path: Path) -> None:
    with gateway_for(tmp_path, broker, *GRPC) as gateway:
        wait_until_ready(gateway.address)
        with grpc.insecure_channel(grpc_address(gateway)) as channel:
            running = Phi3InferenceStub(channel).GenerateTextStream(TextRequest(prompt="run", max_length=100))
            first = next(running)
            gateway.process.terminate()
            text = first.text_chunk + "".join(chunk.text_chunk for chunk in running)
        assert text == expected_text(encode("run"), 100)
        assert gateway.process.wait(10) == 0


SMALL = ("--synthetic", "step_base_s=0.02", "--slots", "1")


@dataclass
class Small:
    """One slow node with one slot, straight behind a gateway."""

    mesh: Mesh
    node: Member
    gateway: Member


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    with mesh_in(tmp_path) as mesh:
        node = mesh.node("n1", *SMALL)
        broker = mesh.broker("b1", node)
        keys = tmp_path / "keys"
        keys.write_text(f"alice {KEY}\n")
        options = (*GRPC, "--max-waiting", "3", "--api-key-file", str(keys))
        with gateway_for(tmp_path, broker.address, *options) as gateway:
            wait_until_ready(gateway.address)
            yield Small(mesh, node, gateway)


def test_keys_cancellation_deadlines_overload_and_a_node_that_dies(small: Small) -> None:
    """One mesh for the whole story, as its processes take longer to start than all of this."""
    endless = TextRequest(prompt="long", max_length=1500)
    short = TextRequest(prompt="x", max_length=1)
    known = (("authorization", f"Bearer {KEY}"),)
    with grpc.insecure_channel(grpc_address(small.gateway)) as channel:
        stub, health = Phi3InferenceStub(channel), HealthStub(channel)

        assert code_and_words(stub.GenerateText, short)[0] is Code.UNAUTHENTICATED
        wrong = (("authorization", "Bearer sk-wrong"),)
        assert code_and_words(stub.BatchGenerateText, BatchTextRequest(), metadata=wrong)[0] is Code.UNAUTHENTICATED
        assert stub.GenerateText(short, metadata=known).generated_text

        assert code_and_words(stub.GenerateText, endless, metadata=known, timeout=0.2)[0] is Code.DEADLINE_EXCEEDED
        begun = stub.GenerateTextStream(endless, metadata=known, timeout=0.5)
        assert next(begun).text_chunk
        assert code_and_words(lambda: list(begun))[0] is Code.DEADLINE_EXCEEDED
        running = stub.GenerateTextStream(endless, metadata=known)
        next(running)  # it has the slot now
        code, words = code_and_words(stub.BatchGenerateText, BatchTextRequest(requests=[short] * 4), metadata=known)
        assert code is Code.RESOURCE_EXHAUSTED, words
        running.cancel()
        with Client(small.node.address) as client:
            eventually(lambda: client.status().num_in_flight == 0, within_s=3)
        assert stub.GenerateText(short, metadata=known, timeout=5).generated_text

        assert code_and_words(health.Check, HealthCheckRequest(service="none.such"))[0] is Code.NOT_FOUND
        for service in ("", "phi3_inference.Phi3Inference", "inference.GRPCInferenceService"):
            assert health.Check(HealthCheckRequest(service=service)).status == HealthCheckResponse.SERVING
        watching = health.Watch(HealthCheckRequest(service="phi3_inference.Phi3Inference"), timeout=20)
        assert next(watching).status == HealthCheckResponse.SERVING
        unknown = health.Watch(HealthCheckRequest(service="none.such"), timeout=20)
        assert next(unknown).status == HealthCheckResponse.SERVICE_UNKNOWN
        small.node.kill()
        assert next(watching).status == HealthCheckResponse.NOT_SERVING
        assert health.Check(HealthCheckRequest()).status == HealthCheckResponse.NOT_SERVING
        assert code_and_words(stub.GenerateText, short, metadata=known)[0] is Code.UNAVAILABLE
        small.mesh.node("n1", *SMALL, bind=small.node.address.removeprefix("tcp://"))
        assert next(watching).status == HealthCheckResponse.SERVING

        small.gateway.process.terminate()  # which does not wait for those who watch
        assert [last.status for last in watching] == [HealthCheckResponse.NOT_SERVING]
        assert small.gateway.process.wait(10) == 0
    log = small.gateway.log_text()
    assert KEY not in log
    assert "Traceback" not in log
