"""The endpoints for sounds, in OpenAI's dialect: `transcription` has the handlers, `schema` their fields, `multipart`
the form of their bodies; `words` spells the prompts, `text_stream` tells the text as it comes.
"""
