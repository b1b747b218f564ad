"""What a run is summed up to."""

import pytest

from lullm.cli.bench.report import Report, parse_bounds, times_ms
from lullm.cli.bench.stream import Sample
from lullm.errors import ConfigError


def sample(first_s: float, gap_s: float, num: int) -> Sample:
    times = [10 + first_s + gap_s * index for index in range(num)]
    return Sample(10.0, times[-1], times, num_prompt=5, num_output=num)


SAMPLES = [sample(0.1, 0.01, 11), sample(0.2, 0.02, 11), sample(0.3, 0.03, 1), Sample(error="429: later")]


def test_the_numbers():
    found = Report(SAMPLES, 2.0, {}).as_dict()
    assert (found["completed"], found["failed"], found["errors"]) == (3, 1, ["429: later"])
    assert (found["prompt_tokens"], found["output_tokens"]) == (15, 23)
    assert (found["requests_per_s"], found["output_tokens_per_s"], found["tokens_per_s"]) == (1.5, 11.5, 19.0)
    assert found["ttft_ms"]["mean"] == pytest.approx(200) and found["ttft_ms"]["p50"] == pytest.approx(200)
    assert found["ttft_ms"]["p90"] == pytest.approx(280) and found["ttft_ms"]["max"] == pytest.approx(300)
    assert found["tpot_ms"]["mean"] == pytest.approx(15), "an answer of one token has none"
    assert found["itl_ms"]["mean"] == pytest.approx(15) and len(times_ms(SAMPLES[:3])["itl"]) == 20
    assert found["e2e_ms"]["max"] == pytest.approx(400) and found["goodput"] is None


@pytest.mark.parametrize(
    ("bounds", "num"), [(["ttft:250"], 2), (["ttft:250", "tpot:15"], 1), (["tpot:15"], 2), (["e2e:1000"], 3)]
)
def test_goodput(bounds, num):
    goodput = Report(SAMPLES, 2.0, parse_bounds(bounds)).as_dict()["goodput"]
    assert goodput["requests_per_s"] == num / 2 and goodput["share"] == num / 4, "failed ones are not good"


@pytest.mark.parametrize("text", ["ttft", "ttft:x", "ttft:0", "itl:5", ":5", "ttft:nan"])
def test_bounds_that_are_none(text):
    with pytest.raises(ConfigError, match="--goodput"):
        parse_bounds([text])


def test_the_table():
    text = Report(SAMPLES, 2.0, {"ttft": 250.0}).text()
    assert "3 requests in 2.00 s, 1 failed" in text and "goodput 1.00 requests/s (50%; ttft <= 250 ms)" in text
    assert "time to first token" in text and "error: 429: later" in text
    assert "-" in Report([Sample(error="x")], 1.0, {}).text()
