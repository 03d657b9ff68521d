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
COMMENT ON TABLE run_correction IS 'Corrections of runs: items were given other payloads, and done again.';
COMMENT ON COLUMN run_correction.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_correction.generation IS
    'The generation of the run that it opened: parts of this one and of later ones are made of the newer payloads.';
COMMENT ON COLUMN run_correction.at IS 'When.';
COMMENT ON COLUMN run_correction.actor IS 'Who.';
COMMENT ON COLUMN run_correction.reason IS 'Why; empty: no one said.';
COMMENT ON COLUMN run_correction.cascade IS
    'What later steps had made of the items was done again in any case, not only where a part changed.';
COMMENT ON COLUMN run_correction.items IS 'Items whose payload changed.';

-- The newest payload is in work_queue, where everybody reads it.
CREATE TABLE work_correction (
    run_id     uuid    NOT NULL,
    ordinal    integer NOT NULL,
    generation integer NOT NULL,
    payload    text    COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, ordinal, generation)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE work_correction IS 'Payloads that items had until they were corrected.';
COMMENT ON COLUMN work_correction.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN work_correction.ordinal IS 'The item (work_queue.ordinal).';
COMMENT ON COLUMN work_correction.generation IS 'The correction (run_correction.generation).';
COMMENT ON COLUMN work_correction.payload IS 'What the item carried before.';

-- +goose Down
DROP TABLE work_correction, run_correction;
