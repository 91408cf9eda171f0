"""Small tokenizers of the kinds that detokenisation must survive, made on the spot."""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = [
    "The quick brown fox jumps over the lazy dog. Don't stop, they're here!",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\t# naïve café",
    "日本語のテキスト。中文字符，也在这里。한국어 문장입니다.",
    "emoji 🙂🚀👩‍👩‍👧 and   many    spaces",
]
SPECIAL = ["<unk>", "<s>", "</s>"]


def byte_level_bpe() -> Tokenizer:
    """GPT-2, Llama 3 and Qwen: tokens are runs of bytes, a character may span several."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def sentencepiece_bpe() -> Tokenizer:
    """Llama 2 and Mistral: ▁ for a space, unknown characters as byte tokens, first space dropped."""
    vocab = {token: i for i, token in enumerate(SPECIAL + [f"<0x{value:02X}>" for value in range(256)])}
    for piece in ["▁", "▁▁", *sorted(set("".join(TEXTS[:2]).replace(" ", "▁")))]:
        vocab.setdefault(piece, len(vocab))
    merges = []
    for left, right in [("▁", "t"), ("h", "e"), ("▁t", "he"), ("o", "w"), ("▁", "o"), ("▁", "▁")]:
        vocab.setdefault(left + right, len(vocab))
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(Regex(" "), "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer


def metaspace_unigram() -> Tokenizer:
    """T5 and Gemma-like: ▁ at word starts."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT-like: ## for what continues a word, spaces come from the decoder."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


ZOO: dict[str, Callable[[], Tokenizer]] = {
    "byte-level BPE": byte_level_bpe,
    "SentencePiece BPE": sentencepiece_bpe,
    "Metaspace Unigram": metaspace_unigram,
    "WordPiece": word_piece,
}
