-- A hint to the supervisors that listen; it leaves with the transaction's commit. $1 text: what happened.
SELECT pg_notify('pgsched', $1::text)
