"""`--quantize`: weights made smaller while they are loaded. What runs them is transformers' choice of library.

Names the methods without importing any of them: torch is loaded by `config_for` alone.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Method:
    """`label` is what status shows; `package` is what has to be installed."""

    label: str
    package: str
    build: Callable[[Any], Any]  # from the torch dtype to a quantization_config
    gpu_only: bool = False
    requirement: str = ""  # what to tell pip, if not the package's name


def _bnb_8bit(dtype: Any) -> Any:
    from transformers import BitsAndBytesConfig

    # LLM.int8() (arXiv 2208.07339) keeps the columns with outliers in 16 bits, and finds them in the whole batch: with
    # it, and it alone, an answer depends on who else is answered at the same time.
    return BitsAndBytesConfig(load_in_8bit=True)


def _bnb_4bit(dtype: Any) -> Any:
    from transformers import BitsAndBytesConfig

    # NF4 with quantised constants is the setting of the QLoRA paper (arXiv 2305.14314): 0.4 bits a weight for free.
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def _torchao(config_name: str, **options: Any) -> Callable[[Any], Any]:
    def build(dtype: Any) -> Any:
        from transformers import TorchAoConfig

        methods = importlib.import_module("torchao.quantization")
        return TorchAoConfig(getattr(methods, config_name)(**options))

    return build


def _gguf(dtype: Any) -> Any:
    from transformers import GgufConfig

    return GgufConfig(dequantize=False)


_METHODS = {
    "bnb-8bit": Method("int8 (bitsandbytes)", "bitsandbytes", _bnb_8bit),
    "bnb-4bit": Method("nf4 (bitsandbytes)", "bitsandbytes", _bnb_4bit),
    "torchao-int8": Method("int8 (torchao)", "torchao", _torchao("Int8WeightOnlyConfig")),
    # The layout whose kernel is part of torch; torchao's default one needs a further package.
    "torchao-int4": Method(
        "int4 (torchao)", "torchao", _torchao("Int4WeightOnlyConfig", int4_packing_format="tile_packed_to_4d"), True
    ),
    "torchao-fp8": Method("float8 (torchao)", "torchao", _torchao("Float8WeightOnlyConfig")),
    "gguf": Method("gguf", "kernels", _gguf, requirement="'kernels>=0.18.2,<0.19'"),  # the versions transformers takes
}
METHODS = ("none", *_METHODS)


def config_for(name: str, dtype: Any, device_type: str) -> Any:
    """The `quantization_config` for `from_pretrained`, None for "none". `dtype` is what is computed in.

    Raises ValueError for an unknown name, a device on which the method does not run, or a package that is missing.
    """
    if name == "none":
        return None
    method = _method(name)
    if method.gpu_only and device_type == "cpu":
        raise ValueError(f"--quantize {name} runs on a GPU only: on a CPU use torchao-int8 or bnb-4bit")
    if importlib.util.find_spec(method.package) is None:
        wanted = method.requirement or method.package
        raise ValueError(f"--quantize {name} needs the package {method.package}: run `pip install {wanted}`")
    return method.build(dtype)


def label_for(name: str, dtype_name: str) -> str:
    """The precision of the weights, for status: "int8 (torchao)", or the dtype itself."""
    return dtype_name if name == "none" else _method(name).label


def _method(name: str) -> Method:
    if name not in _METHODS:
        raise ValueError(f"--quantize: {name!r} is none of {', '.join(METHODS)}")
    return _METHODS[name]
