"""How an option is declared and read, and what becomes of the options of vLLM."""
