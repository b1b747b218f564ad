"""Model families: one short file each over one shared decoder, and the registry that finds them."""
