"""What the package's parts know of each other."""

from pathlib import Path

MEMBER = Path(__file__).parents[1]


def test_the_mathematics_of_hippo_knows_no_basis() -> None:
    files = (MEMBER / "src" / "ohsvgp" / "hippo").glob("*.py")
    assert not [file.name for file in files if "ohsvgp.bases" in file.read_text(encoding="utf-8")]
