-- +goose Up

-- Streams that take no messages although their server answers: what the node that leads has found out by trying, for
-- everybody who asks why nothing moves. One that takes messages again has no row.
CREATE TABLE stream_fault (
    stream text        PRIMARY KEY,
    since  timestamptz NOT NULL DEFAULT clock_timestamp(),
    detail text        NOT NULL  -- what the server said when it was to take a message into a new stream; empty: it took it
);

-- +goose Down
DROP TABLE stream_fault;
