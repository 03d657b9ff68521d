-- +goose Up

-- Few rows, each for a short time: none for a step that has had its first outcomes. They go with the step.
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
COMMENT ON TABLE run_fail_fast IS
    'Steps whose first outcomes are still looked at, so that a run of which they plainly fail is held.';
COMMENT ON COLUMN run_fail_fast.run_id IS 'The run (batchrun.id).';
COMMENT ON COLUMN run_fail_fast.step IS 'The step (run_step.step).';
COMMENT ON COLUMN run_fail_fast.failures IS
    'So many failures of one code that would not pass by trying again hold the run,';
COMMENT ON COLUMN run_fail_fast.within IS 'when they are among so many first outcomes.';
COMMENT ON COLUMN run_fail_fast.seen IS 'How many outcomes there were so far.';
COMMENT ON COLUMN run_fail_fast.codes IS 'How many of them failed so, by code.';
COMMENT ON COLUMN run_fail_fast.tripped IS
    'Why the run is to be held, in words, while it is held for something else; null: nothing is decided.';

-- +goose Down
DROP TABLE run_fail_fast;
