-- +goose Up

CREATE TABLE api_token (
    id           uuid        PRIMARY KEY,
    name         text        NOT NULL CHECK (name <> ''),
    role         text        NOT NULL CHECK (role IN ('none', 'watcher', 'viewer', 'operator', 'admin')),
    hash         bytea       NOT NULL UNIQUE CHECK (length(hash) = 32),
    created_at   timestamptz NOT NULL DEFAULT tranche_now(),
    created_by   text        NOT NULL DEFAULT '',
    expires_at   timestamptz,
    networks     text[]      NOT NULL DEFAULT '{}',
    makers       text[]      NOT NULL DEFAULT '{}',
    grants       jsonb       NOT NULL DEFAULT '{}',
    last_used_at timestamptz,
    rotated_at   timestamptz,
    revoked_at   timestamptz,
    revoked_by   text        NOT NULL DEFAULT ''
);
-- A name identifies one actor in the audit log.
CREATE UNIQUE INDEX api_token_name ON api_token (lower(name)) WHERE revoked_at IS NULL AND rotated_at IS NULL;
COMMENT ON TABLE api_token IS 'API tokens. A secret is shown once, when the token is created, and not stored.';
COMMENT ON COLUMN api_token.id IS 'The token.';
COMMENT ON COLUMN api_token.name IS 'Its owner, as named in the audit log.';
COMMENT ON COLUMN api_token.role IS 'Its role in the whole installation: none, watcher, viewer, operator or admin.';
COMMENT ON COLUMN api_token.grants IS 'Further roles by namespace, like {"team-a": "operator"}.';
COMMENT ON COLUMN api_token.hash IS 'SHA-256 of the secret.';
COMMENT ON COLUMN api_token.created_at IS 'When it was created.';
COMMENT ON COLUMN api_token.created_by IS 'Who created it.';
COMMENT ON COLUMN api_token.expires_at IS 'When it expires; null: never.';
COMMENT ON COLUMN api_token.networks IS 'Networks where it may be used, like 10.0.0.0/8; empty: anywhere.';
COMMENT ON COLUMN api_token.makers IS
    'Callers who may know its secret: who created it or confirmed that, and the makers of their tokens.';
COMMENT ON COLUMN api_token.rotated_at IS 'When it was replaced by another; null: not replaced.';
COMMENT ON COLUMN api_token.last_used_at IS 'Approximate time of its last use; null: never.';
COMMENT ON COLUMN api_token.revoked_at IS 'When it was revoked; null: not revoked.';
COMMENT ON COLUMN api_token.revoked_by IS 'Who revoked it.';

CREATE TABLE web_session (
    hash       bytea       PRIMARY KEY CHECK (length(hash) = 32),
    token_id   uuid        REFERENCES api_token ON DELETE CASCADE,
    user_name  text        NOT NULL,
    role       text        NOT NULL CHECK (role IN ('none', 'watcher', 'viewer', 'operator', 'admin')),
    created_at timestamptz NOT NULL DEFAULT tranche_now(),
    active_at  timestamptz NOT NULL DEFAULT tranche_now(),
    expires_at timestamptz NOT NULL,
    grants     jsonb       NOT NULL DEFAULT '{}',
    subject    text,
    renewal    bytea,
    checked_at timestamptz,
    CONSTRAINT web_session_renewal CHECK ((renewal IS NULL) = (checked_at IS NULL)
        AND (renewal IS NULL OR subject IS NOT NULL))
);
CREATE INDEX web_session_token ON web_session (token_id);
CREATE INDEX web_session_expires ON web_session (expires_at);
COMMENT ON TABLE web_session IS 'Browser sessions.';
COMMENT ON COLUMN web_session.hash IS 'SHA-256 of the secret in its cookie.';
COMMENT ON COLUMN web_session.token_id IS 'The token used to log in (api_token.id); null: an identity provider.';
COMMENT ON COLUMN web_session.user_name IS 'The user, as named in the audit log.';
COMMENT ON COLUMN web_session.role IS
    'The user''s role in the whole installation: none, watcher, viewer, operator or admin.';
COMMENT ON COLUMN web_session.grants IS 'Further roles by namespace.';
COMMENT ON COLUMN web_session.created_at IS 'When the user logged in.';
COMMENT ON COLUMN web_session.active_at IS 'Approximate time of the last use.';
COMMENT ON COLUMN web_session.expires_at IS 'When it expires.';
COMMENT ON COLUMN web_session.subject IS 'The identity provider''s ID of the user; null: logged in by a token.';
COMMENT ON COLUMN web_session.renewal IS
    'Sealed data to ask the identity provider again; null: not possible. The session lasts as long as the provider '
    'confirms it.';
COMMENT ON COLUMN web_session.checked_at IS 'When the provider last confirmed it.';

