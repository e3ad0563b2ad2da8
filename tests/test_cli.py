"""The command line: results of each command, and bad input refused in one line with nothing written."""

import dataclasses
import hashlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
import yaml

from flow import cli
from flow.commands import generate
from golden.checkpoint import load_preset_model, save_checkpoint
from golden.config import PRESET_DIR, ModelConfig, load_preset
from golden.data import TOKENIZER_PATH
from golden.files import WriteError, replaced_file
from golden.fixed.numbers import VEC
from golden.model import build_model
from tests.flow import made_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint of micro-k3 with a tokenizer."""
    cfg = load_preset("micro-k3")[0]
    path = tmp_path_factory.mktemp("cli") / "ck"
    save_checkpoint(path, cfg, build_model(cfg, seed=5).state_dict(), TOKENIZER_PATH)
    return path


def run(capsys, *arguments):
    """(exit code, stdout, stderr)."""
    code = cli.run([str(a) for a in arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


# ---------------------------------------------------------------- what the commands do


def test_generate_prints_text_and_json(capsys, folder):
    code, text, err = run(capsys, "generate", "def f(", "--tokens", 6, "--on", "twin", "--config", "micro-k3")
    assert code == 0 and "seeded random weights" in err and "micro-k3 has no checkpoint" in err
    arguments = ["generate", "def f(", "--tokens", 6, "--on", "twin", "--checkpoint", folder, "--json"]
    code, out, err = run(capsys, *arguments)
    record = json.loads(out)
    assert code == 0 and "checkpoint ck" in err
    assert list(record) == ["text", "token_ids", "cycles_per_token", "tokens_per_second", "counters"]
    assert len(record["token_ids"]) == 6 and record["cycles_per_token"] is None and record["counters"] is None
    assert record["text"] == load_preset_model(None, folder).tokenizer.decode(record["token_ids"])
    assert run(capsys, *arguments)[1] == out
    code, text, _ = run(capsys, *arguments[:-1])
    assert text == record["text"] + "\n"


def test_generate_equals_the_models_own_greedy_choice(capsys, folder):
    loaded = load_preset_model(None, folder)
    ids = loaded.tokenizer.encode("import os").ids
    model, want = build_model(loaded.cfg, loaded.state), []
    with torch.no_grad():
        for _ in range(5):
            want.append(int(model(torch.tensor([ids + want]))[0, -1].argmax()))
    arguments = ["generate", "import os", "--tokens", 5, "--on", "float", "--checkpoint", folder, "--json"]
    assert json.loads(run(capsys, *arguments)[1])["token_ids"] == want


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logits_writes_logits_and_trace(capsys, folder, tmp_path, dtype):
    out = tmp_path / "f.npz"
    code, _, _ = run(capsys, "logits", "--checkpoint", folder, "--tokens", "5,17,300", "--dtype", dtype, "-o", out)
    assert code == 0
    loaded, data = load_preset_model(None, folder), np.load(out)
    taps: dict[str, np.ndarray] = {}
    model = build_model(loaded.cfg, loaded.state, dtype=getattr(torch, dtype))
    with torch.no_grad():
        want = model(torch.tensor([[5, 17, 300]]), model.numerics(tap=lambda n, v: taps.update({n: v[0].numpy()})))
    assert data["logits"].dtype == data["trace"].dtype == np.dtype(dtype)
    assert data["logits"].shape == (3, 512) and data["trace"].shape == (3, 5, 32)
    tight = 1e-12 if dtype == "float64" else 1e-4
    np.testing.assert_allclose(data["logits"], want[0].numpy(), rtol=tight, atol=tight)
    for layer in range(5):
        np.testing.assert_allclose(data["trace"][:, layer], taps[f"layer.{layer}.prefix"], rtol=tight, atol=tight)


def test_logits_of_the_twin_are_on_its_grid(capsys, folder, tmp_path):
    out = tmp_path / "twin.npz"
    assert run(capsys, "logits", "--checkpoint", folder, "--tokens", "5,17", "--on", "twin", "-o", out)[0] == 0
    logits = np.load(out)["logits"] * 2**13
    assert (logits == np.round(logits)).all() and logits.any()


def test_logits_of_a_preset_that_no_chip_decodes(capsys, tmp_path):
    assert run(capsys, "logits", "--config", "nano-kpu", "--tokens", "1,2", "-o", tmp_path / "k.npz")[0] == 0
    assert np.load(tmp_path / "k.npz")["trace"].shape == (2, 2, 64)


def test_compare_agrees_with_itself(capsys, folder):
    code, out, _ = run(capsys, "compare", "twin", "twin", "--checkpoint", folder, "--tokens", "1,2,3")
    assert code == 0 and "same largest logit at 3 of 3" in out and "agree within 0 at all" in out


def test_compare_names_the_first_stage_that_differs(capsys, folder):
    arguments = ["compare", "float", "quantised", "--checkpoint", folder, "--tokens", "1,2,3"]
    code, out, err = run(capsys, *arguments, "--tolerance", 1e-6, "--all")
    assert code == 1 and "first difference: position 0, stage layer.0." in out and "apart by" in out
    assert "layer.4.ffn_out" in err
    assert run(capsys, *arguments, "--tolerance", 1e6)[0] in (0, 1)  # picked experts have no tolerance


def test_presets_are_listed_with_the_reason_when_no_chip_can_be_made(capsys):
    code, out, _ = run(capsys, "presets")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0 and set(lines) == {"micro-k3", "nano-k3", "nano-kpu"}
    assert "random weights" in lines["micro-k3"] and "no chip can be generated" in lines["nano-kpu"]


def test_export_writes_a_checkpoint_that_generate_takes(capsys, tmp_path):
    from safetensors.torch import save_file

    state = build_model(load_preset("micro-k3")[0], seed=8).state_dict()
    save_file(state, tmp_path / "w.safetensors")
    assert run(capsys, "export", tmp_path / "w.safetensors", tmp_path / "ck", "--config", "micro-k3")[0] == 0
    assert run(capsys, "generate", "x", "--tokens", 2, "--checkpoint", tmp_path / "ck")[0] == 0


def test_training_ends_with_a_checkpoint(capsys, tmp_path):
    arguments = ["train", "--preset", "micro-k3", "--steps", 2, "--batch", 1, "--window", 32, "--out", tmp_path]
    assert run(capsys, *arguments)[0] == 0
    assert float(torch.tensor(1e-40) * 1.0) != 0.0, "arithmetic is as it was before"
    assert (
        run(capsys, "logits", "--checkpoint", tmp_path / "checkpoint", "--tokens", "1", "-o", tmp_path / "f.npz")[0]
        == 0
    )


def test_help_is_quick_and_lists_the_commands():
    code = "import sys; from flow import cli; r = cli.run(['--help']); assert r == 0; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for name in ("generate", "logits", "compare", "train", "export", "eval", "rtl", "synth", "presets"):
        assert f" {name} " in done.stdout


@pytest.mark.slow
def test_generate_on_rtl_equals_the_twin(capsys, folder):
    arguments = ["generate", "The ", "--tokens", 5, "--config", "micro-k3", "--checkpoint", folder, "--json"]
    code, out, _ = run(capsys, *arguments, "--on", "rtl")
    record, twin = json.loads(out), json.loads(run(capsys, *arguments, "--on", "twin")[1])
    assert code == 0 and record["token_ids"] == twin["token_ids"] and record["text"] == twin["text"]
    cycles = record["cycles_per_token"]
    assert cycles["at_context"] == {} and record["tokens_per_second"] == 1e8 / cycles["mean"]
    assert record["counters"]["tokens"] == 5 and record["counters"]["token_stalls"] == 0
    for unit in ("array", "vector", "kda", "mla", "router"):
        assert sum(record["counters"][unit].values()) == record["counters"]["cycles"]
    assert 4 * cycles["mean"] < record["counters"]["cycles"]


@pytest.mark.slow
def test_rtl_writes_a_chip_and_says_what_is_in_it(capsys, folder, tmp_path):
    out = tmp_path / "chip"
    arguments = ["rtl", "--config", "micro-k3", "--checkpoint", folder, "-o", out]
    assert run(capsys, *arguments)[0] == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert {"nanok3.v", "image.bin", "sram_models.v"} <= set(manifest["sha256"])
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    assert re.search(r"^module nanok3\b", (out / "nanok3.v").read_text(), re.M)
    assert manifest["formats"]["fixed_point"]["vec"] == {"width": VEC.width, "fraction": VEC.frac, "signed": True}
    assert manifest["registers"]["COMMAND"] == 0x10 and manifest["codes"]["Command"]["START"] == 1
    words = np.frombuffer((out / "image.bin").read_bytes(), "<u4")
    assert words[0] == manifest["image"]["magic"] and words[2] == manifest["image"]["shape_hash"]
    assert zlib.crc32(words[:-1].tobytes()) == words[-1]
    last = list(manifest["image"]["sections"].values())[-1]
    assert last["word"] + last["words"] * last["parts"] == len(words) - 1
    assert run(capsys, *arguments)[0] == 0  # again, over its own folder
    (out / "manifest.json").unlink()
    code, _, err = run(capsys, *arguments)
    assert code == 2 and "holds something else" in err


# ---------------------------------------------------------------- bad input


BAD = [
    (["generate", "hi", "--tokens", "0"], "'--tokens'"),
    (["generate", "hi", "--tokens", "x"], "valid integer"),
    (["generate", "hi", "--tokens", "400"], "do not fit the context of 256"),
    (["generate", "a " * 300], "do not fit the context of 256"),
    (["generate", ""], "the prompt is empty"),
    (["generate", "hi", "--on", "gpu"], "'gpu'"),
    (["generate", "hi", "--config", "mega-k3"], "unknown preset 'mega-k3': use one of micro-k3, nano-k3, nano-kpu"),
    (["generate", "hi", "--config", "{tmp}/none.yaml"], "cannot read preset"),
    (["generate", "hi", "--config", "{tmp}/bad.yaml"], "not valid YAML"),
    (["generate", "hi", "--config", "nano-kpu", "--on", "twin"], "no chip can be generated"),
    (["generate", "hi", "--checkpoint", "{tmp}/none"], "no such checkpoint folder"),
    (["generate", "hi", "--checkpoint", "{tmp}/ck", "--config", "nano-k3"], "not a checkpoint of preset nano-k3"),
    (["generate"], "Missing argument 'prompt'"),
    (["generate", "hi", "--colour"], "No such option"),
    (["logits", "--tokens", "5,x", "-o", "{tmp}/f.npz"], "numbers with commas"),
    (["logits", "--tokens", "5,512", "-o", "{tmp}/f.npz"], "token 512 is not in the vocabulary, 0 to 511"),
    (["logits", "--tokens", "-1", "-o", "{tmp}/f.npz"], "token -1 is not in the vocabulary"),
    (["logits", "--tokens", ",", "-o", "{tmp}/f.npz"], "numbers with commas between"),
    (["logits", "--tokens", "", "-o", "{tmp}/f.npz"], "numbers with commas between"),
    (["logits", "--tokens", "5", "-o", "{tmp}/f.txt"], "name it so"),
    (["logits", "--tokens", "5", "-o", "{tmp}/bad.yaml/f.npz"], "cannot write"),
    (["logits", "--tokens", "5", "--on", "twin", "--dtype", "float64", "-o", "{tmp}/f.npz"], "for --on float"),
    (["logits", "--tokens", "5", "--config", "nano-kpu", "--on", "twin", "-o", "{tmp}/f.npz"], "no chip"),
    (["generate", "hi", "--on", "twin", "--quantise"], "--quantise is for --on float"),
    (["generate", "hi", "--record", "{tmp}/r.json"], "--record is for --on rtl"),
    (["rtl", "--config", "nano-kpu", "-o", "{tmp}/rtl"], "no chip can be generated: q_lora_rank must be 32"),
    (["rtl", "--config", "mega-k3", "-o", "{tmp}/rtl"], "unknown preset"),
    (["rtl", "--config", "micro-k3"], "Missing option '-o'"),
    (["synth", "--config", "nano-kpu"], "no chip can be generated"),
    (["synth", "--workers", "0"], "'--workers'"),
    (["compare", "float", "rumour"], "'rumour'"),
    (["compare", "float", "twin", "--tolerance", "-1"], "'--tolerance'"),
    (["export", "{tmp}/none.safetensors", "{tmp}/new"], "cannot read"),
    (["export", "{tmp}/ck/model.safetensors", "{tmp}/new", "--config", "micro-k3"], "has shape (32,), not (1,)"),
    (["eval", "--windows", "0"], "'--windows'"),
    (["eval", "--config", "micro-k3"], "a context of 64"),
    (["eval", "--config", "nano-kpu"], "no chip can be generated"),
    (["decode"], "No such command 'decode'"),
    (["logits", "--tokens", "1,,2", "-o", "{tmp}/f.npz"], "numbers with commas between"),
    (["logits", "--tokens", "1,2,", "-o", "{tmp}/f.npz"], "numbers with commas between"),
    (["logits", "--tokens", "1_0", "-o", "{tmp}/f.npz"], "numbers with commas between"),
    (["logits", "--tokens", "9" * 5000, "-o", "{tmp}/f.npz"], "numbers with commas between"),
    (["compare", "float", "float", "--tolerance", "nan"], "'--tolerance'"),
    (["compare", "float", "float", "--tokens", "1", "--prompt", "a"], "leave one out"),
    (["compare", "float", "float", "--tokens", ""], "numbers with commas between"),
    *(
        (["train", "--out", "{tmp}/new", option, value], f"{option} must be ")
        for option, value in (
            ("--steps", "0"),
            ("--batch", "0"),
            ("--window", "-1"),
            ("--threads", "0"),
            ("--seed", "-1"),
            ("--minutes", "-1"),
            ("--clip", "nan"),
            ("--muon-rate", "inf"),
        )
    ),
    (["train", "--out", "{tmp}/new", "--window", "100000000"], "does not fit the training text of"),
    (["train", "--out", "{tmp}/bad.yaml"], "cannot write"),
    (["compare", "float", "float", "--tolerance", "inf"], "--tolerance must be a finite number, not inf"),
    (["sim", "a", "--trace", "{tmp}/f", "--html", "{tmp}/f"], "give each a file of its own"),
    (["sim", "a", "--trace", "{tmp}/f", "--html", "{tmp}/../{name}/f"], "give each a file of its own"),
    (["flow", "--to", "synth", "--utilisation", "nan"], "'--utilisation'"),
    *(
        (["flow", "--to", "synth", "--die", die], "sides are 5 to 33000 um")
        for die in ("0x0", "0x400", "400x0", "4.9x100", "100x33001", "1x1" + 400 * "0")
    ),
    *(
        (["flow", "--to", "synth", "--die", die], "--die takes width and height in um")
        for die in (
            "-5x5",
            "5",
            "5x",
            "1.2.3x4",
            ".x.",
            "nanxnan",
            "1e3x1e3",
            "\N{ARABIC-INDIC DIGIT FIVE}0x50",
            "50x50 ",
        )
    ),
    *(
        (["sim", "--what-if", "{tmp}/w.md", *more], f"writes a table of its own chips: leave {more[0]} out")
        for more in (
            ["--tokens", "4"],
            ["--set", "array.rows=32"],
            ["--json"],
            ["--trace", "{tmp}/t"],
            ["--html", "{tmp}/h"],
            ["--timing-only"],
            ["--bench"],
        )
    ),
    (["sim", "--what-if", "{tmp}/w.md", "If"], "leave a prompt out"),
    *(
        (["sim", "If", "--bench", *more], f"--bench measures speed, with and without tokens: leave {more[0]} out")
        for more in (["--trace", "{tmp}/t"], ["--html", "{tmp}/h"], ["--timing-only"])
    ),
    (["sim", "If", "--bench", "--set", "vector.lanes=8", "--config", "micro-k3"], "a projection has none"),
    (["sim", "If", "--bench", "--tokens", "1"], "--bench needs at least two tokens"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(a[:4]) for a, _ in BAD])
def test_bad_input_is_one_line_and_writes_nothing(capsys, folder, tmp_path, arguments, message):
    (tmp_path / "bad.yaml").write_text("model: [")
    (tmp_path / "ck").symlink_to(folder)
    before = sorted(p.name for p in tmp_path.iterdir())
    code, out, err = run(capsys, *[a.format(tmp=tmp_path, name=tmp_path.name) for a in arguments])
    assert code == 2 and out == ""
    assert message in err and err.startswith("nanok3: ") and err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize("made", [1, 10])
def test_every_command_takes_a_run_that_fills_the_context(capsys, folder, monkeypatch, made):
    """The last token made needs no position: 64 positions are prompt + tokens - 1."""
    monkeypatch.setattr(generate, "chip_tokens", lambda *_: ([0] * made, {"cycles_per_token": None}))
    prompt = "\n" * (65 - made)
    cfg, tokenizer = load_preset("micro-k3")[0], load_preset_model(None, folder).tokenizer
    assert len(tokenizer.encode(prompt).ids) + made - 1 == cfg.max_positions == 64
    commands = [
        *(["generate", "--on", level, "--json"] for level in ("float", "twin", "rtl")),
        ["sim", "--json"],
        ["sim", "--json", "--timing-only"],
    ]
    for name, *options in commands:
        model = ["--config", "micro-k3", *([] if "--timing-only" in options else ["--checkpoint", folder])]
        code, _, _ = run(capsys, name, prompt, "--tokens", made, *options, *model)
        assert code == 0, options
        code, _, err = run(capsys, name, prompt, "--tokens", made + 1, *options, *model)
        assert code == 2 and f"and {made + 1} to make do not fit the context of 64" in err, options


# ---------------------------------------------------------------- where the results are printed

PRINTED = {
    "help": ["--help"],
    "trainer's help": ["train", "--help"],
    "presets": ["presets"],
    "text": ["generate", "caf\N{LATIN SMALL LETTER E WITH ACUTE}", "--tokens", "3", "--checkpoint", "{ck}"],
    "record": ["generate", "a", "--tokens", "2", "--checkpoint", "{ck}", "--json"],
    "logits": ["compare", "float", "quantised", "--checkpoint", "{ck}", "--tokens", "1"],
    "cycles": ["sim", "a", "--tokens", "3", "--config", "micro-k3", "--timing-only", "--json"],
    "simulated text": ["sim", "a", "--tokens", "3", "--checkpoint", "{ck}", "--config", "micro-k3"],
    "headline": ["report", "{run}"],
    "report": ["report", "{run}", "--json"],
    "rules": ["check", "{run}"],
    "verdicts": ["check", "{run}", "--json"],
}


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory):
    """A made-up run of the flow."""
    return made_run.make(tmp_path_factory.mktemp("laid") / "micro-k3")


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "at once"])
@pytest.mark.parametrize("command", PRINTED.values(), ids=PRINTED)
def test_a_full_disk_behind_stdout_is_one_line(capsys, folder, laid_out, monkeypatch, command, buffered):
    arguments = [a.format(ck=folder, run=laid_out) for a in command]
    stdout = cli.Stdout(open("/dev/full", "w"))
    stdout.reconfigure(write_through=not buffered)
    monkeypatch.setattr(sys, "stdout", stdout)
    code = cli.run(arguments)
    monkeypatch.undo()
    stdout.close()  # what it held goes nowhere
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("nanok3: ", "Traceback"))]
    assert code == 1 and said == ["nanok3: cannot write to stdout: No space left on device"]


@pytest.mark.parametrize("command", PRINTED.values(), ids=PRINTED)
def test_a_terminal_of_plain_characters_gets_those(folder, laid_out, monkeypatch, command):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", cli.Stdout(io.TextIOWrapper(raw, encoding="ascii")))
    code = cli.run([a.format(ck=folder, run=laid_out) for a in command])
    shown = raw.getvalue()
    monkeypatch.undo()
    assert code in (0, 1) and shown.decode("ascii")


def test_what_the_terminal_has_no_character_for_is_a_question_mark():
    code = "from flow import cli; cli.run = lambda _: print('caf\\u00e9') or 0; cli.main()"
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=ascii_only, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"caf?\n", b"")


@pytest.mark.parametrize(
    ("place", "message"), [("/dev/full", "cannot write to stdout: No space left on device"), ("&-", "stdout is closed")]
)
def test_the_entry_point_says_where_stdout_fails(place, message):
    line = f"exec {shlex.quote(sys.executable)} -m flow.cli presets >{place}"
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr == f"nanok3: {message}\n"


def test_a_failed_write_leaves_the_old_file(tmp_path):
    out = tmp_path / "f.npz"
    out.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replaced_file(out) as file:
        file.write_bytes(b"half")
        raise KeyboardInterrupt
    assert out.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["f.npz"]


def test_a_link_keeps_its_place_and_what_is_no_file_is_left_alone(tmp_path):
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    os.mkfifo(pipe)
    with replaced_file(link) as file:
        file.write_text("new")
    assert link.is_symlink() and target.read_text() == "new"
    with pytest.raises(WriteError, match="no regular file"), replaced_file(pipe):
        pass
    assert pipe.is_fifo() and len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("command", [["generate"], ["sim"], ["compare", "float", "twin", "--prompt"]])
def test_a_prompt_that_is_no_text_is_refused(capsys, command):
    code, _, err = run(capsys, *command, "\udcff\udcfe", "--config", "micro-k3")
    assert code == 2 and err.splitlines()[-1] == "nanok3: the prompt is not UTF-8 text"


def test_a_refused_simulation_leaves_the_trace_of_another_alone(capsys, tmp_path):
    trace = tmp_path / "kept.pftrace"
    trace.write_bytes(b"kept")
    settings = ["--set", "model.num_experts=3", "--trace", trace]
    code, _, err = run(capsys, "sim", "a", "--config", "micro-k3", "--tokens", 3, *settings)
    assert code == 2 and "the weights are of another model" in err and trace.read_bytes() == b"kept"


@pytest.mark.parametrize(
    "change,message",
    [
        ({"hidden_size": 0}, "hidden_size must be 1 or more"),
        ({"kda_layers": [1, 1, 2, 3]}, "name each of the"),
        ({"rms_norm_eps": float("nan")}, "finite"),
        ({"l2_norm_eps": -1.0}, "must not be negative"),
        ({"vocab_size": 10**13}, "vocab_size must be at most"),
        ({5: 1, "colour": 2}, "unknown model key"),
    ],
)
def test_presets_that_no_model_has_are_refused(capsys, tmp_path, change, message):
    preset = yaml.safe_load((PRESET_DIR / "micro-k3.yaml").read_text())
    preset["model"].update(change)
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(preset, sort_keys=False))
    code, _, err = run(capsys, "generate", "a", "--tokens", 2, "--config", tmp_path / "p.yaml")
    assert code == 2 and message in err and len(err.splitlines()) == 1


SIZES = sorted(f.name for f in dataclasses.fields(ModelConfig) if "int" in f.type and "tuple" not in f.type)


@pytest.mark.parametrize("size", [0, 1, 33, 10**12])
@pytest.mark.parametrize("key", SIZES)
def test_sizes_that_do_not_fit_are_one_line(capsys, tmp_path, key, size):
    """Whatever a size does not fit (the model, MX blocks, the chip), it is one line; levels that it fits run."""
    preset = yaml.safe_load((PRESET_DIR / "micro-k3.yaml").read_text())
    preset["model"][key] = size
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(preset))
    logits = ["logits", "--tokens", "0", "-o", tmp_path / "f.npz"]
    codes = []
    for command in (logits, [*logits, "--quantise"], [*logits, "--on", "twin"], ["sim", "a", "--timing-only"]):
        code, out, err = run(capsys, *command, "--config", tmp_path / "p.yaml")
        assert code in (0, 2)
        if code == 2:
            assert err.startswith("nanok3: ") and err.count("\n") == 1 and out == ""
        codes.append(code)
    if key in ("hidden_size", "kda_head_dim", "kv_lora_rank", "q_lora_rank", "intermediate_size", "v_head_dim"):
        assert codes == [2, 2, 2, 2]
    if key == "qk_nope_head_dim" and size == 33:
        assert codes == [0, 2, 2, 2]  # no matrix runs along it


def test_a_preset_that_is_nested_too_deep_is_one_line(capsys, tmp_path):
    (tmp_path / "p.yaml").write_text("[" * 100_000)
    code, _, err = run(capsys, "generate", "a", "--config", tmp_path / "p.yaml")
    assert code == 2 and err.count("\n") == 1 and "nested too deep" in err


TOKENIZERS = {
    "missing": (None, "cannot read"),
    "a folder": (..., "cannot read"),
    "empty": ("", "is not a tokenizer"),
    "no JSON": ("words", "is not a tokenizer"),
    "other JSON": ('{"model": {}}', "is not a tokenizer"),
    "nested": ("[" * 100_000, "is not a tokenizer"),
    "no text": (b"\xff\xfe", "is not a tokenizer"),
    "no tokens": ((), "has no tokens, and micro-k3 takes 0 to 511"),
    "more tokens": (range(513), "has tokens up to 512, and micro-k3 takes 0 to 511"),
    "few tokens of large ids": ((0, 1, 4000), "has tokens up to 4000"),
    "as many": (range(512), None),
}


@pytest.mark.parametrize(("made", "message"), TOKENIZERS.values(), ids=TOKENIZERS)
def test_export_takes_a_tokenizer_of_the_model_only(capsys, tmp_path, made, message):
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models

    file, out = tmp_path / "t.json", tmp_path / "ck"
    if made is ...:
        file.mkdir()
    elif isinstance(made, bytes):
        file.write_bytes(made)
    elif isinstance(made, str):
        file.write_text(made)
    elif made is not None:
        Tokenizer(models.WordLevel({f"w{i}": i for i in made}, unk_token="w0")).save(str(file))
    save_file(build_model(load_preset("micro-k3")[0], seed=8).state_dict(), tmp_path / "w.safetensors")
    arguments = ["export", tmp_path / "w.safetensors", out, "--config", "micro-k3", "--tokenizer", file]
    code, _, err = run(capsys, *arguments)
    if message is None:
        assert code == 0 and (out / "tokenizer.json").read_bytes() == file.read_bytes()
    else:
        assert code == 2 and message in err and err.count("\n") == 1 and not out.exists()


def test_export_leaves_out_the_shipped_tokenizer_where_it_does_not_fit(capsys, tmp_path):
    from safetensors.torch import save_file

    preset = yaml.safe_load((PRESET_DIR / "micro-k3.yaml").read_text())
    preset["model"]["vocab_size"] = 256
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(preset))
    save_file(build_model(load_preset(tmp_path / "p.yaml")[0]).state_dict(), tmp_path / "w.safetensors")
    arguments = ["export", tmp_path / "w.safetensors", tmp_path / "ck", "--config", tmp_path / "p.yaml"]
    assert run(capsys, *arguments)[0] == 0 and not (tmp_path / "ck" / "tokenizer.json").exists()
    code, _, err = run(capsys, "train", "--preset", tmp_path / "p.yaml", "--steps", 1, "--out", tmp_path / "train")
    assert code == 2 and "takes 0 to 255" in err and not (tmp_path / "train").exists()


def test_ctrl_c_ends_cleanly(folder):
    command = [sys.executable, "-m", "flow.cli", "generate", "a", "--tokens", "60", "--checkpoint", str(folder)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells have background jobs ignore it
    )  # fmt: skip
    assert process.stderr is not None
    while "checkpoint ck" not in process.stderr.readline():  # it has begun to decode
        pass
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.strip().endswith("nanok3: stopped") and "Traceback" not in err
