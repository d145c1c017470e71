"""Takes the pictures of the walkthrough in the README: what a newcomer sees in the first minute on
the recording that ships.

    python samples/screens/make_screens.py
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tracer.commands.open import readable_files, source_of
from tracer.tui.app import Explorer
from tracer.tui.look import Look

HERE = Path(__file__).resolve().parent
RECORDING = HERE.parent / "recordings" / "decode_llama8b_modules.json.gz"
SIZE = (104, 32)
# Name of a picture -> keys pressed since the one before.
WALK = {
    "1-overview": (),
    "2-finding": ("down", "enter"),
    "3-timeline": ("enter",),
    "4-launch": (".", "l"),
    "5-modules": ("3",),
    "6-kernels": ("4",),
}


async def settle(explorer: Explorer) -> None:
    """Wait until the shown screen has its numbers."""
    while explorer.view is None or explorer.view.model is None or explorer.pending:
        await asyncio.sleep(0.02)
        if explorer.crash is not None:
            raise explorer.crash


async def walk() -> None:
    sources = [source_of(path) for path in readable_files([str(RECORDING)])]
    explorer = Explorer(sources, look=Look())
    async with explorer.run_test(size=SIZE) as pilot:
        for name, keys in WALK.items():
            await settle(explorer)
            for key in keys:
                explorer.press(key, key if len(key) == 1 else None)
                await settle(explorer)
                await pilot.pause()
            await pilot.pause()
            picture = explorer.export_screenshot(title="tracer open", simplify=True)
            (HERE / f"{name}.svg").write_text(picture, encoding="utf-8")
            print(f"wrote {HERE / name}.svg")


if __name__ == "__main__":
    asyncio.run(walk())
