-- +goose Up

-- Which timeline of its history the database writes: a promoted standby begins a new one. 0 where that cannot be read:
-- on a standby, and where a server does not tell.
-- +goose StatementBegin
CREATE FUNCTION database_timeline() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
EXCEPTION WHEN OTHERS THEN
    RETURN 0;
END $$;
-- +goose StatementEnd

-- One row: a count that the leader raises, and that must never be lower than it was.
CREATE TABLE database_mark (
    name     text        PRIMARY KEY,
    lineage  uuid        NOT NULL,           -- of this database: marks of others say nothing of it
    beat     bigint      NOT NULL,
    timeline bigint      NOT NULL,           -- 0: not known yet
    at       timestamptz NOT NULL
) WITH (fillfactor = 50);
INSERT INTO database_mark (name, lineage, beat, timeline, at)
VALUES ('mark', gen_random_uuid(), 0, 0, clock_timestamp());

-- When the database went back in time, or another server took it over.
CREATE TABLE database_gap (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    noticed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lost       boolean     NOT NULL,         -- false: another server took over, and what is known is there
    from_at    timestamptz NOT NULL,         -- what was confirmed after this is lost, or may be
    to_at      timestamptz NOT NULL,         -- up to this
    runs       integer     NOT NULL          -- that were under way
);

-- +goose Down
DROP TABLE database_gap, database_mark;
DROP FUNCTION database_timeline();
