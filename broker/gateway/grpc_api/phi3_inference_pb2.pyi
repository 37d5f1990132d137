from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TextRequest(_message.Message):
    __slots__ = ("prompt", "max_length", "temperature")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    max_length: int
    temperature: float
    def __init__(self, prompt: _Optional[str] = ..., max_length: _Optional[int] = ..., temperature: _Optional[float] = ...) -> None: ...

class TextResponse(_message.Message):
    __slots__ = ("generated_text", "process_time_ms")
    GENERATED_TEXT_FIELD_NUMBER: _ClassVar[int]
    PROCESS_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    generated_text: str
    process_time_ms: int
    def __init__(self, generated_text: _Optional[str] = ..., process_time_ms: _Optional[int] = ...) -> None: ...

class TextChunk(_message.Message):
    __slots__ = ("text_chunk", "is_finished")
    TEXT_CHUNK_FIELD_NUMBER: _ClassVar[int]
    IS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    text_chunk: str
    is_finished: bool
    def __init__(self, text_chunk: _Optional[str] = ..., is_finished: bool = ...) -> None: ...

class BatchTextRequest(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[TextRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[TextRequest, _Mapping]]] = ...) -> None: ...

class BatchTextResponse(_message.Message):
    __slots__ = ("responses",)
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[TextResponse]
    def __init__(self, responses: _Optional[_Iterable[_Union[TextResponse, _Mapping]]] = ...) -> None: ...
