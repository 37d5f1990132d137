"""The demo model behind the gateway: an existing OpenAI program gets a real answer."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
openai = pytest.importorskip("openai", reason="needs the openai package")

from tests.gateway.support import gateway_for, wait_until_ready  # noqa: E402
from tests.support.processes import mesh_in  # noqa: E402

pytestmark = [pytest.mark.model, pytest.mark.slow]


def test_the_demo_model_knows_the_capital_of_france(tmp_path: Path, model_home: Path) -> None:
    with mesh_in(tmp_path) as mesh:
        node = mesh.node("demo", "--model", "demo", env={"PHI3_MESH_HOME": str(model_home)})
        with gateway_for(tmp_path, node.address) as gateway:
            wait_until_ready(gateway.address, within_s=110)
            with openai.OpenAI(base_url=f"{gateway.address}/v1", api_key="-") as client:
                stream = client.chat.completions.create(
                    model="demo", temperature=0, max_tokens=12, stream=True,
                    messages=[{"role": "user", "content": "What is the capital of France?"}],
                )  # fmt: skip
                text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "Paris" in text
