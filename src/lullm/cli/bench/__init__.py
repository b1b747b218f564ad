"""`lullm bench`: how fast a server answers, and how fast an engine generates and starts here."""
