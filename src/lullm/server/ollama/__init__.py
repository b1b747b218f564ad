"""The dialect of Ollama."""
