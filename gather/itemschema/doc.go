// Package itemschema validates the items of a run with a JSON Schema (draft 2020-12 unless the schema names another),
// and proposes a schema for existing items.
//
// # What it guarantees
//
// santhosh-tekuri/jsonschema decides what is valid, with formats asserted.
//
// A schema reaches nothing outside itself: a $ref to a file or to a server is refused. Patterns are RE2's, which take
// linear time.
//
// # Not its job
//
// It knows no files and no runs. Items are objects as internal/intake makes them: valid JSON without spaces between
// its tokens and without names that stand twice.
//
// # Concurrency
//
// Any number of goroutines may use a Schema.
package itemschema
