-- +goose Up

-- Running nodes are not to queue up behind this: better that it fails and is tried again.
SET LOCAL lock_timeout = '500ms';

-- A tracker batch that is offered to others. A batch without such a row belongs to a run, and the service cannot touch
-- it. The owner of these batches in tracker_batch is 'service'; the one here is whom the tracker was opened for.
CREATE TABLE tracker_service (
    batch_id         uuid        PRIMARY KEY REFERENCES tracker_batch ON DELETE CASCADE,
    owner            text        COLLATE "C" NOT NULL CHECK (owner <> ''),
    key              text        COLLATE "C" CHECK (key <> ''),   -- the owner's; null: none, or the tracker is deleted
    created_by       text        NOT NULL DEFAULT '',
    open_idle        interval    NOT NULL CHECK (open_idle > interval '0'),
    sealed_idle      interval    NOT NULL CHECK (sealed_idle > interval '0'),
    keep             interval    NOT NULL CHECK (keep > interval '0'),
    active_at        timestamptz NOT NULL DEFAULT clock_timestamp(), -- acks write it seldom
    reap_at          timestamptz NOT NULL,    -- when the reaper looks at it next: a hint, it decides by the ages
    expired_at       timestamptz,
    deleted_at       timestamptz,             -- gone for everybody; its rows go in small batches
    event_id         uuid,                    -- of its one event: set with it, and never again
    event            jsonb,                   -- the same, as the webhook sends it
    webhook_url      text,
    webhook_host     text        COLLATE "C"  -- hosts are called side by side: h, H, h. and h:443 are one and the same
                                 GENERATED ALWAYS AS (regexp_replace(regexp_replace(
                                     lower(substring(webhook_url FROM '://([^/?#]*)')),
                                     CASE WHEN webhook_url ~* '^https:' THEN ':(443)?$' ELSE ':(80)?$' END, ''),
                                     '\.(:[0-9]+)?$', '\1')) STORED,
    webhook_secret   text,                    -- the name of a secret of the operator's file, never the secret
    webhook_state    text        NOT NULL DEFAULT 'none'
                                 CHECK (webhook_state IN ('none', 'due', 'delivered', 'given_up')),
    webhook_attempts integer     NOT NULL DEFAULT 0 CHECK (webhook_attempts >= 0),
    webhook_due_at   timestamptz,             -- since when it is owed
    webhook_next_at  timestamptz,             -- when to try next
    webhook_error    text,                    -- why the last attempt failed
    CONSTRAINT tracker_service_key UNIQUE (owner, key),
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

-- Adds that carried a client's key: the same key adds nothing again.
CREATE TABLE tracker_add (
    batch_id    uuid    NOT NULL REFERENCES tracker_batch ON DELETE CASCADE,
    key         text    COLLATE "C" NOT NULL CHECK (key <> ''),
    first_group integer NOT NULL CHECK (first_group >= 0),
    groups      integer NOT NULL CHECK (groups >= 1),
    items       bigint  NOT NULL CHECK (items >= 1),
    PRIMARY KEY (batch_id, key)
);

-- Items that were acknowledged as failed, one row for each code in a group. An item is in at most one mask. There is no
-- foreign key: it would have every failed ack lock the row of the batch.
CREATE TABLE tracker_failed (
    batch_id uuid      NOT NULL,
    grp      integer   NOT NULL CHECK (grp >= 0),
    code     text      COLLATE "C" NOT NULL CHECK (code <> ''),
    mask     bit(8192) NOT NULL,
    PRIMARY KEY (batch_id, grp, code)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE tracker_failed ALTER COLUMN mask SET STORAGE PLAIN;

-- +goose Down
DROP TABLE tracker_failed, tracker_add, tracker_service;
