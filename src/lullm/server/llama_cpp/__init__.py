"""The dialect of llama.cpp's server."""
