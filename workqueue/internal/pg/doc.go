// Package pg is about PostgreSQL and knows nothing of runs: pipelined transactions, COPY, rows read at once, texts as
// it takes them.
package pg
