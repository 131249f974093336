"""Hooks into other libraries, each in a module of its own: `selaras.contrib.sqlalchemy`, `selaras.contrib.django`."""
