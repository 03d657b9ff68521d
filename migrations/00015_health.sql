-- +goose Up

CREATE TABLE health_ack (
    kind     text        NOT NULL,
    subject  text        NOT NULL,
    state    text        NOT NULL CHECK (state IN ('muted', 'acknowledged')),
    by       text        NOT NULL,
    at       timestamptz NOT NULL DEFAULT tranche_now(),
    until    timestamptz,
    reason   text        NOT NULL,
    severity text        NOT NULL CHECK (severity IN ('info', 'warning', 'critical')),
    count    bigint      NOT NULL CHECK (count >= 0),
    worse_at timestamptz,
    seen_at  timestamptz NOT NULL DEFAULT tranche_now(),
    PRIMARY KEY (kind, subject),
    CHECK (state = 'muted' AND reason <> '' OR state = 'acknowledged' AND until IS NULL)
);
COMMENT ON TABLE health_ack IS 'Health conditions muted or acknowledged by operators.';
COMMENT ON COLUMN health_ack.kind IS 'Kind of the condition.';
COMMENT ON COLUMN health_ack.subject IS 'Its subject: an endpoint, a run or a node.';
COMMENT ON COLUMN health_ack.state IS
    'muted: not reported until it worsens or the time is up. acknowledged: being handled.';
COMMENT ON COLUMN health_ack.by IS 'Who muted or acknowledged it.';
COMMENT ON COLUMN health_ack.at IS 'When that was.';
COMMENT ON COLUMN health_ack.until IS 'When the mute ends; null: never.';
COMMENT ON COLUMN health_ack.reason IS 'The reason given.';
COMMENT ON COLUMN health_ack.severity IS 'Severity at that time.';
COMMENT ON COLUMN health_ack.count IS
    'Number of items, letters, messages or operations at that time; 1 if not counted.';
COMMENT ON COLUMN health_ack.worse_at IS
    'Since when a muted condition has been worse than then, so that it is reported until it ends; null: not worse.';
COMMENT ON COLUMN health_ack.seen_at IS
    'When the condition was last observed, to a day. Deleted after 90 days without it.';

-- +goose Down
DROP TABLE health_ack;
