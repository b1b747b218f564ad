"""OpenAI's Responses: a request has its whole conversation, or goes on from a response or from items in the `store`."""
