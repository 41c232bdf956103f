"""Where a request says nothing about sampling, the configuration speaks, then the model."""

from __future__ import annotations

import json

import pytest

from swiftlm_proto import messages as m
from swiftlmd.store.sampling_defaults import completed, sampling_profile


@pytest.fixture
def folder(tmp_path):
    advice = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(advice))
    return tmp_path


def test_the_models_own_advice_is_the_default(folder):
    profile = sampling_profile(folder, {})
    assert (profile.temperature, profile.top_k) == (pytest.approx(0.6), 20)
    assert profile.repetition_penalty is None


def test_the_configuration_goes_before_the_models_advice(folder):
    profile = sampling_profile(folder, {"temperature": "0.2"})
    assert profile.temperature == pytest.approx(0.2)
    assert profile.top_k == 20


def test_a_model_that_does_not_sample_is_greedy(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"do_sample": false, "top_k": 50}')
    profile = sampling_profile(tmp_path, {})
    assert (profile.temperature, profile.top_k) == (0.0, None)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"temperature": "warm"}', '{"top_p": 7}'])
def test_advice_nobody_could_follow_is_left_out(tmp_path, text):
    (tmp_path / "generation_config.json").write_text(text)
    assert sampling_profile(tmp_path, {}) == m.Sampling()


def test_a_request_that_chose_its_temperature_gets_no_filters_made_for_another(folder):
    profile = sampling_profile(folder, {})
    greedy = completed(m.Sampling(temperature=0.0), profile)
    assert (greedy.top_k, greedy.top_p) == (None, None)


def test_a_request_keeps_what_it_said_and_gets_the_rest(folder):
    profile = sampling_profile(folder, {})
    assert completed(None, profile) == profile
    seeded = completed(m.Sampling(seed=3, top_p=0.5), profile)
    assert (seeded.seed, seeded.top_p) == (3, 0.5)
    assert seeded.temperature == pytest.approx(0.6)
