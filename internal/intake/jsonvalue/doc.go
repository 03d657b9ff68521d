// Package jsonvalue writes and looks at JSON as payloads have it: valid UTF-8 without NUL, not even as an escape, and
// without spaces between tokens, so that PostgreSQL can store it. It uses nothing of ours and allocates for results
// only.
package jsonvalue
