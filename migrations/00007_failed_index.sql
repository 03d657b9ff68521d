-- +goose NO TRANSACTION

-- +goose Up

-- Completed runs with failures: what an operator is told to see to.
DROP INDEX CONCURRENTLY IF EXISTS batchrun_failed;
CREATE INDEX CONCURRENTLY batchrun_failed ON batchrun (id) WHERE state = 'completed' AND failed > 0;

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS batchrun_failed;
