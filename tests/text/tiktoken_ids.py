"""Writes tests/text/tiktoken_ids.json: a small vocabulary of tiktoken's, and its ids of texts by family.

    pip install tiktoken==0.14.0 && python tests/text/tiktoken_ids.py

tiktoken is no dependency of the tests: they read the file.
"""

import base64
import json
import random
import unicodedata
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
PATTERNS = {
    "QWenTokenizer": ENDS + "|" + WORDS % "",
    "ChatGLM4Tokenizer": ENDS + "|" + WORDS % "{1,3}",
    "TikTokenTokenizer": "|".join([
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDS}?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]),
}  # fmt: skip
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind. They're friends; I'LL say it's fine.",
    "In 2024, 1234567 people read 12 or 345 books. HelloWorld, camelCase and SCREAMING_CASE are names.",
    "    if x == 10:\n        return {'a': [1, 2, 3]}\n\n\n\telse:\r\n  pass   \n",
    "你好，世界。今天天气很好，我们去公园散步吧！ABC公司2024年",
    "日本語のテキスト、カタカナとひらがな。한국어 문장도 있습니다.",
    "Größe, café, cafe\u0301, naïve — “quotes” … 🙂🙃 👩‍👩‍👧 ½ Ⅷ ǅ",
    "Привет, мир! Ελληνικά και αγγλικά. עברית ערבית العربية हिन्दी ไทย",
    "aaaaaaaaaaaa bbbbbb      !!!!!!! ------ ////",
]


def trained(count):
    """Ranks of a byte-level BPE: the bytes, then the most frequent pairs of words; some that no pair makes."""
    import regex

    ranks = {bytes([byte]): rank for rank, byte in enumerate([*range(33, 256), *range(33)])}
    cut = [word.encode() for text in CORPUS for word in regex.findall(PATTERNS["QWenTokenizer"], text)]
    words = [[bytes([byte]) for byte in word] for word in cut]
    while len(ranks) < count:
        pairs = {}
        for word in words:
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(sorted(pairs), key=pairs.__getitem__)
        ranks[b"".join(best)] = len(ranks)
        words = [joined(word, best) for word in words]
    for odd in ("eq", "qui", "xyzzy", "   if", "天天", "llo W", "aaa"):
        ranks.setdefault(odd.encode(), len(ranks))
    return ranks


def joined(word, pair):
    found = []
    for part in word:
        if found and (found[-1], part) == pair:
            found[-1] += part
        else:
            found.append(part)
    return found


def texts():
    """The corpus, pieces of it in other orders, and single characters of many kinds."""
    rng = random.Random(0)
    everything = "".join(CORPUS)
    yield from CORPUS
    for _ in range(60):
        parts = []
        for _ in range(6):
            start = rng.randrange(len(everything))
            parts.append(everything[start : start + rng.randrange(1, 9)])
        yield "".join(parts)
    for _ in range(20):
        yield "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xC0, 0x600), 32, 10])) for _ in range(20))


def main():
    import tiktoken

    ranks = trained(620)
    found = {"ranks": [base64.b64encode(token).decode() for token in ranks], "ids": {}}
    found["texts"] = list(texts())
    for name, pattern in PATTERNS.items():
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        composed = name == "QWenTokenizer"
        given = [unicodedata.normalize("NFC", text) if composed else text for text in found["texts"]]
        found["ids"][name] = [encoding.encode_ordinary(text) for text in given]
    FILE.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
