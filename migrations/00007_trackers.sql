-- +goose Up

-- A batch without a row here belongs to a run, and the tracker service cannot change it.
CREATE TABLE tracker_service (
    batch_id         uuid        PRIMARY KEY REFERENCES tracker_batch ON DELETE CASCADE,
    owner            text        COLLATE "C" NOT NULL CHECK (owner <> ''),
    key              text        COLLATE "C" CHECK (key <> ''),
    created_by       text        NOT NULL DEFAULT '',
    open_idle        interval    NOT NULL CHECK (open_idle > interval '0'),
    sealed_idle      interval    NOT NULL CHECK (sealed_idle > interval '0'),
    keep             interval    NOT NULL CHECK (keep > interval '0'),
    active_at        timestamptz NOT NULL DEFAULT tranche_now(), -- acks write it seldom
    reap_at          timestamptz NOT NULL,    -- a hint: the reaper decides by the ages
    expired_at       timestamptz,
    deleted_at       timestamptz,
    event_id         uuid,
    event            jsonb,
    webhook_url      text,
    -- Hosts are called concurrently; h, H, h. and h:443 are the same host.
    webhook_host     text        COLLATE "C"
                                 GENERATED ALWAYS AS (regexp_replace(regexp_replace(
                                     lower(substring(webhook_url FROM '://([^/?#]*)')),
                                     CASE WHEN webhook_url ~* '^https:' THEN ':(443)?$' ELSE ':(80)?$' END, ''),
                                     '\.(:[0-9]+)?$', '\1')) STORED,
    webhook_secret   text,
    webhook_state    text        NOT NULL DEFAULT 'none'
                                 CHECK (webhook_state IN ('none', 'due', 'delivered', 'given_up')),
    webhook_attempts integer     NOT NULL DEFAULT 0 CHECK (webhook_attempts >= 0),
    webhook_due_at   timestamptz,
    webhook_next_at  timestamptz,
    webhook_error    text,
    namespace        text        COLLATE "C" NOT NULL DEFAULT 'default' REFERENCES namespace,
    CONSTRAINT tracker_service_key UNIQUE (namespace, owner, key),
    CONSTRAINT tracker_service_expired CHECK (expired_at IS NULL OR event_id IS NOT NULL),
    CONSTRAINT tracker_service_webhook CHECK (webhook_state = 'none'
        OR (webhook_url IS NOT NULL AND event IS NOT NULL AND webhook_due_at IS NOT NULL)),
    CONSTRAINT tracker_service_webhook_due CHECK (webhook_state <> 'due' OR webhook_next_at IS NOT NULL)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
-- The reaper's next checks, and what it must remove.
CREATE INDEX tracker_service_reap ON tracker_service (reap_at) WHERE deleted_at IS NULL;
CREATE INDEX tracker_service_deleted ON tracker_service (deleted_at) WHERE deleted_at IS NOT NULL;
-- Trackers of an owner, newest first.
CREATE INDEX tracker_service_owner ON tracker_service (owner, batch_id);
-- Due webhooks by host, so that one that is down does not block the rest.
CREATE INDEX tracker_service_webhooks ON tracker_service (webhook_host, webhook_next_at) WHERE webhook_state = 'due';
COMMENT ON TABLE tracker_service IS
    'Trackers: batches of items opened by other programs (tranche tracker open), and where to report their completion.';
COMMENT ON COLUMN tracker_service.batch_id IS 'The tracker (tracker_batch.id).';
COMMENT ON COLUMN tracker_service.owner IS 'Owner, as given by the caller.';
COMMENT ON COLUMN tracker_service.key IS 'The owner''s name for it; null: none, or the tracker was deleted.';
COMMENT ON COLUMN tracker_service.namespace IS 'The namespace that owns it.';
COMMENT ON COLUMN tracker_service.created_by IS 'Who opened it.';
COMMENT ON COLUMN tracker_service.open_idle IS 'An open tracker expires after this time without activity.';
COMMENT ON COLUMN tracker_service.sealed_idle IS 'A sealed tracker expires after this time without activity.';
COMMENT ON COLUMN tracker_service.keep IS 'How long it is kept after its end.';
COMMENT ON COLUMN tracker_service.active_at IS 'Approximate time of the last activity.';
COMMENT ON COLUMN tracker_service.reap_at IS 'When it is next checked for expiry or deletion.';
COMMENT ON COLUMN tracker_service.expired_at IS 'When it expired; null: not expired.';
COMMENT ON COLUMN tracker_service.deleted_at IS
    'When it was deleted: callers no longer see it, and its rows are removed in small batches; null: not deleted.';
COMMENT ON COLUMN tracker_service.event_id IS 'ID of the event about its end; null: not ended.';
COMMENT ON COLUMN tracker_service.event IS 'The event about its end.';
COMMENT ON COLUMN tracker_service.webhook_url IS 'URL that the event is sent to; null: none.';
COMMENT ON COLUMN tracker_service.webhook_host IS 'Host of that URL.';
COMMENT ON COLUMN tracker_service.webhook_secret IS 'Name of the signing secret in the operator''s file; null: none.';
COMMENT ON COLUMN tracker_service.webhook_state IS 'none: nothing to send; due; delivered; given_up.';
COMMENT ON COLUMN tracker_service.webhook_attempts IS 'Number of attempts to send it.';
COMMENT ON COLUMN tracker_service.webhook_due_at IS 'When it became due.';
COMMENT ON COLUMN tracker_service.webhook_next_at IS 'When the next attempt is due.';
COMMENT ON COLUMN tracker_service.webhook_error IS 'Error of the last attempt; null: none.';

CREATE TABLE tracker_add (
    batch_id    uuid    NOT NULL REFERENCES tracker_batch ON DELETE CASCADE,
    key         text    COLLATE "C" NOT NULL CHECK (key <> ''),
    first_group integer NOT NULL CHECK (first_group >= 0),
    groups      integer NOT NULL CHECK (groups >= 1),
    items       bigint  NOT NULL CHECK (items >= 1),
    PRIMARY KEY (batch_id, key)
);
COMMENT ON TABLE tracker_add IS 'Adds to trackers with a key: repeating one adds nothing.';
COMMENT ON COLUMN tracker_add.batch_id IS 'The tracker (tracker_batch.id).';
COMMENT ON COLUMN tracker_add.key IS 'The key of the add.';
COMMENT ON COLUMN tracker_add.first_group IS 'The first group added (tracker_group.grp).';
COMMENT ON COLUMN tracker_add.groups IS 'Number of groups added.';
COMMENT ON COLUMN tracker_add.items IS 'Number of items added.';

-- No foreign key: with one, each failed ack would lock the batch's row.
CREATE TABLE tracker_failed (
    batch_id uuid      NOT NULL,
    grp      integer   NOT NULL CHECK (grp >= 0),
    code     text      COLLATE "C" NOT NULL CHECK (code <> ''),
    mask     bit(8192) NOT NULL,
    PRIMARY KEY (batch_id, grp, code)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE tracker_failed ALTER COLUMN mask SET STORAGE PLAIN;
COMMENT ON TABLE tracker_failed IS 'Tracker items acknowledged as failed.';
COMMENT ON COLUMN tracker_failed.batch_id IS 'The tracker (tracker_batch.id).';
COMMENT ON COLUMN tracker_failed.grp IS 'The group (tracker_group.grp).';
COMMENT ON COLUMN tracker_failed.code IS 'Their error code.';
COMMENT ON COLUMN tracker_failed.mask IS 'These items, as bits of the group. An item has at most one code.';

-- +goose Down
DROP TABLE tracker_failed, tracker_add, tracker_service;
