"""A shop over Django, for tests and for processes that they kill: `python -m tests.contrib.djangoed FOLDER WHEN STORE`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.db import connections, models, transaction

from selaras.blocking import Selaras
from selaras.contrib.django import bind

if not settings.configured:
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": "/nowhere",
                "OPTIONS": {"timeout": 1},
            }
        },
        USE_TZ=True,
    )
    django.setup()


class Product(models.Model):
    price: models.IntegerField[int, int] = models.IntegerField()
    category: models.IntegerField[int, int] = models.IntegerField()

    class Meta:
        app_label = "shop"


class Special(Product):
    discount: models.IntegerField[int, int] = models.IntegerField(default=0)

    class Meta:
        app_label = "shop"


class Marked(models.Model):
    name: models.CharField[str, str] = models.CharField(max_length=9, primary_key=True)

    class Meta:
        app_label = "shop"


class Shop:
    """One a process: Django's models and connections are, too. `use` gives it a folder."""

    def __init__(self, url: str, lease: float = 15.0) -> None:
        self.app = app = Selaras(url, lease=lease, heartbeat=lease / 3)
        self.loads: list[int] = []
        self.mailed: list[str] = []

        @app.cached(ttl="1h")
        def price(id: int) -> int | None:
            self.loads.append(id)
            try:
                return Product.objects.filter(pk=id).values_list("price", flat=True).first()
            finally:
                connections.close_all()  # this thread's

        @app.cached(ttl="1h")
        def listed(category: int) -> list[int]:
            try:
                return list(Product.objects.filter(category=category).order_by("pk").values_list("pk", flat=True))
            finally:
                connections.close_all()

        @app.cached(ttl="1h")
        def marked(name: str) -> bool:
            try:
                return Marked.objects.filter(pk=name).exists()
            finally:
                connections.close_all()

        @app.task
        def mail(text: str) -> None:
            self.mailed.append(text)

        self.price, self.listed, self.marked, self.mail = price, listed, marked, mail
        self.keys: Callable[[Any], list[Any]] = lambda row: [price.key(row.pk), listed.key(row.category)]

        def keys(row: Product) -> list[Any]:
            return self.keys(row)  # a test may give others

        bind(app, {Product: keys, Marked: marked})

    def use(self, folder: Path) -> None:
        connections.close_all()
        connections["default"].settings_dict["NAME"] = str(folder / "shop.db")
        connections.settings["default"]["NAME"] = str(folder / "shop.db")
        self.loads.clear()
        self.mailed.clear()

    def fill(self) -> None:
        with connections["default"].schema_editor() as editor:
            for model in (Product, Special, Marked):
                editor.create_model(model)
        with connections["default"].cursor() as cursor:
            cursor.execute("pragma journal_mode=wal")
        Product.objects.bulk_create([Product(id=n, price=10 * n, category=7) for n in (1, 2)])
        # For tests after which intents stand for a grace.
        Product.objects.bulk_create([Product(id=n, price=10 * n, category=9) for n in (5, 6)])

    def stands(self, id: int) -> bool:
        return "intent" in self.price.key(id).explain()

    def work(self) -> list[str]:
        self.app.worker(burst=True).run()
        return self.mailed


if __name__ == "__main__":
    folder, when = Path(sys.argv[1]), sys.argv[2]

    shop = Shop(sys.argv[3], lease=1.0)
    shop.use(folder)
    connection: Any = connections["default"]

    def pause() -> None:
        print("here", flush=True)
        time.sleep(120)

    if when == "committed":
        commit = connection._commit

        def commit_and_pause() -> None:
            commit()
            pause()

        connection._commit = commit_and_pause
    with transaction.atomic():
        row = Product.objects.get(pk=1)
        row.price = 11
        row.save()
        shop.mail.enqueue("repriced")
        if when == "saved":
            pause()
    os._exit(1)
