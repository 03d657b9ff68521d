-- +goose Up

-- Who may use the API. A secret is shown once, when it is made; here is its SHA-256.
CREATE TABLE api_token (
    id           uuid        PRIMARY KEY,
    name         text        NOT NULL CHECK (name <> ''),
    role         text        NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    hash         bytea       NOT NULL UNIQUE CHECK (length(hash) = 32),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by   text        NOT NULL DEFAULT '',
    expires_at   timestamptz,
    last_used_at timestamptz,
    revoked_at   timestamptz,
    revoked_by   text        NOT NULL DEFAULT ''
);

-- A browser that has logged in. The cookie holds a secret, the row its SHA-256.
CREATE TABLE web_session (
    hash       bytea       PRIMARY KEY CHECK (length(hash) = 32),
    token_id   uuid        REFERENCES api_token ON DELETE CASCADE, -- null: logged in by a provider of identities
    user_name  text        NOT NULL,
    role       text        NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    active_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX web_session_token ON web_session (token_id);
CREATE INDEX web_session_expires ON web_session (expires_at);

-- Requests that named an idempotency key, and what they were answered.
CREATE TABLE api_request (
    user_name    text        NOT NULL,
    key          text        COLLATE "C" NOT NULL,
    operation    text        NOT NULL,
    fingerprint  bytea       NOT NULL,
    claim        uuid        NOT NULL,         -- fences the request that works on it
    session_id   uuid        NOT NULL,         -- of the node that does
    carried_out  jsonb,                        -- what was committed: action and run; null: nothing
    status       integer,                      -- null: it is under way
    content_type text        NOT NULL DEFAULT '',
    headers      jsonb       NOT NULL DEFAULT '{}',
    body         bytea,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (user_name, key)
);
CREATE INDEX api_request_created ON api_request (created_at);

-- Since when something that a person should see to has been so. What is over has no row.
CREATE TABLE health_condition (
    kind    text        NOT NULL,
    subject text        NOT NULL,
    since   timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, subject)
);

-- +goose Down
DROP TABLE health_condition, api_request, web_session, api_token;
