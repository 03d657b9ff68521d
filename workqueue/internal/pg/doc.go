// Package pg is about PostgreSQL and knows nothing of runs: pipelined transactions, COPY, texts as it takes them.
package pg
