"""The terminal app over a scripted host, as a separate process.

`python app_over_script.py SCRIPT.json ARGUMENTS...` runs `hearth ARGUMENTS...` over the script (see
`fake_host`). With "breaks": "text" in the script, the key for a new chat raises an error with that
text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fake_host


def main() -> int:
    from hearth.app.cli.main import main as hearth
    from hearth.backends.host import client

    script = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    client.HostClient = fake_host.FakeHost(script)  # type: ignore[misc,assignment]
    if "breaks" in script:
        from hearth.app.tui.screens.chat import ChatScreen

        def fail(_: ChatScreen, command: str) -> None:
            raise RuntimeError(script["breaks"])

        ChatScreen.action_command = fail  # type: ignore[method-assign,assignment]
    return hearth(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
