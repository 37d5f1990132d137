"""What is committed as made from the `.proto` files is what they make."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf", reason="needs protobuf")

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto

ROOT = Path(__file__).parents[2]
PACKAGE = Path("broker/gateway/grpc_api")


def descriptor_in(made: Path) -> bytes:
    """The serialized one, without running the file: two of one name cannot live in one process."""
    for node in ast.walk(ast.parse(made.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "AddSerializedFile"
        ):
            described = ast.literal_eval(node.args[0])
            assert isinstance(described, bytes)
            return described
    raise AssertionError(f"{made} has no descriptor")


def facts_of(parts: Iterable[DescriptorProto | EnumDescriptorProto], outer: str = "") -> Iterator[tuple[object, ...]]:
    """All that the wire depends on."""
    for part in parts:
        name = f"{outer}.{part.name}"
        if isinstance(part, EnumDescriptorProto):
            yield from ((name, value.name, value.number) for value in part.value)
            continue
        yield from ((name, one.name, one.number, one.label, one.type, one.type_name) for one in part.field)
        yield from facts_of(part.nested_type, name)
        yield from facts_of(part.enum_type, name)


def facts_of_file(described: FileDescriptorProto) -> set[tuple[object, ...]]:
    methods = {
        (service.name, method.name, method.input_type, method.output_type, method.client_streaming)
        for service in described.service
        for method in service.method
    }
    return methods | {*facts_of(described.message_type), *facts_of(described.enum_type)}


def test_what_is_spoken_of_kserve_is_what_tritonclient_speaks() -> None:
    triton = pytest.importorskip("tritonclient.grpc", reason="needs tritonclient[grpc]")
    theirs: set[tuple[object, ...]] = set()
    for module in (triton.service_pb2, triton.model_config_pb2):
        theirs |= facts_of_file(FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))
    ours = facts_of_file(FileDescriptorProto.FromString(descriptor_in(ROOT / PACKAGE / "kserve_v2_pb2.py")))
    assert len(ours) > 80
    assert ours <= theirs


@pytest.mark.parametrize("name", ["phi3_inference", "kserve_v2"])
def test_the_stubs_are_those_of_the_contract(tmp_path: Path, name: str) -> None:
    pytest.importorskip("grpc_tools", reason="needs grpcio-tools")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", PACKAGE / f"{name}.proto"]
    subprocess.run(command, cwd=ROOT, check=True)
    made = PACKAGE / f"{name}_pb2.py"
    assert descriptor_in(ROOT / made) == descriptor_in(tmp_path / made)
