"""The client library. Use it as `from mesh import Client`."""
