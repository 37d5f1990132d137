"""The page's playground with a model that can speak."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")

from tests.gateway.support import gateway_for, wait_until_ready
from tests.gateway.support_page import answer, ask, chromium, expect, live, page_of
from tests.support.processes import mesh_in

pytestmark = [pytest.mark.model, pytest.mark.slow]


def test_the_demo_model_answers_in_the_page(tmp_path: Path, model_home: Path) -> None:
    with mesh_in(tmp_path) as mesh, chromium() as browser:
        node = mesh.node("demo", "--model", "demo", env={"PHI3_MESH_HOME": str(model_home)})
        with gateway_for(tmp_path, node.address) as gateway:
            wait_until_ready(gateway.address, within_s=110)
            with page_of(browser, gateway.address) as page:
                ask(live(page), "What is the capital of France?", temperature="0", max_tokens="12")
                expect(answer(page).locator(".turn-text")).to_contain_text("Paris")
                expect(answer(page).locator(".turn-footer")).to_contain_text("demo · first token")
