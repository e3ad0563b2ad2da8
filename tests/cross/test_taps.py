"""``nanok3 compare twin rtl``: the chip's registers hold the twin's value at every stage, and a fault is named."""

import pytest

from flow import cli, rtl
from golden.checkpoint import load_preset_model
from sim import taps

CODES = int("7" * 32, 16)  # magnitudes of a row's E2M1 codes
ONE = 1 << 12  # 1.0 of a CONST

# (memory, placement, bits that are turned round in its first word, first stage that differs, by construction)
FAULTS = (  # one of each memory
    ("WEIGHTS", "embed", CODES << 128 * 5, "embedding"),  # token 5
    ("LANE", "layer.1.q", ONE << 48, "layer.1.q_conv"),  # the newest tap
    ("VECTOR", "layer.1.mlp.mix", ONE, "layer.1.mlp_in"),
    ("ROUTER", "layer.1.bias", 0x7000 << 48, "layer.1.experts"),  # expert 3 is picked whatever its score
)
MORE_FAULTS = (
    ("VECTOR", "layer.0.attn.norm", ONE, "layer.0.attn_norm"),
    ("LANE", "layer.0.decay", ONE, "layer.0.alpha"),
    ("VECTOR", "layer.2.o_norm", ONE, "layer.2.gated"),
    ("VECTOR", "layer.3.latent_norm", ONE, "layer.3.c"),
    ("WEIGHTS", "layer.3.key0", CODES, "layer.3.q_abs"),
    ("WEIGHTS", "layer.4.experts", CODES, "layer.4.expert_out"),
    ("WEIGHTS", "layer.4.up", CODES, "layer.4.ffn_out"),
    ("WEIGHTS", "head", CODES, "logits"),
)


def run(capsys, *arguments):
    """(exit code, stdout, stderr) of nanok3 compare twin rtl."""
    code = cli.run(["compare", "twin", "rtl", *arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_every_stage_of_micro_equals_the_twin(capsys):
    code, out, err = run(capsys, "--config", "micro-k3", "--tokens", "5,17,300,40,41", "--all")
    assert code == 0, out
    count = len(taps.stages(rtl.parameters("micro-k3", None, load_preset_model("micro-k3", None, 0))))
    assert f"same largest logit at 5 of 5 positions\ntwin and rtl agree within 0 at all {count} stages of 5" in out
    assert "layer.4.prefix" in err


@pytest.mark.parametrize(
    "memory,label,bits,stage",
    [pytest.param(*fault, id=fault[1]) for fault in FAULTS]
    + [pytest.param(*fault, id=fault[1], marks=pytest.mark.slow) for fault in MORE_FAULTS],
)
def test_a_fault_in_the_chip_is_named(capsys, monkeypatch, memory, label, bits, stage):
    """Only the chip's image has it; the checksum is right."""
    monkeypatch.setattr(rtl, "image_words", lambda chip, loaded: faulty_image(chip, loaded, memory, label, bits))
    code, out, _ = run(capsys, "--config", "micro-k3", "--tokens", "5,17")
    assert code == 1 and f"stage {stage}, element" in out, out
    assert float(out.split("apart by ")[1]) > 0


def faulty_image(chip, loaded, memory, label, bits):
    """The image with one word changed."""
    from golden.fixed.weights import chip_weights
    from hw import image

    contents = chip.program.image(chip_weights(chip.p.model, loaded.state))
    place = next(pl for pl in chip.program.placements if (pl.space.name, pl.label) == (memory, label))
    contents[place.space][place.base] ^= bits
    return image.pack(contents, chip.shape, chip.sizes)


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--config", "nano-kpu"], "no chip can be generated"),
        (["--config", "micro-k3", "--prompt", ""], "give at least one token"),
        (["--config", "micro-k3", "--tokens", ",".join(["5"] * 65)], "65 tokens do not fit the context of 64"),
    ],
)
def test_bad_input_is_refused_before_anything_is_compiled(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(taps, "compiled", lambda *_: pytest.fail("compiled"))
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


def test_a_missing_compiler_is_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(rtl, "SIMULATIONS", tmp_path / "sim")
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = run(capsys, "--config", "micro-k3", "--tokens", "5")
    assert code == 1 and out == "" and "make is missing: Verilator compiles what it simulates" in err.splitlines()[-1]


@pytest.mark.slow
def test_every_stage_of_nano_equals_the_twin(capsys):
    """Trained weights, and more positions than the MLA engine takes at a time."""
    code, out, _ = run(capsys, "--config", "nano-k3", "--prompt", "Return the number of items in the")
    assert code == 0 and "agree within 0 at all" in out, out
