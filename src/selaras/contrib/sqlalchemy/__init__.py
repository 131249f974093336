"""Transactions of SQLAlchemy 2 as scopes: `bind(app, Session, {Product: product})`.

Where it takes hold:

    a session begins          reads and enqueues of the code around it are within the transaction
    a row is written          its keys, as it was and as it is, belong to the transaction
    COMMIT is about to go     intents are planted, jobs wait in the store; if that fails nothing is committed
    it is committed           intents are resolved, jobs are released
    it is rolled back         jobs are dropped; the store was never asked, or is told
    COMMIT raised             the datastore's own refusal is a rollback. Anything else leaves it open: the intents stand
                              until a late commit must have been seen, and the jobs are released
"""

from selaras.contrib.sqlalchemy._binding import bind as bind, writes as writes
