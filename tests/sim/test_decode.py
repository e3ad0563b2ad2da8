"""Cycles per token of a decode: from clock edges alone, context by context."""

import threading
from pathlib import Path

import pytest

from sim.decode import Decoded, _follow, decode


def decoded(prompt, edges):
    return Decoded(prompt, list(range(len(edges))), edges, {})


def test_cycles_are_differences_of_first_valid_beats():
    run = decoded(3, [1000, 2500, 4100, 5600])
    assert run.cycles() == {4: 1500, 5: 1600, 6: 1500}  # the 2nd token comes from position 3, which attends to 4
    assert run.cycles_per_token() == {"mean": 4600 / 3, "at_context": {}}
    assert run.tokens_per_second() == 1e8 / (4600 / 3)


def test_context_128_counts_when_the_run_reaches_it():
    edges = [0]
    for i in range(130):
        edges.append(edges[-1] + 1000 + i)
    run = decoded(2, edges)
    assert run.cycles()[128] == 1000 + 125  # contexts 3, 4, ... take 1000, 1001, ...
    assert run.cycles_per_token()["at_context"] == {"128": 1125}
    assert run.tokens_per_second() == 1e8 / 1125


def test_one_token_has_no_cycles_per_token():
    run = decoded(5, [700])
    assert run.cycles_per_token() is None and run.tokens_per_second() is None


def test_tokens_are_followed_line_by_line(tmp_path):
    file, seen, done = tmp_path / "tokens", [], threading.Event()
    follower = threading.Thread(target=_follow, args=(file, done, seen.append))
    follower.start()
    with file.open("w") as lines:
        for text in ("5\n", "1", "7\n300\n", "9"):  # a line may come in two parts; the last never ends
            lines.write(text)
            lines.flush()
    done.set()
    follower.join(timeout=10)
    assert seen == [5, 17, 300]


def test_what_the_taker_of_tokens_raises_ends_the_decode(tmp_path):
    class Simulated:
        def simulate(self, bench, *, parameters, seeds, timeout):
            Path(parameters["progress"]).write_text("5\n")

    def refuse(token):
        raise OSError(f"no room for {token}")

    with pytest.raises(OSError, match="no room for 5"):
        decode(Simulated(), tmp_path / "image.bin", [1], 1, on_token=refuse)
