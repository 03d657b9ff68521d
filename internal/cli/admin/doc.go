// Package admin has the commands that see to the system itself: its health, nodes, database, streams, tokens and
// records.
package admin
