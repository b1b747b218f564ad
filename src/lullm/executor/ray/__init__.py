"""Workers on any number of nodes: Ray places and starts them; plans and answers go over lullm's own sockets."""
