"""P4Runtime's messages and gRPC, of the extra `fabric`: nobody here writes protocol buffers by hand."""

from __future__ import annotations

from tallystick.errors import Misuse

try:
    import grpc
    from finsy.proto import p4i, p4r, p4r_grpc, rpc_code, rpc_status
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError
except ImportError as error:
    raise Misuse("switches speak P4Runtime, which is not installed", hint="pip install 'tallystick[fabric]'") from error

__all__ = ["DecodeError", "grpc", "p4i", "p4r", "p4r_grpc", "rpc_code", "rpc_status", "text_format"]
