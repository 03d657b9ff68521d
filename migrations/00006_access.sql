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
-- A name is one actor in the audit log.
CREATE UNIQUE INDEX api_token_name ON api_token (lower(name)) WHERE revoked_at IS NULL AND rotated_at IS NULL;
COMMENT ON TABLE api_token IS
    'Who may use the API, by a token. The secret is shown once, when it is made, and is not in here.';
COMMENT ON COLUMN api_token.id IS 'The token.';
COMMENT ON COLUMN api_token.name IS 'Whose it is; this name stands in the audit log.';
COMMENT ON COLUMN api_token.role IS 'What it may everywhere: none, watcher, viewer, operator or admin.';
COMMENT ON COLUMN api_token.grants IS 'What it may beyond that, by namespace, like {"team-a": "operator"}.';
COMMENT ON COLUMN api_token.hash IS 'SHA-256 of the secret.';
COMMENT ON COLUMN api_token.created_at IS 'When it was made.';
COMMENT ON COLUMN api_token.created_by IS 'Who made it.';
COMMENT ON COLUMN api_token.expires_at IS 'When it ends; null: never.';
COMMENT ON COLUMN api_token.networks IS 'Where it may be used from, like 10.0.0.0/8; empty: anywhere.';
COMMENT ON COLUMN api_token.makers IS
    'Callers who made it or confirmed that, and the makers of their tokens: they may know its secret.';
COMMENT ON COLUMN api_token.rotated_at IS 'When another took its place; null: it was not.';
COMMENT ON COLUMN api_token.last_used_at IS 'When it was last used, about; null: never.';
COMMENT ON COLUMN api_token.revoked_at IS 'When it was taken back; null: it was not.';
COMMENT ON COLUMN api_token.revoked_by IS 'Who took it back.';

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
COMMENT ON TABLE web_session IS 'A browser that has logged in.';
COMMENT ON COLUMN web_session.hash IS 'SHA-256 of the secret in its cookie.';
COMMENT ON COLUMN web_session.token_id IS
    'The token that it logged in with (api_token.id); null: by a identity provider.';
COMMENT ON COLUMN web_session.user_name IS 'Who it is; this name stands in the audit log.';
COMMENT ON COLUMN web_session.role IS 'What it may everywhere: none, watcher, viewer, operator or admin.';
COMMENT ON COLUMN web_session.grants IS 'What it may beyond that, by namespace.';
COMMENT ON COLUMN web_session.created_at IS 'When it logged in.';
COMMENT ON COLUMN web_session.active_at IS 'When it was last used, about.';
COMMENT ON COLUMN web_session.expires_at IS 'When it ends.';
COMMENT ON COLUMN web_session.subject IS
    'What the identity provider calls the person; null: logged in by a token.';
COMMENT ON COLUMN web_session.renewal IS
    'By what the provider is asked again, sealed; null: it cannot be asked. The session lasts for as long as the '
    'provider stands by it.';
COMMENT ON COLUMN web_session.checked_at IS 'When the provider last said yes.';

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
COMMENT ON TABLE api_request IS
    'Requests to the API that named an idempotency key, and what they were answered; kept for 24 hours.';
COMMENT ON COLUMN api_request.user_name IS 'Who asked.';
COMMENT ON COLUMN api_request.key IS 'The idempotency key.';
COMMENT ON COLUMN api_request.operation IS 'What was asked for: an operation of the API.';
COMMENT ON COLUMN api_request.fingerprint IS 'Digest of the request: another one with the same key is refused.';
COMMENT ON COLUMN api_request.claim IS 'The request that works on it.';
COMMENT ON COLUMN api_request.session_id IS 'The node that does (node_session.id).';
COMMENT ON COLUMN api_request.committed_action IS 'What was committed: action and run; null: nothing.';
COMMENT ON COLUMN api_request.status IS 'HTTP status of the answer; null: it is in progress.';
COMMENT ON COLUMN api_request.content_type IS 'Content-Type of the answer.';
COMMENT ON COLUMN api_request.headers IS 'Other headers of the answer.';
COMMENT ON COLUMN api_request.body IS 'The answer; null: none.';
COMMENT ON COLUMN api_request.created_at IS 'When it was asked.';

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
COMMENT ON COLUMN admin_act.kind IS 'The kind that --four-eyes names.';
COMMENT ON COLUMN admin_act.what IS 'The operation in words.';
COMMENT ON COLUMN admin_act.method IS 'HTTP method of the request.';
COMMENT ON COLUMN admin_act.path IS 'Path of the request; a run or token is named by its ID.';
COMMENT ON COLUMN admin_act.input IS 'Body of the request, as JSON; null: none, or the act is settled.';
COMMENT ON COLUMN admin_act.preview IS 'What a dry run answered, or what it would change, as JSON; null: unknown, or the act is settled.';
COMMENT ON COLUMN admin_act.asked_by IS 'Who asked for it.';
COMMENT ON COLUMN admin_act.eyes IS 'Who cannot confirm it: who asked, and the makers of their token.';
COMMENT ON COLUMN admin_act.token_id IS 'The token with which it was asked for; null: see subject.';
COMMENT ON COLUMN admin_act.subject IS 'What the identity provider calls who asked; null: see token_id.';
COMMENT ON COLUMN admin_act.asked_at IS 'When it was asked for.';
COMMENT ON COLUMN admin_act.expires_at IS 'When it can no longer be confirmed.';
COMMENT ON COLUMN admin_act.state IS 'pending, running (an erasure, until it is done), done or rejected.';
COMMENT ON COLUMN admin_act.attempt IS 'The attempt that may return it to pending; null: none.';
COMMENT ON COLUMN admin_act.settled_by IS 'Who confirmed or rejected it.';
COMMENT ON COLUMN admin_act.settled_at IS 'When; null: it is pending or running.';

-- +goose Down
DROP TABLE admin_act, api_request, web_session, api_token;