CREATE TABLE api_request (
    user_name    text        NOT NULL,
    key          text        COLLATE "C" NOT NULL,
    operation    text        NOT NULL,
    fingerprint  bytea       NOT NULL,
    claim        uuid        NOT NULL, -- fences the request that works on it
    session_id   uuid        NOT NULL,
    committed_action  jsonb,
    status       integer,
    content_type text        NOT NULL DEFAULT '',
    headers      jsonb       NOT NULL DEFAULT '{}',
    body         bytea,
    created_at   timestamptz NOT NULL DEFAULT tranche_now(),
    PRIMARY KEY (user_name, key)
);
CREATE INDEX api_request_created ON api_request (created_at);
COMMENT ON TABLE api_request IS 'API requests with an idempotency key, and their responses, for 24 hours.';
COMMENT ON COLUMN api_request.user_name IS 'The caller.';
COMMENT ON COLUMN api_request.key IS 'The idempotency key.';
COMMENT ON COLUMN api_request.operation IS 'The operation of the API.';
COMMENT ON COLUMN api_request.fingerprint IS 'Digest of the request: a different one with the same key is refused.';
COMMENT ON COLUMN api_request.claim IS 'The request that is processing it.';
COMMENT ON COLUMN api_request.session_id IS 'The node that is processing it (node_session.id).';
COMMENT ON COLUMN api_request.committed_action IS 'Committed action and run; null: nothing committed.';
COMMENT ON COLUMN api_request.status IS 'HTTP status of the response; null: in progress.';
COMMENT ON COLUMN api_request.content_type IS 'Content-Type of the response.';
COMMENT ON COLUMN api_request.headers IS 'Other headers of the response.';
COMMENT ON COLUMN api_request.body IS 'The response; null: none.';
COMMENT ON COLUMN api_request.created_at IS 'When it was received.';

CREATE TABLE admin_act (
    id         uuid        PRIMARY KEY,
    kind       text        NOT NULL CHECK (kind IN ('erase', 'retention', 'tokens', 'delete')),
    what       text        NOT NULL,
    method     text        NOT NULL,
    path       text        NOT NULL,
    input      text,
    preview    text,
    asked_by   text        NOT NULL,
    eyes       text[]      NOT NULL CHECK (cardinality(eyes) > 0),
    token_id   uuid,
    subject    text,
    asked_at   timestamptz NOT NULL DEFAULT tranche_now(),
    expires_at timestamptz NOT NULL,
    state      text        NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'running', 'done', 'rejected')),
    attempt    uuid,
    settled_by text        NOT NULL DEFAULT '',
    settled_at timestamptz,
    CHECK ((state IN ('pending', 'running')) = (settled_at IS NULL)
        AND (settled_at IS NULL OR input IS NULL AND preview IS NULL))
);
COMMENT ON TABLE admin_act IS 'Acts of administrators that another one must confirm (serve --four-eyes).';
COMMENT ON COLUMN admin_act.id IS 'The act.';
COMMENT ON COLUMN admin_act.kind IS 'The kind, as in --four-eyes.';
COMMENT ON COLUMN admin_act.what IS 'The operation in words.';
COMMENT ON COLUMN admin_act.method IS 'HTTP method of the request.';
COMMENT ON COLUMN admin_act.path IS 'Path of the request; a run or token is named by its ID.';
COMMENT ON COLUMN admin_act.input IS 'Body of the request, as JSON; null: none, or the act is settled.';
COMMENT ON COLUMN admin_act.preview IS
    'Result of a dry run, or the expected changes, as JSON; null: unknown, or the act is settled.';
COMMENT ON COLUMN admin_act.asked_by IS 'Who requested it.';
COMMENT ON COLUMN admin_act.eyes IS 'Who cannot confirm it: the requester, and the makers of their token.';
COMMENT ON COLUMN admin_act.token_id IS 'The requester''s token; null: see subject.';
COMMENT ON COLUMN admin_act.subject IS 'The identity provider''s ID of the requester; null: see token_id.';
COMMENT ON COLUMN admin_act.asked_at IS 'When it was requested.';
COMMENT ON COLUMN admin_act.expires_at IS 'When it can no longer be confirmed.';
COMMENT ON COLUMN admin_act.state IS 'pending, running (an erasure, until it is done), done or rejected.';
COMMENT ON COLUMN admin_act.attempt IS 'The attempt that may return it to pending; null: none.';
COMMENT ON COLUMN admin_act.settled_by IS 'Who confirmed or rejected it.';
COMMENT ON COLUMN admin_act.settled_at IS 'When it was confirmed or rejected; null: pending or running.';

-- +goose Down
DROP TABLE admin_act, api_request, web_session, api_token;
