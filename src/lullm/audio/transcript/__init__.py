"""From a sound to what was said: `words` spells the prompts of Whisper's decoder, `request` that of Voxtral; `language`
names languages. `course` is the work on a sound, window after window, as each `question` to a model; whoever runs the
model answers them. `segment` cuts an output at its times; `word_times` asks when single words are said: `alignment`
finds it for each token, `spoken` joins tokens to words. `in_order` joins texts that are heard together, `form` writes
subtitles and JSON.
"""
