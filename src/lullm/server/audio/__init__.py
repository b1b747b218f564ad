"""The endpoints for sounds, in OpenAI's dialect: `transcription` has the handlers, `schema` their fields, `multipart`
the form of their bodies; `asking` has an engine answer the questions of `lullm.audio.transcript`, `text_stream` tells
the text as it comes.
"""
