"""The models of the protocol: no rule goes untried, and a change is held against them. TLC itself is run by `make model`."""

from __future__ import annotations

from pathlib import Path

from spec.check import LEFT_OUT, MODELS, MUTATIONS, RULES, untried

ROOT = Path(__file__).parents[2]


def test_each_rule_of_the_protocol_is_taken_out_of_a_model_or_it_is_said_why_not() -> None:
    tried = {rule for one in MUTATIONS for rule in one.keeps.split()}

    assert tried | LEFT_OUT.keys() == set(RULES)


def test_nothing_that_a_specification_can_do_without_goes_untried() -> None:
    assert untried() == set()


def test_what_breaks_is_promised_by_the_model_that_it_is_taken_out_of() -> None:
    for one in MUTATIONS:
        assert one.invariant in MODELS[one.model].invariants.split(), one


def test_the_short_form_is_smaller_and_searches_the_same() -> None:
    for name, model in MODELS.items():
        assert model.short.keys() <= model.constants.keys(), name
        assert model.of_size(short=True).invariants == model.invariants


def test_what_must_pass_before_a_change_lands_searches_the_models() -> None:
    assert 'make model ARGS="--short"' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
