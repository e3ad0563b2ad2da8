"""Training text and tokenizer: the standard library's own prose, offline and deterministic.

Documents are pydoc's topics and every standard-library file's docstrings (one
document per topic or file).  Paragraphs seen before are dropped across all
documents *before* a held-out part is set apart, so no held-out paragraph occurs
in training.  A document is held out by the hash of its name, hence the same
ones everywhere; the text itself follows the Python version.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CHECKPOINT_DIR = Path(__file__).parent / "checkpoints" / "nano-k3"
TOKENIZER_PATH = CHECKPOINT_DIR / "tokenizer.json"
HELD_OUT_PER_1000 = 65
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True)
class Corpus:
    """Training and held-out text (UTF-8 bytes)."""

    train: bytes
    held_out: bytes

    def digest(self) -> str:
        """SHA-256 over both parts, to say in a report which text was used."""
        return hashlib.sha256(self.train + b"\0" + self.held_out).hexdigest()


def docstrings(source: str) -> list[str]:
    """Cleaned docstrings of a module, its classes and functions, in source order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old modules
        tree = ast.parse(source)
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [n for n in ast.walk(tree) if isinstance(n, documented)]
    nodes.sort(key=lambda n: getattr(n, "lineno", 0))
    return [doc for n in nodes if (doc := ast.get_docstring(n))]


def stdlib_documents() -> list[tuple[str, str]]:
    """(name, text) of every standard-library file that has docstrings, sorted by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    out = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS & set(relative.parts):
            continue
        try:
            found = docstrings(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # files kept broken on purpose
        if found:
            out.append((relative.as_posix(), "\n\n".join(found)))
    return out


def topic_documents() -> list[tuple[str, str]]:
    """(name, text) of pydoc's language topics, sorted by name."""
    from pydoc_data import topics

    return [(f"topic/{name}", text) for name, text in sorted(topics.topics.items())]


def drop_repeated_paragraphs(documents: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Keep the first occurrence of every paragraph (compared with white space collapsed)."""
    seen: set[str] = set()
    out = []
    for name, text in documents:
        kept = []
        for paragraph in text.split("\n\n"):
            key = " ".join(paragraph.split())
            if key and key not in seen:
                seen.add(key)
                kept.append(paragraph.rstrip())
        if kept:
            out.append((name, "\n\n".join(kept)))
    return out


def is_held_out(name: str) -> bool:
    """By the hash of the document's name."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 1000 < HELD_OUT_PER_1000


def load_corpus() -> Corpus:
    """Build the corpus from the running Python's files (a few seconds)."""
    documents = drop_repeated_paragraphs(topic_documents() + stdlib_documents())
    # an order that mixes topics and files, the same everywhere
    documents.sort(key=lambda d: hashlib.sha256(d[0].encode()).hexdigest())
    parts: dict[bool, list[str]] = {False: [], True: []}
    for name, text in documents:
        parts[is_held_out(name)].append(text)
    join = "\n\n\n".join
    return Corpus(join(parts[False]).encode(), join(parts[True]).encode())


def train_tokenizer(text: str, vocab_size: int = 512) -> Tokenizer:
    """Byte-level BPE: 256 bytes and the most frequent merges of the training text; no special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def load_tokenizer(path: Path = TOKENIZER_PATH) -> Tokenizer:
    """The shipped tokenizer."""
    return Tokenizer.from_file(str(path))


def encode(tokenizer: Tokenizer, text: bytes) -> np.ndarray:
    """Text -> token ids, int64 [n]."""
    return np.array(tokenizer.encode(text.decode()).ids, dtype=np.int64)


def _byte_of_symbol() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes, inverted: printable bytes stand for themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes each token id stands for."""
    table = _byte_of_symbol()
    ids = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return [bytes(table[c] for c in symbol) for symbol, _ in ids]


def main() -> None:
    """Train and save the tokenizer; print what the corpus is."""
    corpus = load_corpus()
    tokenizer = train_tokenizer(corpus.train.decode())
    TOKENIZER_PATH.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(TOKENIZER_PATH))
    for name, text in (("training", corpus.train), ("held-out", corpus.held_out)):
        ids = encode(tokenizer, text)
        print(f"{name}: {len(text):,} bytes, {len(ids):,} tokens, {len(text) / len(ids):.3f} bytes/token")
    share = len(corpus.held_out) / (len(corpus.train) + len(corpus.held_out))
    print(f"held out: {share:.1%}; text sha256 {corpus.digest()[:16]}; saved {TOKENIZER_PATH.name}")


if __name__ == "__main__":
    main()
