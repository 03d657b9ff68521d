-- +goose Up

CREATE TABLE run_correction (
    run_id     uuid        NOT NULL,
    generation integer     NOT NULL CHECK (generation >= 2),
    at         timestamptz NOT NULL DEFAULT tranche_now(),
    actor      text        NOT NULL,
    reason     text        NOT NULL DEFAULT '',
    cascade    boolean     NOT NULL,
    items      bigint      NOT NULL CHECK (items > 0),
    PRIMARY KEY (run_id, generation)
);
COMMENT ON TABLE run_correction IS 'Corrections of runs: items got new payloads and were rerun.';
COMMENT ON COLUMN run_correction.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_correction.generation IS
    'The generation that it began: parts of this and later generations use the new payloads.';
COMMENT ON COLUMN run_correction.at IS 'When it was made.';
COMMENT ON COLUMN run_correction.actor IS 'Who made it.';
COMMENT ON COLUMN run_correction.reason IS 'The reason given; empty: none.';
COMMENT ON COLUMN run_correction.cascade IS 'Whether later steps were always rerun, not only where a part changed.';
COMMENT ON COLUMN run_correction.items IS 'Number of items whose payload changed.';

-- The current payload is in work_queue.
CREATE TABLE work_correction (
    run_id     uuid    NOT NULL,
    ordinal    integer NOT NULL,
    generation integer NOT NULL,
    payload    text    COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, ordinal, generation)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE work_correction IS 'Payloads of items before a correction.';
COMMENT ON COLUMN work_correction.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_correction.ordinal IS 'The item (work_queue.ordinal).';
COMMENT ON COLUMN work_correction.generation IS 'The correction (run_correction.generation).';
COMMENT ON COLUMN work_correction.payload IS 'The earlier payload.';

-- +goose Down
DROP TABLE work_correction, run_correction;
