"""docs/cli.md says what the program does."""

from pathlib import Path

from lullm.cli.flag.sampling import NAMES
from lullm.cli.talk.conversation import COMMANDS

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def test_the_commands_of_a_conversation():
    for command in COMMANDS:
        assert f"| `{command}`" in TEXT
    assert f"changes {', '.join(NAMES)} or system" in TEXT
