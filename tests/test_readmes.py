"""Every code block of every README, and of every page of the site, works.

Python blocks run, in the order of the page, as one script; those of `Extend` under pytest. Shell
blocks are not run, because they install, download or train: each command line is given to the real
parser of its program instead.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
READMES = sorted(
    path
    for pattern in ("*.md", "shared/*.md", "apps/*.md", "packages/*/*.md", "apps/docs/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
# The glossary has the papers' symbols too.
WITHOUT_PAPERS = [readme for readme in READMES if readme.name != "GLOSSARY.md"]
FENCE = re.compile(r"^ *```(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^ *```$", re.M | re.S)
LANGUAGES = {"python", "bash", "text", "bibtex", "json", "toml"}

# Parsing comes before torch in the command line, so reaching torch proves that the flags are right.
PARSED = 77
PARSE_ONLY = f"""
import contextlib, io, json, sys, traceback
class StopAtTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise SystemExit({PARSED})
sys.meta_path.insert(0, StopAtTorch())
from probseq_apps.cli import main
sys.argv[0] = "probseq"
for line in sys.stdin:
    told = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            code = main(json.loads(line))
        except SystemExit as stop:
            code = stop.code or 0
        except Exception:
            traceback.print_exc()
            code = 1
    print(json.dumps([code, told.buffer.getvalue().decode()]), flush=True)
"""


class Programs(NamedTuple):
    """The programs that a README names."""

    uv: str
    probseq: Callable[[list[str]], tuple[int, str]]  # exit status and text for arguments
    folder: Path


@pytest.fixture(scope="module")
def programs(uv: str, tmp_path_factory) -> Iterator[Programs]:
    folder = tmp_path_factory.mktemp("commands")
    with subprocess.Popen(
        [sys.executable, "-c", PARSE_ONLY],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parser:
        assert parser.stdin is not None
        assert parser.stdout is not None

        def parse(arguments: list[str]) -> tuple[int, str]:
            print(json.dumps(arguments), file=parser.stdin, flush=True)
            return tuple(json.loads(parser.stdout.readline()))

        yield Programs(uv, parse, folder)
        parser.stdin.close()


def blocks(readme: Path, language: str) -> list[tuple[int, str]]:
    """Return the fenced blocks of one language with the line that each body begins on."""
    text = readme.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start("body")) + 1, textwrap.dedent(match["body"]))
        for match in FENCE.finditer(text)
        if match["language"] == language
    ]


def shell_commands(readme: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the simple commands of the shell blocks, split into words, with their lines."""
    for first_line, body in blocks(readme, "bash"):
        joined = re.sub(r"\\\n", "  ", body)
        for offset, line in enumerate(joined.splitlines()):
            lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
            lexer.whitespace_split = True
            command: list[str] = []
            for word in [*lexer, "&&"]:
                if not set(word) <= set("&|;"):
                    command.append(word)
                elif command:
                    yield first_line + offset, command
                    command = []


def readmes_with(language: str) -> list[Path]:
    return [readme for readme in READMES if blocks(readme, language)]


def name_of(readme: Path) -> str:
    return str(readme.relative_to(ROOT))


def check_paths(words: list[str]) -> None:
    for word in words:
        path = word.partition("::")[0].partition("[")[0]
        if not word.startswith("-") and ("/" in path or path == "tests"):
            assert (ROOT / path).exists(), f"{word} is not in the repository"


def check_installed_paths(words: list[str]) -> None:
    words = [word for word in words if not word.startswith("dist/")]  # made by `uv build`
    check_paths(words)
    for word in words:
        if word.startswith("./") and "*" not in word:
            project = ROOT / word.partition("[")[0] / "pyproject.toml"
            assert project.exists(), f"{word} cannot be installed: it has no pyproject.toml"


def check_probseq(arguments: list[str], programs: Programs) -> None:
    code, told = programs.probseq(arguments)
    # 1: refused for what the arguments name (a folder that is not here), not for the arguments.
    assert code in {0, PARSED} or (code == 1 and "Traceback" not in told), told


def check_uv(words: list[str], programs: Programs) -> None:
    if words[0] == "run":
        # Options come first; each that takes a value is followed by it.
        takes_value = {"--package", "--extra", "--group", "--python", "--with", "--directory"}
        end = 1
        while end < len(words) and words[end].startswith("-"):
            end += 2 if words[end] in takes_value else 1
        options, wrapped = words[:end], words[end:]
        check_command(wrapped, programs)
    else:
        options = words
        check_installed_paths(words)
    refused = uv_error((programs.uv, *options), programs.folder)
    assert not refused, refused


@cache
def uv_error(command: tuple[str, ...], folder: Path) -> str:
    """With --help uv still refuses options that it doesn't know, and does nothing else."""
    finished = subprocess.run(
        [*command, "--help"], cwd=folder, capture_output=True, text=True, check=False
    )
    return finished.stderr if finished.returncode else ""


