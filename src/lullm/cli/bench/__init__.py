"""`lullm bench`: loads a server and says how it answers."""
