"""Workers on any number of nodes: Ray places and starts them, and plans and answers go over sockets of lullm's own."""
