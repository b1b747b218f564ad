"""OpenAI's Responses: a request has its whole conversation, or goes on from a response in the `store`."""
