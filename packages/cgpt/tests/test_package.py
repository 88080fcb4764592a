"""What the package says about itself."""

from pathlib import Path

import cgpt

MEMBER = Path(__file__).parents[1]


def test_the_readme_s_table_names_all_that_is_public() -> None:
    table = (MEMBER / "README.md").read_text(encoding="utf-8").split("## API")[1].split("\n\n")[1]
    assert not [name for name in cgpt.__all__ if f"`{name}`" not in table]
