"""The cache alone: no task and no worker, in a script or a web service that enqueues nothing.

python prices.py             # in this folder; a second time within a minute it reads no file
"""

import csv
from pathlib import Path

from selaras.blocking import Selaras  # every call blocks; `from selaras import Selaras` is the same to be awaited

app = Selaras()  # values are shared by all processes that name the same store
FILE = Path(__file__).with_name("prices.csv")


@app.cached(ttl="1m")
def prices(currency: str) -> dict[str, float]:
    print(f"(reads {FILE.name})")
    with FILE.open(encoding="utf-8", newline="") as rows:
        return {row["name"]: float(row["price"]) for row in csv.DictReader(rows) if row["currency"] == currency}


if __name__ == "__main__":
    if not FILE.exists():
        FILE.write_text("name,currency,price\nkettle,EUR,10\nteapot,EUR,20\n", encoding="utf-8")
    with app:
        print(prices("EUR"))
        with prices.key("EUR").writing():  # around a write: from here to its end no process is served an old value
            FILE.write_text(FILE.read_text(encoding="utf-8").replace("10", "12"), encoding="utf-8")
        print(prices("EUR"))
