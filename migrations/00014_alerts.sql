-- +goose Up

-- The row stays after a deletion: its messages refer to it, and version numbers are never reused.
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
COMMENT ON TABLE alert IS 'Alert rules: which conditions are reported, and to whom.';
COMMENT ON COLUMN alert.name IS 'Name of the rule.';
COMMENT ON COLUMN alert.version IS 'Increases with each change of its text.';
COMMENT ON COLUMN alert.spec IS 'The rule, with all its settings, but only the names of secrets.';
COMMENT ON COLUMN alert.source IS 'The rule as submitted.';
COMMENT ON COLUMN alert.state IS 'active or paused.';
COMMENT ON COLUMN alert.since IS 'When it was created or resumed; earlier conditions are not reported.';
COMMENT ON COLUMN alert.last_checked_at IS 'When conditions were last checked.';
COMMENT ON COLUMN alert.next_at IS
    'No message is sent before then: a pause after a failure, or an attempt in progress.';
COMMENT ON COLUMN alert.failures IS 'Failed attempts since the last message was delivered.';
COMMENT ON COLUMN alert.failing_since IS 'When the first of them failed; null: none.';
COMMENT ON COLUMN alert.error IS 'Error of the last attempt, or recipients not reached; empty: none.';
COMMENT ON COLUMN alert.notified_at IS 'When its receiver was last notified; null: never.';
COMMENT ON COLUMN alert.created_by IS 'Who created it.';
COMMENT ON COLUMN alert.created_at IS 'When it was created.';
COMMENT ON COLUMN alert.changed_by IS 'Who last changed it.';
COMMENT ON COLUMN alert.changed_at IS 'When it was last changed.';
COMMENT ON COLUMN alert.namespace IS 'The owning namespace, if the rule is limited to one; *: the installation.';
COMMENT ON COLUMN alert.deleted_at IS 'When it was deleted; null: not deleted.';

-- The primary key ensures that each condition is reported once. Writers lock the rule's row.
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
COMMENT ON TABLE alert_condition IS 'Conditions that rules have observed, and which were reported.';
COMMENT ON COLUMN alert_condition.alert IS 'The rule (alert.name).';
COMMENT ON COLUMN alert_condition.kind IS 'Kind of the condition.';
COMMENT ON COLUMN alert_condition.subject IS 'Its subject: a run, an endpoint or a node.';
COMMENT ON COLUMN alert_condition.version IS 'The version of the rule that last observed it.';
COMMENT ON COLUMN alert_condition.grp IS 'Group: conditions reported in one message.';
COMMENT ON COLUMN alert_condition.severity IS 'Severity: info, warning or critical.';
COMMENT ON COLUMN alert_condition.said IS 'Details when it was first observed.';
COMMENT ON COLUMN alert_condition.one_shot IS 'Whether it is an event, like a completion, which never ends.';
COMMENT ON COLUMN alert_condition.noted_at IS 'When it was first observed.';
COMMENT ON COLUMN alert_condition.ended_at IS 'When it ended, if that is still to be reported; null: not ended.';
COMMENT ON COLUMN alert_condition.notified_severity IS 'The severity last put into a message; null: none yet.';
COMMENT ON COLUMN alert_condition.before IS 'notified_severity before that message; null: it was the first.';
COMMENT ON COLUMN alert_condition.message IS
    'That message (alert_message.id, which may be deleted earlier); null: none.';

-- attempts and the leader's epoch fence sending.
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
-- Waiting messages; at most one per group.
CREATE UNIQUE INDEX alert_message_waiting ON alert_message (alert, grp) WHERE state = 'waiting';
-- Messages of a rule, newest first, and the last one of a group.
CREATE INDEX alert_message_made ON alert_message (alert, made_at);
COMMENT ON TABLE alert_message IS 'Messages to receivers, sent or waiting.';
COMMENT ON COLUMN alert_message.id IS 'ID of the message, the same for each attempt.';
COMMENT ON COLUMN alert_message.alert IS 'The rule (alert.name).';
COMMENT ON COLUMN alert_message.what IS 'alert, or test.';
COMMENT ON COLUMN alert_message.grp IS 'The group that it reports.';
COMMENT ON COLUMN alert_message.severity IS 'The highest severity in it.';
COMMENT ON COLUMN alert_message.body IS 'Content of the message.';
COMMENT ON COLUMN alert_message.state IS
    'waiting, delivered, given_up (its receiver was unreachable for long) or dropped (the rule was deleted).';
COMMENT ON COLUMN alert_message.attempts IS 'Number of attempts.';
COMMENT ON COLUMN alert_message.error IS 'Error of the last attempt, or recipients not reached; empty: none.';
COMMENT ON COLUMN alert_message.made_at IS 'When it was created.';
COMMENT ON COLUMN alert_message.ended_at IS 'When it was delivered, abandoned or dropped; null: waiting.';

-- +goose Down
DROP TABLE alert_message, alert_condition, alert;
