// Package database is PostgreSQL as Tranche sees it: connections, and transactions that are run again when it breaks
// them off.
package database
