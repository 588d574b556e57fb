"""Files that would crash a loader, fill the memory or take hours: each ends at once with its name and the bound."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from levelfield.errors import DocumentError, UsageError
from levelfield.node.file_sizes import MAX_BYTES_BY_KIND
from levelfield.specs.bounded_reading import WordDumper, read_mapping
from levelfield.specs.selector import parse_selector

NINE = ", ".join(["*a{}"] * 9)
ALIASES = "\n".join(["a0: &a0 [1, 1]", *(f"a{n}: &a{n} [{NINE.format(*[n - 1] * 9)}]" for n in range(1, 12))])
READ = """
import sys
from pathlib import Path
from levelfield.specs.bounded_reading import read_mapping
read_mapping(Path(sys.argv[1]), "case")
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("deep.yaml", "[" * 100_000, "found more than 100 nested levels"),
        ("deep.yaml", "{a: " * 50_000, "found more than 100 nested levels"),
        ("deep.yaml", "- " * 50_000 + "1", "found more than 100 nested levels"),
        ("deep.json", "[" * 100_000 + "]" * 100_000, "nested too deep"),
        ("aliases.yaml", ALIASES, "found more than 1,000,000 values"),
        ("key.yaml", "[1, 2]: 3", "found a list as a key, expected a text"),
        ("key.yaml", "{a: 1}: 3", "found a dict as a key, expected a text"),
        ("number.yaml", "a: " + "9" * 400, "found a number of 400 digits, expected at most 25"),
        ("number.json", '{"a": ' + "9" * 400 + "}", "found a number of 400 digits, expected at most 25"),
        ("number.json", '{"a": ' + "9" * 5000 + "}", "found a number of 5000 digits"),
    ],
    ids=lambda value: value[:12],
)
def test_a_hostile_file_is_an_error_with_its_name(tmp_path: Path, name: str, text: str, message: str) -> None:
    """In a process of its own, as a loader that is too deep ends the process."""
    path = written(tmp_path, name, text)
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1, done.returncode
    last = done.stderr.splitlines()[-1]
    assert "DocumentError" in last and name in last and message in last


def test_a_file_beyond_the_size_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAX_BYTES_BY_KIND, "case", 10)
    with pytest.raises(DocumentError, match=r"large\.yaml: .*\b11\b.*\b10 of a case file$"):
        read_mapping(written(tmp_path, "large.yaml", "a: 12345678"), "case")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x {b: 1}\nc: {<<: *x, d: 0x1f}", {"a": {"b": 1}, "c": {"b": 1, "d": 31}}),
        ("[" * 99 + "]" * 99, None),
        ("a: 18446744073709551615", {"a": 2**64 - 1}),
        ("a: -12000", {"a": -12000}),
    ],
)
def test_honest_files_are_read_as_before(tmp_path: Path, text: str, content: object) -> None:
    mapping = read_mapping(written(tmp_path, "good.yaml", text), "case")
    assert content is None or mapping == content


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("017", "which is 15 in YAML 1.1 and 17 in YAML 1.2; write 15, 17 or '017'"),
        ("-010", "which is -8 in YAML 1.1 and -10 in YAML 1.2; write -8, -10 or '-010'"),
        ("08", "which is a text in YAML 1.1 and 8 in YAML 1.2; write 8 or '08'"),
        ("1:30", "which is 90 in YAML 1.1 and a text in YAML 1.2; write 90 or '1:30'"),
        ("1:30.5", "which is 90.5 in YAML 1.1"),
        ("1_000", "which is 1000 in YAML 1.1 and a text in YAML 1.2; write 1000 or '1_000'"),
        ("1_0.5", "which is 10.5 in YAML 1.1"),
        ("0b11", "which is 3 in YAML 1.1"),
        ("-0x1F", "which is -31 in YAML 1.1"),
        ("yes", "which is true in YAML 1.1 and a text in YAML 1.2; write true or 'yes'"),
        ("OFF", "which is false in YAML 1.1 and a text in YAML 1.2; write false or 'OFF'"),
        ("1" * 400 + "_1", "which is not the same in YAML 1.1 and 1.2"),
    ],
    ids=lambda value: value[:8],
)
def test_a_word_that_two_versions_of_yaml_read_differently_is_refused(tmp_path: Path, word: str, message: str) -> None:
    for text in (f"a: 1\n{word}: b", f"a: 1\nb: {word}", f"a: 1\nb: [{word}]", f"a: 1\nb: {{c: {word}}}"):
        path = written(tmp_path, "a.yaml", text + "\n")
        with pytest.raises(DocumentError) as refusal:
            read_mapping(path, "case")
        place = re.escape(f"{path}: line 2, `{text[5:65]}`:")
        assert re.search(rf"{place}.*{re.escape(word[:25])}", str(refusal.value)) and message in str(refusal.value)
    for quoted in (f"'{word}'", f'"{word}"'):
        assert read_mapping(written(tmp_path, "a.yaml", f"b: {quoted}"), "case") == {"b": word}


def test_other_words_are_read_by_yaml_1_2(tmp_path: Path) -> None:
    expected = {
        **{"1e3": 1000.0, "1e-5": 1e-5, "1.0e3": 1000.0, "+.5": 0.5, "0o17": 15, "0x1F": 31, "-0": 0, "007": 7},
        **{"true": True, "FALSE": False, "~": None, "Null": None, "tRUE": "tRUE", "2024-01-31": "2024-01-31"},
        **{"1.2.3": "1.2.3", "10.0.0.1:8080": "10.0.0.1:8080", "12:70": "12:70", "=": "=", "1,000": "1,000"},
    }
    for word, value in expected.items():
        found = read_mapping(written(tmp_path, "a.yaml", f"b: {word}"), "case")["b"]
        assert (type(found), found) == (type(value), value), word


def test_what_show_prints_is_read_back(tmp_path: Path) -> None:
    content = {"a": ["1e3", "0o17", "017", "y", "no", "1_000", "2024-01-31", "08", "plain"], "b": [1e-5, 3, True, None]}
    text = yaml.dump(content, Dumper=WordDumper)
    assert read_mapping(written(tmp_path, "a.yaml", text), "case") == content and "- plain\n" in text


@pytest.mark.parametrize("text", ["!!bool maybe", "!!timestamp x", "!!float ''", "!!int x", "!other x"])
def test_a_tag_that_does_not_fit_its_value_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(DocumentError, match=r": not.*yaml"):
        read_mapping(written(tmp_path, "a.yaml", f"b: {text}"), "case")


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ("10000000000", "nodes: found '10000000000', expected a whole number from 1 to 100000"),
        ("1:10000000000", "devices: found '10000000000', expected a whole number from 1 to 1024"),
        ("1:8:99999999", "repeats: found '99999999', expected a whole number from 1 to 1000"),
        ("1:8:" + "9" * 400, "from 1 to 1000"),
    ],
    ids=lambda value: value[:12],
)
def test_numbers_far_above_what_exists_are_refused(counts: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"{message}$"):
        parse_selector(f"gpt3_6.7B:torch:H100:{counts}")
