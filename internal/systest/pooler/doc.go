// Package pooler tests whole processes of tranche serve behind a real PgBouncer, and as a role that owns nothing. Its
// tests take long: `make proof` runs them.
package pooler
