"""The arms of pairs plan the same containers again."""

from __future__ import annotations

import pytest
from levelfield.catalog.registry import Registry
from levelfield.nights.build_pairs import case_arguments
from plans import make_plan


@pytest.mark.parametrize("image", ["other:1", None])
def test_the_arms_take_the_image_that_the_user_names_and_no_other(image: str | None) -> None:
    """Without one each build takes the image of its own vendor's file."""
    plan = make_plan(Registry(), "gpt3_6.7B:torch:cpu:1:1", scale="smoke", runtime="docker", base_image=image or "a:1")
    assert plan.container
    if image is None:
        recipe = plan.container.image
        own = recipe.model_copy(update={"base": recipe.base.model_copy(update={"source": "the vendor's file"})})
        plan = plan.model_copy(update={"container": plan.container.model_copy(update={"image": own})})
    words = case_arguments(plan)
    assert ("--base-image" in words) == (image is not None)
    assert words[words.index("--runtime") + 1] == "docker"
    assert image is None or words[words.index("--base-image") + 1] == image


def test_arms_without_containers_name_none() -> None:
    words = case_arguments(make_plan(Registry(), "gpt3_6.7B:torch:cpu:1:1", scale="smoke"))
    assert not {"--base-image", "--runtime"} & set(words)
