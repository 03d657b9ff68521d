package demo

// All data of an account derives from its number by hashing: banks of one size are identical.

const (
	// createMovements creates 22 movements for each of the accounts 1 to the setting bank.accounts. Every fifth is a
	// savings account: small monthly deposits, and withdrawals in July and December. The others have a monthly income
	// and spend 70% to 130% of it.
	createMovements = `
CREATE UNLOGGED TABLE movement AS
SELECT a AS account, make_date(2025, (k - 1) % 12 + 1, 1 + r % 28) AS booked,
    CASE WHEN a % 5 = 0 AND k <= 12 THEN base / 10 + r % 5000
         WHEN a % 5 = 0 THEN -base / 3
         WHEN k <= 12 THEN base + r % 16384
         ELSE -(base::bigint * (70 + r % 61) / 100) END::bigint AS amount
FROM generate_series(1, current_setting('bank.accounts')::int) a
CROSS JOIN LATERAL (SELECT 180000 + (hashint4extended(a, 1) & 262143)::int AS base) b
CROSS JOIN generate_series(1, 24) k
CROSS JOIN LATERAL (SELECT (hashint4extended(a * 32 + k, 2) & 1048575)::int AS r) h
WHERE a % 5 <> 0 OR k <= 12 OR k IN (19, 24);
CREATE INDEX ON movement (account);
ANALYZE movement`

	// copyMoved, createMoved and pasteMoved carry each account's sum to the database accounts, which keeps balances.
	copyMoved   = `COPY (SELECT account, sum(amount)::bigint FROM movement GROUP BY account) TO STDOUT BINARY`
	createMoved = `CREATE UNLOGGED TABLE moved (account int, sum bigint)`
	pasteMoved  = `COPY moved FROM STDIN BINARY`

	// createAccounts gives pgbench's accounts owners and balances.
	createAccounts = `
CREATE UNLOGGED TABLE account AS
WITH words AS (SELECT
    '{Ada,Amir,Bjørn,Carla,Chloé,David,Elin,Fatima,Georg,Hanna,Ines,Jón,Karim,Lena,Marek,Nadia,Olav,Priya,Quentin,Rosa,
      Sören,Tuva,Umar,Vera,Wanda,Xavier,Yasmin,Zoë}'::text[] AS first,
    '{Andersson,Bakker,Costa,Dahl,Eriksen,Fischer,García,Haugen,Ivanova,Jørgensen,Kowalski,Lindqvist,Müller,Nakamura,
      Okafor,Papadakis,Quist,Rossi,Solheim,Tanaka,Ueland,Vermeer,Weiß,Yilmaz,Østergård}'::text[] AS last,
    '{Anchor Street,Beacon Road,Chapel Lane,Dock Street,Elm Avenue,Ferry Road,Gull Lane,Harbour View,Island Road,
      Jetty Walk,Kelp Street,Lantern Lane,Mill Road,Northgate,Orchard Way,Pier Street,Quay Street,Rope Walk,Sail Lane,
      Tower Street}'::text[] AS street,
    '{Harbour,Eastport,Northgate,Saltmarsh,Fairhaven,Westbay,Stonepier,Lowmoor}'::text[] AS town
)
SELECT aid AS id,
    format('HS%s 0150 %s %s', 10 + h % 83, to_char(aid / 10000, 'FM0000'), to_char(aid % 10000, 'FM0000')) AS number,
    CASE WHEN aid % 5 = 0 THEN 'Savings account' ELSE 'Current account' END AS kind,
    date '1994-03-01' + h % 11000 AS opened,
    first[1 + h % 28] || ' ' || last[1 + h / 28 % 25] AS owner,
    street[1 + h / 700 % 20] || ' ' || 1 + h / 14000 % 90 AS street,
    to_char(150 + 110 * (h / 3 % 8), 'FM0000') || ' ' || town[1 + h / 3 % 8] AS place,
    opening, opening + coalesce(moved.sum, 0) AS closing
FROM words, pgbench_accounts
CROSS JOIN LATERAL (SELECT (hashint4extended(aid, 3) & 134217727)::int AS h) hashed
CROSS JOIN LATERAL (SELECT (50000 + (hashint4extended(aid, 4) & 1048575)) * CASE WHEN aid % 5 = 0 THEN 4 ELSE 1 END
    AS opening) begun
LEFT JOIN moved ON moved.account = aid
WHERE aid <= current_setting('bank.accounts')::int;
ALTER TABLE account ADD PRIMARY KEY (id);
DROP TABLE moved;
ANALYZE account`

	// createBranches creates two dozen branches and assigns the customers.
	createBranches = `
CREATE UNLOGGED TABLE branch AS
SELECT id::int, name, name || ' Street ' || 2 + id * 3 AS street,
    to_char(100 + 17 * id, 'FM0000') || ' Harbour' AS place, '+47 22 00 ' || to_char(id, 'FM00') || ' 00' AS phone
FROM unnest('{Anchor,Beacon,Castle,Dockside,Eastport,Ferry,Granary,Harbour,Island,Jetty,King''s,Lighthouse,Market,
    Northgate,Old Town,Pier,Quay,River,Southgate,Tower,University,Viaduct,Westbay,Yard}'::text[])
    WITH ORDINALITY AS b (name, id);
ALTER TABLE branch ADD PRIMARY KEY (id);
CREATE UNLOGGED TABLE customer AS
SELECT account, branch, ('{Aksel,Berit,Camilla,Daniel,Eva,Fredrik,Gro}'::text[])[1 + adviser % 7] || ' '
    || ('{Aas,Berg,Christensen,Dale,Evensen,Foss,Gran,Holm,Iversen,Juul,Krog}'::text[])[1 + adviser % 11] AS adviser
FROM generate_series(1, current_setting('bank.accounts')::int) account
CROSS JOIN LATERAL (SELECT (hashint4extended(account, 5) & 1048575)::int AS h) hashed
CROSS JOIN LATERAL (SELECT 1 + h % 24 AS branch, h % 24 * 3 + h / 24 % 3 AS adviser) found;
ALTER TABLE customer ADD PRIMARY KEY (account);
ANALYZE`
)
