-- +goose Up

-- A batch without such a row belongs to a run, and the service cannot touch it.
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
    -- Hosts are called side by side: h, H, h. and h:443 are one and the same.
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
-- What the reaper looks at next, and what it has to clear away.
CREATE INDEX tracker_service_reap ON tracker_service (reap_at) WHERE deleted_at IS NULL;
CREATE INDEX tracker_service_deleted ON tracker_service (deleted_at) WHERE deleted_at IS NOT NULL;
-- What an owner has, newest first.
CREATE INDEX tracker_service_owner ON tracker_service (owner, batch_id);
-- Webhooks that are owed, host by host: one that is down does not stand before the others.
CREATE INDEX tracker_service_webhooks ON tracker_service (webhook_host, webhook_next_at) WHERE webhook_state = 'due';
COMMENT ON TABLE tracker_service IS
    'Trackers: batches of items that others have opened (tranche tracker open), and who is told when all are '
    'acknowledged.';
COMMENT ON COLUMN tracker_service.batch_id IS 'The tracker (tracker_batch.id).';
COMMENT ON COLUMN tracker_service.owner IS 'Whom it was opened for.';
COMMENT ON COLUMN tracker_service.key IS 'The owner''s name for it; null: none, or the tracker is deleted.';
COMMENT ON COLUMN tracker_service.namespace IS 'The namespace that owns it.';
COMMENT ON COLUMN tracker_service.created_by IS 'Who opened it.';
COMMENT ON COLUMN tracker_service.open_idle IS 'How long nothing may happen to it while it is open, before it expires.';
COMMENT ON COLUMN tracker_service.sealed_idle IS 'The same when it is sealed.';
COMMENT ON COLUMN tracker_service.keep IS 'For how long it is kept when it has ended.';
COMMENT ON COLUMN tracker_service.active_at IS 'When something last happened to it, about.';
COMMENT ON COLUMN tracker_service.reap_at IS 'When it is looked at next, whether it has expired or is to be deleted.';
COMMENT ON COLUMN tracker_service.expired_at IS 'When it expired; null: it has not.';
COMMENT ON COLUMN tracker_service.deleted_at IS
    'When it was deleted: it is gone for everybody, and its rows go in small batches; null: it was not.';
COMMENT ON COLUMN tracker_service.event_id IS 'Id of its one event, that it has ended; null: it has not.';
COMMENT ON COLUMN tracker_service.event IS 'That event.';
COMMENT ON COLUMN tracker_service.webhook_url IS 'Where the event is sent; null: nowhere.';
COMMENT ON COLUMN tracker_service.webhook_host IS 'The host in that address.';
COMMENT ON COLUMN tracker_service.webhook_secret IS
    'Name of the secret that signs it, in the operator''s file; null: none.';
COMMENT ON COLUMN tracker_service.webhook_state IS 'none: nothing is to be sent; due; delivered; given_up.';
COMMENT ON COLUMN tracker_service.webhook_attempts IS 'How often it was tried to send it.';
COMMENT ON COLUMN tracker_service.webhook_due_at IS 'Since when it is to be sent.';
COMMENT ON COLUMN tracker_service.webhook_next_at IS 'When it is tried next.';
COMMENT ON COLUMN tracker_service.webhook_error IS 'Why the last attempt failed; null: it did not, or there was none.';

CREATE TABLE tracker_add (
    batch_id    uuid    NOT NULL REFERENCES tracker_batch ON DELETE CASCADE,
    key         text    COLLATE "C" NOT NULL CHECK (key <> ''),
    first_group integer NOT NULL CHECK (first_group >= 0),
    groups      integer NOT NULL CHECK (groups >= 1),
    items       bigint  NOT NULL CHECK (items >= 1),
    PRIMARY KEY (batch_id, key)
);
COMMENT ON TABLE tracker_add IS 'Adds to trackers that carried a key: the same key adds nothing again.';
COMMENT ON COLUMN tracker_add.batch_id IS 'The tracker (tracker_batch.id).';
COMMENT ON COLUMN tracker_add.key IS 'The key of the add.';
COMMENT ON COLUMN tracker_add.first_group IS 'The first group that it added (tracker_group.grp).';
COMMENT ON COLUMN tracker_add.groups IS 'How many groups it added.';
COMMENT ON COLUMN tracker_add.items IS 'How many items it added.';

-- There is no foreign key: it would have every failed ack lock the row of the batch.
CREATE TABLE tracker_failed (
    batch_id uuid      NOT NULL,
    grp      integer   NOT NULL CHECK (grp >= 0),
    code     text      COLLATE "C" NOT NULL CHECK (code <> ''),
    mask     bit(8192) NOT NULL,
    PRIMARY KEY (batch_id, grp, code)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE tracker_failed ALTER COLUMN mask SET STORAGE PLAIN;
COMMENT ON TABLE tracker_failed IS 'Items of trackers that were acknowledged as failed.';
COMMENT ON COLUMN tracker_failed.batch_id IS 'The tracker (tracker_batch.id).';
COMMENT ON COLUMN tracker_failed.grp IS 'The group (tracker_group.grp).';
COMMENT ON COLUMN tracker_failed.code IS 'The error code that they were acknowledged with.';
COMMENT ON COLUMN tracker_failed.mask IS
    'Those items, as bits of the group. An item is in the mask of one code at most.';

-- +goose Down
DROP TABLE tracker_failed, tracker_add, tracker_service;
