-- +goose NO TRANSACTION

-- Tables that nodes work on may be large: their indexes are built beside the work. What was broken off is built anew.

-- +goose Up

-- What happened to one run, for its report.
DROP INDEX CONCURRENTLY IF EXISTS run_event_run;
CREATE INDEX CONCURRENTLY run_event_run ON run_event (run_id, at);

-- What lately became of an endpoint's slices, newest first.
DROP INDEX CONCURRENTLY IF EXISTS work_slice_ended;
CREATE INDEX CONCURRENTLY work_slice_ended ON work_slice (endpoint, ended_at) WHERE ended_at IS NOT NULL;

-- What is out at an endpoint, over all runs, and what waits for its time: claims look at both.
DROP INDEX CONCURRENTLY IF EXISTS work_slice_busy;
CREATE INDEX CONCURRENTLY work_slice_busy ON work_slice (endpoint, run_id, step) WHERE state IN ('claimed', 'sent');
DROP INDEX CONCURRENTLY IF EXISTS work_slice_due;
CREATE INDEX CONCURRENTLY work_slice_due ON work_slice (run_id, step, not_before) WHERE state = 'scheduled';

-- Which runs a plan has: the list of plans counts them without reading them.
DROP INDEX CONCURRENTLY IF EXISTS batchrun_plan;
CREATE INDEX CONCURRENTLY batchrun_plan ON batchrun (plan, plan_version, state) WHERE plan_version IS NOT NULL;

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS batchrun_plan;
DROP INDEX CONCURRENTLY IF EXISTS work_slice_due;
DROP INDEX CONCURRENTLY IF EXISTS work_slice_busy;
DROP INDEX CONCURRENTLY IF EXISTS work_slice_ended;
DROP INDEX CONCURRENTLY IF EXISTS run_event_run;
