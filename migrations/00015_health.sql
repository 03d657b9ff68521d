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
COMMENT ON TABLE health_ack IS
    'What people said of conditions of health: that they are muted, or that someone has taken them.';
COMMENT ON COLUMN health_ack.kind IS 'What the condition is: a short code.';
COMMENT ON COLUMN health_ack.subject IS
    'Of what: an endpoint, a run, a node.';
COMMENT ON COLUMN health_ack.state IS
    'muted: not reported until it gets worse, or the time is up. acknowledged: someone is handling it.';
COMMENT ON COLUMN health_ack.by IS 'Who said so.';
COMMENT ON COLUMN health_ack.at IS 'When.';
COMMENT ON COLUMN health_ack.until IS 'Until when it is muted; NULL: permanently.';
COMMENT ON COLUMN health_ack.reason IS 'Why.';
COMMENT ON COLUMN health_ack.severity IS 'How severe it was then.';
COMMENT ON COLUMN health_ack.count IS
    'How many items, letters, messages or operations it was about then, 1 of what is not counted.';
COMMENT ON COLUMN health_ack.worse_at IS
    'Since when what is muted is worse than it was then: it is told of until it is over; NULL: it has not got worse.';
COMMENT ON COLUMN health_ack.seen_at IS
    'When the condition was last seen, within a day. What no one has seen for 90 days is forgotten.';

-- +goose Down
DROP TABLE health_ack;
