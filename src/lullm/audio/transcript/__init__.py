"""From a sound to what was said: `words` spells the prompts of Whisper's decoder, `language` names languages. `course`
is the work on a sound, window after window, as questions to a model; whoever runs the model answers them. `segment`
cuts an output at its times, and `form` writes segments as subtitles and JSON.
"""
