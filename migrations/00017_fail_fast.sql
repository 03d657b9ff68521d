-- +goose Up

-- Few, short-lived rows: a step has none after its first outcomes.
CREATE TABLE run_fail_fast (
    run_id   uuid     NOT NULL,
    step     smallint NOT NULL,
    failures integer  NOT NULL CHECK (failures >= 1),
    within   integer  NOT NULL CHECK (within >= failures),
    seen     integer  NOT NULL DEFAULT 0 CHECK (seen >= 0),
    codes    jsonb    NOT NULL DEFAULT '{}',
    tripped  text,
    PRIMARY KEY (run_id, step),
    FOREIGN KEY (run_id, step) REFERENCES run_step ON DELETE CASCADE
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
COMMENT ON TABLE run_fail_fast IS 'Steps whose first outcomes are still counted, to hold the run if too many fail.';
COMMENT ON COLUMN run_fail_fast.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_fail_fast.step IS 'The step (run_step.step).';
COMMENT ON COLUMN run_fail_fast.failures IS 'The run is held after this many permanent failures with the same code';
COMMENT ON COLUMN run_fail_fast.within IS 'among this many first outcomes.';
COMMENT ON COLUMN run_fail_fast.seen IS 'Number of outcomes so far.';
COMMENT ON COLUMN run_fail_fast.codes IS 'Number of those failures, by code.';
COMMENT ON COLUMN run_fail_fast.tripped IS
    'Why the run must be held, in words, while it is held for another reason; null: undecided.';

-- +goose Down
DROP TABLE run_fail_fast;
