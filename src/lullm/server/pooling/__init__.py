"""The endpoints for vectors of whole prompts: embeddings, scores of pairs, reranking."""
