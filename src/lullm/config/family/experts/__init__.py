"""Families with a mixture of experts over the shared decoder, by how their routers score."""
