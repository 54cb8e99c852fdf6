from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.amounts import Resources
from elastrec.platform.scaling.executors.strategy import Done, StrategySettings, Urgency, Wish, choose_strategy

FREE = Resources(10.0, 2.0**36)


def wish(strategy: str = "plan", target: str = "workers", after: float = 6.0, **changes: object) -> Wish:
    found = Wish(
        strategy=strategy, moves={target: (4.0, after)}, urgency=Urgency.REMOVE_BOTTLENECK,
        needs=Resources(after - 4.0, 0.0), reason="because",
    )  # fmt: skip
    return msgspec.structs.replace(found, **changes)


def done(strategy: str = "plan", target: str = "workers", direction: int = 1, seconds_ago: float = 1e5) -> Done:
    return Done(strategy=strategy, moves={target: (4.0, 4.0 + direction)}, seconds_ago=seconds_ago)


MEMORY = wish("memory", "server memory", urgency=Urgency.PREVENT_FAILURE)

wishes = st.lists(
    st.builds(
        wish,
        st.sampled_from(["plan", "horizontal", "vertical", "memory"]),
        st.sampled_from(["workers", "servers"]),
        st.integers(1, 20).map(float),
        urgency=st.sampled_from(list(Urgency)),
    ),
    max_size=6,
)
pasts = st.lists(
    st.builds(
        done,
        st.sampled_from(["plan", "horizontal"]),
        st.sampled_from(["workers", "servers"]),
        st.sampled_from([-1, 1]),
        st.floats(0, 2000),
    ),
    max_size=4,
)


@settings(deadline=None)
@given(wishes, pasts)
def test_one_strategy_at_most_and_a_reason_for_every_other(given_wishes: list[Wish], past: list[Done]) -> None:
    verdict = choose_strategy(given_wishes, past, FREE)
    chosen = [] if verdict.chosen is None else [verdict.chosen]
    assert len(chosen) + len({id(each) for each, _ in verdict.left_out}) == len(given_wishes)
    assert all(why for _, why in verdict.left_out)
    assert verdict.reason
    if chosen:
        assert chosen[0].needs.fits(FREE)
        assert chosen[0].urgency == min(
            [chosen[0].urgency, *(w.urgency for w, why in verdict.left_out if "first" in why or "farther" in why)]
        )


def test_preventing_a_failure_comes_first() -> None:
    verdict = choose_strategy([wish(), MEMORY], [], FREE)
    assert verdict.chosen == MEMORY
    assert verdict.left_out == ((wish(), "memory goes first, one at a time"),)
    assert verdict.reason.startswith("memory (prevent failure)")


def test_a_job_rests_after_a_change_but_not_when_it_would_fail() -> None:
    past = [done(seconds_ago=10)]
    assert choose_strategy([wish()], past, FREE).chosen is None
    assert choose_strategy([wish(), MEMORY], past, FREE).chosen == MEMORY


def test_a_change_is_not_undone_soon() -> None:
    verdict = choose_strategy([wish(after=3.0)], [done(seconds_ago=400)], FREE)
    assert verdict.chosen is None
    assert "would undo what plan did to workers 400 s ago" in verdict.left_out[0][1]
    assert choose_strategy([wish(after=3.0)], [done(seconds_ago=1000)], FREE).chosen is not None


def test_of_a_change_that_moves_several_things_none_is_undone_soon() -> None:
    both = wish(moves={"servers": (1.0, 2.0), "workers": (4.0, 3.0)})
    verdict = choose_strategy([both], [done(seconds_ago=400)], FREE)
    assert verdict.chosen is None and "to workers 400 s ago" in verdict.left_out[0][1]


def test_a_trial_may_be_undone_at_once() -> None:
    tried = msgspec.structs.replace(done(seconds_ago=400), is_trial=True)
    assert choose_strategy([wish(after=3.0)], [tried], FREE).chosen is not None


def test_a_plan_that_does_not_fit_names_what_is_missing() -> None:
    verdict = choose_strategy([wish(after=40.0)], [], FREE)
    assert verdict.chosen is None
    assert "needs 36 cores" in verdict.left_out[0][1]


def test_among_equals_the_strategy_that_waited_longest_goes_first() -> None:
    one, other = wish("plan", "workers", 9.0), wish("horizontal", "data executors", 5.0)
    past = [done("plan", "workers", seconds_ago=5000), done("horizontal", "data executors", seconds_ago=9000)]
    assert choose_strategy([one, other], past, FREE).chosen == other


def test_among_wishes_for_one_target_the_farthest_makes_the_others_unnecessary() -> None:
    near, far = wish("horizontal", after=5.0), wish("plan", after=8.0)
    verdict = choose_strategy([near, far], [done("plan", seconds_ago=2000)], FREE)
    assert verdict.chosen == far
    assert verdict.left_out == ((near, "plan goes farther"),)


def test_a_change_too_small_to_matter_is_left_out() -> None:
    verdict = choose_strategy([wish(after=4.01)], [], FREE, StrategySettings(least_share=0.02))
    assert verdict.chosen is None
    assert "too small" in verdict.left_out[0][1]


def test_nothing_wanted_is_nothing_done() -> None:
    assert choose_strategy([], [], FREE).reason == "no strategy wants a change"
    assert choose_strategy([wish(after=4.0)], [], FREE).chosen is None
