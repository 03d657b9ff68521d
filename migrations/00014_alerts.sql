-- +goose Up

-- The row stays after a deletion: its messages refer to it, and a version's number is never used again.
CREATE TABLE alert (
    name          text        COLLATE "C" PRIMARY KEY CHECK (name <> ''),
    version       integer     NOT NULL DEFAULT 1 CHECK (version >= 1),
    spec          jsonb       NOT NULL,
    source        text        NOT NULL,
    state         text        NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused')),
    since         timestamptz NOT NULL DEFAULT tranche_now(),
    last_checked_at     timestamptz NOT NULL DEFAULT tranche_now(),
    next_at       timestamptz NOT NULL DEFAULT tranche_now(),
    failures      integer     NOT NULL DEFAULT 0 CHECK (failures >= 0),
    failing_since timestamptz,
    error         text        NOT NULL DEFAULT '',
    notified_at   timestamptz,
    created_by    text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT tranche_now(),
    changed_by    text        NOT NULL,
    changed_at    timestamptz NOT NULL DEFAULT tranche_now(),
    deleted_at    timestamptz,
    namespace     text        GENERATED ALWAYS AS (
        CASE WHEN jsonb_array_length(spec->'namespaces') = 1 THEN spec->'namespaces'->>0 ELSE '*' END) STORED,
    CHECK ((failures > 0) = (failing_since IS NOT NULL))
) WITH (fillfactor = 70);
COMMENT ON TABLE alert IS 'Rules: who is told of what.';
COMMENT ON COLUMN alert.name IS 'Its name.';
COMMENT ON COLUMN alert.version IS 'One more with each change of its text.';
COMMENT ON COLUMN alert.spec IS 'The rule, with all its settings; of secrets their names only.';
COMMENT ON COLUMN alert.source IS 'The rule as people wrote it.';
COMMENT ON COLUMN alert.state IS 'active or paused.';
COMMENT ON COLUMN alert.since IS 'When it was made or resumed: what happened before is not told.';
COMMENT ON COLUMN alert.last_checked_at IS 'When it was last looked what there is to tell.';
COMMENT ON COLUMN alert.next_at IS 'Its receiver is not told anything before: a pause after what failed, or an attempt.';
COMMENT ON COLUMN alert.failures IS 'Attempts that failed since its receiver was last told something.';
COMMENT ON COLUMN alert.failing_since IS 'When the first of them failed; null: none did.';
COMMENT ON COLUMN alert.error IS 'Why the last attempt failed, or whom it did not reach; empty: neither.';
COMMENT ON COLUMN alert.notified_at IS 'When its receiver was last notified; null: never.';
COMMENT ON COLUMN alert.created_by IS 'Who made it.';
COMMENT ON COLUMN alert.created_at IS 'When.';
COMMENT ON COLUMN alert.changed_by IS 'Who changed it last.';
COMMENT ON COLUMN alert.changed_at IS 'When.';
COMMENT ON COLUMN alert.namespace IS 'The one that owns it: the only one that it is limited to; *: the installation.';
COMMENT ON COLUMN alert.deleted_at IS 'When it was deleted; null: it was not.';

