// Package itemschema holds the items of a run against a JSON Schema (draft 2020-12 unless the schema names another),
// and proposes one for items that are there.
//
// # What it guarantees
//
// What fits, and what is wrong, is what the library santhosh-tekuri/jsonschema says, with formats asserted. Most items
// fit: a checker knows that of one, for the keywords that schemas of rows are made of, without decoding it. Only what
// it does not know to fit goes to the library, so both agree by construction where an item is refused; a fuzz test
// holds them against each other where it is taken.
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
// A Schema may be used by any number of goroutines, a Checker by one.
package itemschema
