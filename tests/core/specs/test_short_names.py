"""Texts that are clipped, and digests that are shortened."""

from __future__ import annotations

from levelfield.specs.short_names import clipped, short_digest, short_kernel, short_value


def test_a_text_is_clipped_only_where_it_is_too_long() -> None:
    assert [clipped("a" * n, 6) for n in (0, 6, 7, 99)] == ["", "aaaaaa", "aaa...", "aaa..."]


def test_a_digest_is_shown_without_its_algorithm() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    assert short_digest(digest) == "0123456789" and short_digest(digest, 16) == "0123456789abcdef"
    assert short_digest("0123456789abcdef", 6) == "012345"
    assert short_value(digest) == "sha256:0123456789ab" and short_value("0123456789" * 4) == "012345678901"
    assert [short_value(text) for text in ("None", "g" * 40, "a" * 41)] == ["None", "g" * 40, "a" * 41]


def test_a_kernel_loses_its_namespaces_and_no_part_of_a_word() -> None:
    assert short_kernel("void at::native::copy<std::complex>") == "copy<complex>"
    assert short_kernel("concat::run, avoid x") == "concat::run, avoid x"
