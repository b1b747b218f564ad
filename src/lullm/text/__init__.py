"""Strings <-> token ids: tokenizer, chat template, streaming detokenizer, stop strings, bad words. No torch."""
