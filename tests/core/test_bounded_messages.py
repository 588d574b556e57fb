"""What a message of an error prints at most."""

from __future__ import annotations

from levelfield.errors import bounded_message


def test_a_message_stays_as_it_is() -> None:
    text = "\n".join(f"line {number}" for number in range(60))
    assert bounded_message(text) == text and bounded_message("") == ""


def test_of_a_long_line_and_of_many_lines_the_rest_is_counted() -> None:
    long = bounded_message("a" * 30_000_000 + "; expected b")
    assert long == "a" * 3_000 + " ... 29,996,012 more characters ... " + "a" * 988 + "; expected b"
    assert bounded_message("a\n" * 20_000).splitlines()[-1] == "... and 19,941 more lines"
    assert len(bounded_message(("a" * 100_000 + "\n") * 100)) < 30_000
