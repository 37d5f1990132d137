"""`phi3-node --engine synthetic` with the tokenizer of a model: python -m … FOLDER [options of phi3-node].

The synthetic engine takes the time of a GPU and any token ids. Its own tokens are bytes, which cost nothing to make;
where the agent's work on long prompts is measured, that work has to be real.
"""

from __future__ import annotations

import sys
from pathlib import Path

import node.server
from node.cli import main
from node.text.tokenizer import TextCodec, load_tokenizer


def serve(folder: Path, options: list[str]) -> int:
    def load_codec(engine: str, of_engine: str) -> TextCodec:
        del engine, of_engine
        return load_tokenizer(folder)

    node.server.load_codec = load_codec
    return main(["--engine", "synthetic", *options])


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1]), sys.argv[2:]))
