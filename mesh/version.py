"""The version of the software (the protocol has its own, in mesh.messages)."""

__version__ = "0.1.0"