def check_command(words: list[str], programs: Programs) -> None:
    """Raise if a command line of a README would be refused."""
    while "=" in words[0]:  # NAME=value before a command
        words = words[1:]
    program, arguments = words[0], words[1:]
    if program == "uv":
        check_uv(arguments, programs)
    elif program == "probseq":
        check_probseq(arguments, programs)
    elif program == "torchrun":
        start = arguments.index("-m")
        assert arguments[start + 1] == "probseq_apps"
        check_probseq(arguments[start + 2 :], programs)
    elif program == "pip":
        assert arguments[0] == "install"
        check_installed_paths(arguments[1:])
    elif program in {"python", "python3"} and arguments[:1] == ["-m"]:
        check_command(arguments[1:], programs)
    elif program in {"pytest", "ruff", "pyright", "bash", "python"}:
        check_paths(arguments)
    else:
        assert program in {"cd", "git"}, f"{program}: teach this test how to check it"


def test_there_is_a_readme_for_every_member_and_for_the_whole(members) -> None:
    assert {member.path / "README.md" for member in members} | {ROOT / "README.md"} <= set(READMES)


@pytest.mark.parametrize("readme", READMES, ids=name_of)
def test_blocks_are_closed_and_say_their_language(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    assert len(re.findall(r"^ *```", text, re.M)) == 2 * len(found)
    assert {match["language"] for match in found} <= LANGUAGES


@pytest.mark.parametrize(
    "readme",
    [
        # The examples of the five methods and of the site train something.
        pytest.param(
            path, marks=pytest.mark.slow if {"packages", "docs"} & set(path.parts[-4:]) else ()
        )
        for path in readmes_with("python")
    ],
    ids=name_of,
)
def test_python_blocks_run(readme: Path, tmp_path: Path) -> None:
    # Each block stays on its own lines, so that a traceback points into the README.
    script: list[str] = []
    for first_line, body in blocks(readme, "python"):
        script += [""] * (first_line - 1 - len(script)) + body.splitlines()
    path = tmp_path / f"{readme.parent.name}_{readme.stem}.py"
    path.write_text("\n".join(script) + "\n", encoding="utf-8")
    suite = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] * (readme.parent.name == "extend")
    finished = subprocess.run(
        [sys.executable, *suite, path.name],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.parametrize("readme", readmes_with("bash"), ids=name_of)
def test_shell_blocks_are_accepted_by_their_programs(readme: Path, programs: Programs) -> None:
    refused = []
    for line, words in shell_commands(readme):
        try:
            check_command(words, programs)
        except AssertionError as error:
            refused.append(f"{name_of(readme)}:{line}: {shlex.join(words)}\n{error}")
    assert not refused, "\n\n".join(refused)


@cache
def known_words() -> set[str]:
    """Return all words of sources, settings, and tests."""
    files = [
        *ROOT.glob("*/**/*.py"),
        *ROOT.glob("packages/**/*.toml"),
        *ROOT.glob("apps/**/*.toml"),
    ]
    texts = (file.read_text(encoding="utf-8") for file in files if ".venv" not in file.parts)
    return set(re.findall(r"\w+", " ".join(texts)))


@pytest.mark.parametrize("readme", WITHOUT_PAPERS, ids=name_of)
def test_names_in_texts_are_those_of_the_code(readme: Path) -> None:
    text = FENCE.sub("", readme.read_text(encoding="utf-8"))
    assert set(re.findall(r"`([A-Za-z_]\w*)`", text)) <= known_words() | {"DIR", "raw_NAME"}


@pytest.mark.parametrize("readme", READMES, ids=name_of)
def test_relative_links_lead_somewhere(readme: Path) -> None:
    text = FENCE.sub("", readme.read_text(encoding="utf-8"))
    targets = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", text)
    paths = [readme.parent / target for target in targets]
    assert not [path for path in paths if not path.exists()]


@pytest.mark.parametrize("script", sorted((ROOT / "apps/docs/learn").glob("*.py")), ids=name_of)
def test_the_page_of_a_tutorial_is_that_of_its_script(script: Path) -> None:
    page, end = script.with_suffix(".md").read_text(encoding="utf-8"), 0
    cells = re.split(r"^# %%( \[markdown\])?\n", script.read_text(encoding="utf-8"), flags=re.M)
    for words, cell in zip(cells[1::2], cells[2::2], strict=True):
        text = re.sub(r"^# ?", "", cell, flags=re.M) if words else f"```python\n{cell}"
        assert text.rstrip() in page[end:], "write it again: python apps/docs/hooks/tutorials.py"
        end = page.index(text.rstrip(), end)
    assert page.count("```python") == cells.count(None)
    pictures = re.findall(rf"\]\((pictures/{script.stem}_[^)]+)\)", page)
    assert pictures
    made = {f"pictures/{path.name}" for path in script.parent.glob(f"pictures/{script.stem}_*.png")}
    assert made == set(pictures)
