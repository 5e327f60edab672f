import math
from decimal import Decimal
from fractions import Fraction

import pytest

from osmosis_core import Grader, GraderContext, RolloutSample, SampleError


class Scalar:
    """Like a NumPy scalar: a number by way of `__float__`."""

    def __float__(self):
        return 0.25


def context(*ids, **fields):
    return GraderContext(samples={name: RolloutSample(id=name) for name in ids}, **fields)


@pytest.mark.parametrize(
    ("reward", "number"),
    [
        (1, 1.0),
        (-0.5, -0.5),
        (True, 1.0),
        (False, 0.0),
        (Scalar(), 0.25),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 4), 0.25),
    ],
)
def test_reward_is_anything_that_is_a_finite_number(reward, number):
    ctx = context("a")
    ctx.set_reward(reward)
    assert type(ctx.sample.reward) is float and ctx.sample.reward == number


@pytest.mark.parametrize(
    "reward",
    [math.nan, math.inf, -math.inf, Decimal("NaN"), 10**400, "1.0", b"1", None, [1.0], 1j, {}],
)
def test_reward_that_is_not_a_finite_number_is_refused(reward):
    ctx = context("a")
    with pytest.raises(ValueError, match=r"reward of sample 'a' is .*; give a finite number"):
        ctx.set_sample_reward("a", reward)
    assert ctx.sample.reward is None


def test_refused_reward_leaves_the_one_before():
    ctx = context("a")
    ctx.set_reward(0.5)
    with pytest.raises(ValueError, match="finite"):
        ctx.set_reward(math.nan)
    assert ctx.sample.reward == 0.5


def test_last_reward_wins():
    ctx = context("a")
    ctx.set_reward(0.5)
    ctx.set_reward(1)
    assert ctx.sample.reward == 1.0


def test_unknown_sample_is_an_error_that_lists_the_known_ones():
    with pytest.raises(SampleError, match="no sample 'c' in this rollout; there is a, b"):
        context("a", "b").set_sample_reward("c", 1.0)


def test_unknown_sample_is_a_value_error_too():
    with pytest.raises(ValueError, match="there is none"):
        context().set_sample_reward("a", 1.0)


def test_sample_is_the_only_one():
    ctx = context("a")
    assert ctx.sample is ctx.samples["a"]


def test_sample_of_none_is_an_error():
    with pytest.raises(SampleError, match="needs exactly one sample; there is none"):
        _ = context().sample


def test_sample_of_two_is_an_error_that_names_them():
    with pytest.raises(SampleError, match=r"there is a, b; use ctx\.samples"):
        context("a", "b").set_reward(1.0)


def test_get_samples_is_the_documented_name_of_samples():
    ctx = context("a", "b")
    assert ctx.get_samples() is ctx.samples


def test_context_carries_label_and_metadata():
    ctx = context(label="42", metadata={"level": 3})
    assert (ctx.label, ctx.metadata) == ("42", {"level": 3})


def test_artifacts_directory_is_none_without_a_place():
    assert context().artifacts_dir is None


def test_artifacts_directory_is_created_when_asked_for(tmp_path):
    ctx = context(artifacts_dir=tmp_path / "r" / "artifacts")
    assert not (tmp_path / "r").exists()
    assert ctx.artifacts_dir == tmp_path / "r" / "artifacts"
    assert (tmp_path / "r" / "artifacts").is_dir()


def test_grader_without_grade_cannot_be_built():
    with pytest.raises(TypeError, match="grade"):
        Grader()
