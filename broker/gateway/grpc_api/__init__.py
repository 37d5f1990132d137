"""The gateway's gRPC door: `phi3_inference.Phi3Inference`, Triton's `inference.GRPCInferenceService`, health.

The `_pb2` files are made from the `.proto` files beside them, at the root of the repository, with grpcio-tools 1.71.2
(older than what most have installed, since what it makes runs with that version and all later ones):

    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. broker/gateway/grpc_api/*.proto
"""
