"""The command line: `lullm`; `talk/`: run and chat, `remote/`: commands that call a running server."""