-- Its primary key is what makes a condition told once, whoever looks. Whoever writes here holds the rule's row.
CREATE TABLE alert_condition (
    alert     text        COLLATE "C" NOT NULL REFERENCES alert,
    kind      text        NOT NULL,
    subject   text        NOT NULL,
    version   integer     NOT NULL,
    grp       text        NOT NULL,
    severity  text        NOT NULL CHECK (severity IN ('info', 'warning', 'critical')),
    said      jsonb       NOT NULL,
    one_shot  boolean     NOT NULL,
    noted_at  timestamptz NOT NULL DEFAULT tranche_now(),
    ended_at  timestamptz,
    notified_severity text CHECK (notified_severity IN ('info', 'warning', 'critical')),
    before    text        CHECK (before IN ('info', 'warning', 'critical')),
    message   uuid,
    PRIMARY KEY (alert, kind, subject),
    CHECK (ended_at IS NULL OR (notified_severity IS NOT NULL AND NOT one_shot))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE alert_condition IS 'What a rule has seen, and what of it was told.';
COMMENT ON COLUMN alert_condition.alert IS 'The rule (alert.name).';
COMMENT ON COLUMN alert_condition.kind IS 'What it is: a short code.';
COMMENT ON COLUMN alert_condition.subject IS 'Of what: a run, an endpoint, a node.';
COMMENT ON COLUMN alert_condition.version IS 'The version of the rule that saw it last.';
COMMENT ON COLUMN alert_condition.grp IS 'What it is told together with.';
COMMENT ON COLUMN alert_condition.severity IS 'How much it matters: info, warning or critical.';
COMMENT ON COLUMN alert_condition.said IS 'What was said of it when it was first seen.';
COMMENT ON COLUMN alert_condition.one_shot IS 'It happened, like a completion, and never ends.';
COMMENT ON COLUMN alert_condition.noted_at IS 'When it was first seen.';
COMMENT ON COLUMN alert_condition.ended_at IS 'When it was seen to be over, which is still to be told; null: it is not over.';
COMMENT ON COLUMN alert_condition.notified_severity IS 'The severity with which it was put into a message; null: it was not yet.';
COMMENT ON COLUMN alert_condition.before IS 'notified_severity before that message; null: it was the first.';
COMMENT ON COLUMN alert_condition.message IS 'That message (alert_message.id, which goes earlier); null: none.';

-- attempts and the leader''s epoch together fence those who send.
CREATE TABLE alert_message (
    id       uuid        PRIMARY KEY,
    alert    text        COLLATE "C" NOT NULL REFERENCES alert,
    what     text        NOT NULL CHECK (what IN ('alert', 'test')),
    grp      text        NOT NULL,
    severity text        NOT NULL CHECK (severity IN ('info', 'warning', 'critical')),
    body     jsonb       NOT NULL,
    state    text        NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'delivered', 'given_up', 'dropped')),
    attempts integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    error    text        NOT NULL DEFAULT '',
    made_at  timestamptz NOT NULL DEFAULT tranche_now(),
    ended_at timestamptz,
    CHECK ((state = 'waiting') = (ended_at IS NULL))
) WITH (fillfactor = 70);
-- What is to be sent; at most one message of a group waits.
CREATE UNIQUE INDEX alert_message_waiting ON alert_message (alert, grp) WHERE state = 'waiting';
-- What a rule has told, newest first, and when it last told of a group.
CREATE INDEX alert_message_made ON alert_message (alert, made_at);
COMMENT ON TABLE alert_message IS 'What receivers were told, and are to be told.';
COMMENT ON COLUMN alert_message.id IS 'Of the message, the same for each attempt.';
COMMENT ON COLUMN alert_message.alert IS 'The rule (alert.name).';
COMMENT ON COLUMN alert_message.what IS 'alert, or test: someone wanted to see whether it arrives.';
COMMENT ON COLUMN alert_message.grp IS 'The group that it tells of.';
COMMENT ON COLUMN alert_message.severity IS 'The worst of what it tells.';
COMMENT ON COLUMN alert_message.body IS 'What it tells.';
COMMENT ON COLUMN alert_message.state IS
    'waiting, delivered, given_up (its receiver could not be told for long) or dropped (the rule was deleted).';
COMMENT ON COLUMN alert_message.attempts IS 'How often it was tried.';
COMMENT ON COLUMN alert_message.error IS 'Why the last attempt failed, or whom it did not reach; empty: neither.';
COMMENT ON COLUMN alert_message.made_at IS 'When it was made.';
COMMENT ON COLUMN alert_message.ended_at IS 'When it came to its end; null: it waits.';

-- +goose Down
DROP TABLE alert_message, alert_condition, alert;
